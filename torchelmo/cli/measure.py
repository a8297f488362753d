"""torchelmo perplexity, surprisal and substitutes: what a language model expects of a text."""

import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from torchelmo.cli.ending import echo
from torchelmo.files import require_file

if TYPE_CHECKING:
    from torchelmo.train.evaluate import Perplexity

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Model folder with a softmax, or name.")]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="A file (also .gz, .bz2, .xz), or -.")]
Lang = Annotated[str, typer.Option(help="Split by spaCy's rules for this language (en, de, xx, …).")]
Pretokenized = Annotated[
    bool, typer.Option("--pretokenized", help="A line is a sentence, with spaces between its tokens.")
]
State = Annotated[
    Literal["reset", "carry"],
    typer.Option(help="reset: every sentence starts from zero; carry: one running text, as in training."),
]
BatchTokens = Annotated[int, typer.Option(min=1, help="Tokens at once; fewer need less memory.")]


def perplexity(
    model: Model,
    texts: Annotated[
        list[str],
        typer.Argument(metavar="TEXT…", help="Files, globs, -, or a prepared folder for its held-out part."),
    ],
    lang: Lang = "en",
    pretokenized: Pretokenized = False,
    state: State = "reset",
    batch_tokens: BatchTokens = 2048,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Measure how well a language model expects a text: exactly, forward, backward, and their mean.

    Targets are all tokens and the mark that closes a sentence; a word outside of the vocabulary counts as <UNK>,
    so perplexities can be compared only where vocabulary and text are the same.
    """
    from torchelmo import load
    from torchelmo.progress import progress
    from torchelmo.train.evaluate import combine
    from torchelmo.train.evaluate import perplexity as measure
    from torchelmo.train.prepare import expand

    files = expand(texts, folders=True)
    bilm = load(model)
    found = {}
    for file in files:
        with progress(f"perplexity of {file}", unit="tokens") as advance:
            sentences = _sentences(file, None if pretokenized else lang)
            found[file] = measure(bilm, sentences, state=state, batch_tokens=batch_tokens, progress=advance)
    total = combine(list(found.values()))
    if as_json:
        each = {file: one._asdict() for file, one in found.items()}
        echo(json.dumps({"model": model, "state": state, "files": each, "all": total._asdict()}, indent=2))
        return
    if len(found) > 1:
        found["all"] = total
    for file, one in found.items():
        echo(f"{file}: {_in_words(one)}")


def surprisal(
    model: Model,
    text: Text,
    lang: Lang = "en",
    pretokenized: Pretokenized = False,
    state: State = "reset",
    batch_tokens: BatchTokens = 2048,
) -> None:
    """Print −log2 p of every token, in each direction, as tab-separated values.

    Lines and the tokens of a line are counted from 0. Where in_vocabulary is 0, the bits are those of <UNK>.
    """
    from torchelmo import load
    from torchelmo.train.predict import language_model
    from torchelmo.train.surprisal import surprisal as measure

    _check(text)
    bilm = load(model)
    language_model(bilm)  # an error now, not below the head of the table
    places: deque[tuple[int, int]] = deque()

    def noted() -> Iterator[list[str]]:
        for line, position, sentence in _places(text, None if pretokenized else lang):
            places.append((line, position))
            yield sentence

    results = measure(bilm, noted(), state=state, batch_tokens=batch_tokens)
    echo("line\tposition\ttoken\tforward\tbackward\tin_vocabulary")
    for tokens, forward, backward, known in results:
        line, first = places.popleft()
        rows = []
        for i, token in enumerate(tokens):
            bits = "\t".join("" if x is None else f"{x[i]:.4f}" for x in (forward, backward))
            rows.append(f"{line}\t{first + i}\t{token}\t{bits}\t{int(known[i])}")
        echo("\n".join(rows))


def substitutes(
    model: Model,
    text: Text,
    top: Annotated[int, typer.Option(min=1, help="How many words for each place.")] = 10,
    word: Annotated[
        list[str] | None, typer.Option(help="Only at places where this word stands; may be given again.")
    ] = None,
    lang: Lang = "en",
    pretokenized: Pretokenized = False,
) -> None:
    """Print the words that both directions expect at each place, as tab-separated values.

    The probability is the product of both directions over all words of the vocabulary, made to sum to 1. Lines
    and the tokens of a line are counted from 0.
    """
    from torchelmo import load
    from torchelmo.train.predict import language_model
    from torchelmo.train.substitutes import substitutes as expect

    _check(text)
    bilm = load(model)
    language_model(bilm)  # an error now, not below the head of the table
    echo("line\tposition\ttoken\trank\tsubstitute\tprobability")
    for line, first, sentence in _places(text, None if pretokenized else lang):
        positions = [i for i, token in enumerate(sentence) if not word or token in word]
        for i, found in zip(positions, expect(bilm, sentence, positions, top=top)):
            for rank, (other, p) in enumerate(found, 1):
                echo(f"{line}\t{first + i}\t{sentence[i]}\t{rank}\t{other}\t{p:.6g}")


def _check(text: str) -> None:
    """Before a model is loaded, which takes longer."""
    if text != "-":
        require_file(text, "a text file")


def _sentences(file: str, lang: str | None) -> Iterator[list[str]]:
    if Path(file).is_dir():
        from torchelmo.train.corpus import Corpus

        return Corpus.open(file, "heldout").sentences()
    from torchelmo.text.reading import read_sentences

    return read_sentences(file, lang)


def _places(file: str, lang: str | None) -> Iterator[tuple[int, int, list[str]]]:
    """Line, place of the first token in it, and tokens of every sentence; `lang` None is for split text."""
    from torchelmo.text.reading import read_paragraphs

    for number, sentences in enumerate(read_paragraphs(file, lang)):
        position = 0
        for sentence in sentences:
            yield number, position, sentence
            position += len(sentence)


def _in_words(found: "Perplexity") -> str:
    values: dict[str, Any] = {"forward": found.forward, "backward": found.backward, "average": found.average}
    each = ", ".join(f"{name} {value:.2f}" for name, value in values.items() if value is not None)
    return f"perplexity {each}; {found.n_tokens:,} tokens, {found.oov_rate:.2%} outside of the vocabulary"
