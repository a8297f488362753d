"""torchelmo analyse: examine what the layers of a biLM encode."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchelmo.cli.exit import echo, log
from torchelmo.cli.options import (
    AsJson,
    BatchTokens,
    Device,
    Lang,
    Model,
    Overwrite,
    Pretokenized,
    Resume,
    Threads,
    check_text,
    language_of,
    load_elmo,
)
from torchelmo.errors import InputError
from torchelmo.files import source_name
from torchelmo.progress import count
from torchelmo.unfinished import check_output

if TYPE_CHECKING:
    from torchelmo.analysis.wsd import Disambiguation

Layers = Annotated[
    list[str] | None,
    typer.Option(
        "--layers",
        "--layer",
        metavar="LAYERS",
        help="Layers by index (0 for the token layer), top, or all; several with commas or by repetition.",
    ),
]

_CONTEXT = 12  # words that are shown on each side of a neighbor


def wsd(
    train: Annotated[Path, typer.Option(help="Text tagged with senses: JSON lines, or XML with --train-keys.")],
    test: Annotated[Path, typer.Option(help="Text to tag: XML of the unified framework with --keys, or JSON lines.")],
    senses: Annotated[Path, typer.Option(help="index.sense of WordNet: the senses of every lemma, and their order.")],
    keys: Annotated[Path | None, typer.Option(help="The correct senses of the test data, if it is XML.")] = None,
    train_keys: Annotated[Path | None, typer.Option(help="The senses of the training data, if it is XML.")] = None,
    model: Model = None,
    layers: Layers = None,
    n_neighbours: Annotated[
        int | None,
        typer.Option(
            "--neighbours",
            min=1,
            metavar="K",
            help="Use k-nearest-neighbor voting with this k instead of sense centroids.",
        ),
    ] = None,
    batch_tokens: BatchTokens = 2048,
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Disambiguate word senses by nearest neighbor, with each layer alone (Table 5 of the paper).

    A sense is represented by the mean of its vectors in the training data, or by all of them with --neighbours. A lemma
    that the training data lacks gets WordNet's first sense. F1 is that of the unified evaluation framework.
    """
    from torchelmo.analysis.senses import read_senses, read_tagged
    from torchelmo.analysis.similarity import choose_layers
    from torchelmo.analysis.wsd import disambiguate, relevant_sentences
    from torchelmo.progress import progress

    inventory = read_senses(senses)
    tagged = list(read_tagged(test, keys))
    if not any(sentence.words for sentence in tagged):
        raise InputError(f"{test}: expected words with senses, found none.")
    # Read the training data once before the work starts: damage is found now, and the total for the progress is known.
    n_sentences = sum(1 for _ in relevant_sentences(read_tagged(train, train_keys), tagged, inventory))
    elmo = load_elmo(model, device, threads)
    chosen = choose_layers(elmo, _split(layers or ["all"]))
    with progress("senses of the training data", n_sentences) as advance:
        found = disambiguate(
            elmo,
            read_tagged(train, train_keys),
            tagged,
            inventory,
            layers=chosen,
            neighbours=n_neighbours,
            batch_tokens=batch_tokens,
            progress=advance,
        )
    _print_wsd(found, test, n_sentences, as_json=as_json)


def neighbours(
    texts: Annotated[
        list[str], typer.Argument(metavar="TEXT", help="Where to look: text files (also .gz, .bz2, .xz), or -.")
    ],
    sentence: Annotated[str, typer.Option(help="The sentence with the word.")],
    word: Annotated[str | None, typer.Option(help="The word, if it occurs once in the sentence.")] = None,
    position: Annotated[int | None, typer.Option(help="The position of the word in the sentence, from 0.")] = None,
    model: Model = None,
    layers: Layers = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Number of neighbors.")] = 10,
    lang: Lang = None,
    pretokenized: Pretokenized = False,
    batch_tokens: BatchTokens = 2048,
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Print the words of a text whose vectors are nearest to that of a word in a sentence (Table 4 of the paper).

    The text may have any size. The default layer is the top one.
    """
    from torchelmo.analysis.similarity import find_word
    from torchelmo.analysis.similarity import neighbours as find
    from torchelmo.progress import progress
    from torchelmo.text.reading import read_sentences
    from torchelmo.text.tokenize import tokenizer_for

    for text in texts:
        check_text(text)
    elmo = load_elmo(model, device, threads)
    language = language_of(elmo.bilm, lang, pretokenized)
    tokens = sentence.split() if language is None else tokenizer_for(language).tokens(sentence)
    place = find_word(tokens, word, position)
    sentences = (one for text in texts for one in read_sentences(text, language))
    chosen = _split(layers or ["top"])
    with progress("neighbours") as advance:
        found = find(
            elmo, tokens, place, sentences, layers=chosen, top=top, batch_tokens=batch_tokens, progress=advance
        )
    if not any(found.values()):
        names = ", ".join(map(source_name, texts))
        raise InputError(f"{names}: expected text to find neighbors in, found no other sentence.")
    if as_json:
        each = {
            layer: [
                {"cosine": one.cosine, "word": one.word, "position": one.position, "tokens": one.tokens} for one in some
            ]
            for layer, some in found.items()
        }
        target = {"word": tokens[place], "position": place, "tokens": tokens}
        echo(json.dumps({**target, "layers": each}, ensure_ascii=False, indent=2))
        return
    for layer, some in found.items():
        echo(f"layer {layer}: {_in_context(tokens, place)}")
        for one in some:
            echo(f"  {one.cosine:6.3f}  {_in_context(one.tokens, one.position)}")


def words(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT…", help="Text files (also .gz, .bz2, .xz).")],
    out: Annotated[Path, typer.Option(help="File to write, in the text format of word2vec.")],
    model: Model = None,
    layers: Annotated[
        str,
        typer.Option(help="average, top, sum or concat of all layers; or a layer by its index, 0 for the tokens'."),
    ] = "average",
    min_count: Annotated[int, typer.Option(min=1, metavar="N", help="Leave out words that occur less often.")] = 5,
    max_words: Annotated[int, typer.Option(min=1, metavar="N", help="Write the N most frequent words.")] = 50_000,
    lang: Lang = None,
    pretokenized: Pretokenized = False,
    batch_tokens: BatchTokens = 2048,
    device: Device = "auto",
    threads: Threads = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Write one vector per word type: the mean of its vectors in all sentences of a text.

    gensim and other programs for static word vectors read the file. The text may have any size; it is read twice.
    """
    from torchelmo.analysis.word_vectors import KIND, average_words

    for text in texts:
        check_text(text)
    check_output(out, KIND, resume=resume, overwrite=overwrite, inputs=texts)
    elmo = load_elmo(model, device, threads)
    log.info("words: %s for %s", count(len(texts), "inputs"), out)
    found = average_words(
        elmo,
        texts,
        out,
        layers=int(layers) if layers.isdecimal() else layers,
        min_count=min_count,
        max_words=max_words,
        lang=language_of(elmo.bilm, lang, pretokenized),
        batch_tokens=batch_tokens,
        resume=resume,
        overwrite=overwrite,
    )
    echo(f"{out}: {count(found.n_words, 'words')}, {found.dim} dimensions")


def align(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Word vectors to move, from analyse words.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Word vectors that stay as they are.")],
    anchors: Annotated[
        Path, typer.Option(help="A word of SOURCE and its translation in TARGET on each line, or one word for both.")
    ],
    out: Annotated[Path, typer.Option(help="File to write: the words of SOURCE in the space of TARGET.")],
    test: Annotated[
        Path | None, typer.Option(help="Other pairs, to measure how often the nearest word is the translation.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Move word vectors into the space of others by a rotation, so that words of two languages can be compared.

    The rotation is the best one for the anchors (Procrustes). It needs as many anchors as the vectors have numbers, or
    more.
    """
    from torchelmo.analysis.word_vectors import align_words

    found = align_words(source, target, anchors, out, test=test, overwrite=overwrite)
    about = f"{count(found.n_words, 'words')} by {count(found.n_anchors, 'anchors')}"
    if found.precision is not None:
        about += f"; precision at 1: {found.precision:.1%} of {count(found.n_test, 'pairs')}"
    echo(f"{out}: {about}")


def _split(layers: list[str]) -> list[str]:
    return [name for some in layers for name in some.replace(",", " ").split()]


def _print_wsd(found: "Disambiguation", test: Path, n_sentences: int, *, as_json: bool) -> None:
    rows = {"WordNet first sense": found.first_sense, "most frequent in training": found.most_frequent}
    rows |= {f"layer {layer}": counts for layer, counts in found.layers.items()}
    if as_json:
        numbers = {
            "instances": found.first_sense.n_gold,
            "seen": found.n_seen,
            "senses": found.n_senses,
            "sentences": n_sentences,
        }
        scores = {name: {"precision": row.precision, "recall": row.recall, "f1": row.f1} for name, row in rows.items()}
        echo(json.dumps({**numbers, "scores": scores}, indent=2))
        return
    echo(
        f"{test}: {found.first_sense.n_gold:,} words, {found.n_seen:,} with a lemma of the training data "
        f"({found.n_senses:,} senses in {n_sentences:,} sentences)"
    )
    echo(f"{'':<25}  precision  recall      F1")
    for name, row in rows.items():
        echo(f"{name:<25}  {row.precision:9.2f}  {row.recall:6.2f}  {row.f1:6.2f}")


def _in_context(tokens: Sequence[str], position: int) -> str:
    """Return a word in brackets with the words around it.

    >>> _in_context(["I", "took", "a", "bow"], 3)
    'I took a [bow]'
    """
    before, after = tokens[max(0, position - _CONTEXT) : position], tokens[position + 1 : position + 1 + _CONTEXT]
    words = [*before, f"[{tokens[position]}]", *after]
    start = "… " if len(before) < position else ""
    end = " …" if position + 1 + len(after) < len(tokens) else ""
    return start + " ".join(words) + end
