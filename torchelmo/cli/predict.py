"""The commands perplexity and substitutes, and the sentences of text files for commands that use a language model."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from torchelmo.cli.exit import Table, echo
from torchelmo.cli.options import (
    AsJson,
    BatchTokens,
    Device,
    Lang,
    Model,
    ModelAndTexts,
    Pretokenized,
    State,
    Threads,
    language_of,
    load_bilm,
    split_model_and_texts,
)
from torchelmo.errors import InputError, MissingFileError, WrongCallError
from torchelmo.files import source_name
from torchelmo.progress import count

if TYPE_CHECKING:
    from torchelmo import BiLM
    from torchelmo.lm.predict import Perplexity
    from torchelmo.text.tokenize import Token


def perplexity(
    arguments: ModelAndTexts,
    model: Model = None,
    lang: Lang = None,
    pretokenized: Pretokenized = False,
    state: State = "reset",
    batch_tokens: BatchTokens = 2048,
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure the exact perplexity of a text: forward, backward, and their mean.

    TEXT may also be a folder that `torchelmo prepare` wrote, for its held-out part. Targets are all tokens and the end
    of each sentence. A word outside the vocabulary counts as <UNK>, so perplexities can only be compared for the same
    vocabulary and text.
    """
    from torchelmo.formats.load import DEFAULT_MODEL
    from torchelmo.lm.predict import combine
    from torchelmo.lm.predict import perplexity as measure
    from torchelmo.lm.preparation import expand
    from torchelmo.progress import progress

    model, texts = split_model_and_texts(arguments, model)
    files = expand(texts, folders=True)
    bilm = load_bilm(model, device, threads)
    language = language_of(bilm, lang, pretokenized)
    found = {}
    for file in files:
        name = source_name(file)
        with progress(f"perplexity of {name}", unit="tokens") as advance:
            try:
                sentences = _sentences(file, language)
                found[name] = measure(bilm, sentences, state=state, batch_tokens=batch_tokens, progress=advance)
            except MissingFileError:
                raise
            except InputError as error:
                raise error if name in str(error) else InputError(f"{name}: {error}") from error
    total = combine(list(found.values()))
    if as_json:
        each = {file: one._asdict() for file, one in found.items()}
        about = {"model": model or DEFAULT_MODEL, "state": state, "files": each, "all": total._asdict()}
        echo(json.dumps(about, indent=2, ensure_ascii=False))
        return
    if len(found) > 1:
        found["all"] = total
    for file, one in found.items():
        echo(f"{file}: {_describe_perplexity(one)}")


def substitutes(
    arguments: ModelAndTexts,
    model: Model = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Number of words for each place.")] = 10,
    word: Annotated[
        list[str] | None, typer.Option(help="Only for places with this word, as it is written; can be repeated.")
    ] = None,
    targets: Annotated[
        Path | None,
        typer.Option(
            help="Only for these words, one per line: word, or lemma,form,form. Prints JSON lines with the words that "
            "each direction expects."
        ),
    ] = None,
    lang: Lang = None,
    pretokenized: Pretokenized = False,
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Print the words that both directions expect at each place, as tab-separated values or as JSON lines.

    The word itself is not among them. They are ranked by p(w | words before) · p(w | words after) / p(w), normalized
    to sum to 1 over the vocabulary. Lines, sentences and tokens are counted as by `torchelmo surprisal`.
    """
    from torchelmo.analysis.usages import read_targets
    from torchelmo.lm.predict import language_model
    from torchelmo.lm.predict import substitutes as expect

    if targets is not None and word:
        raise WrongCallError("--targets: expected either --targets or --word, got both.")
    model, files = model_and_files(arguments, model)
    forms = None if targets is None else read_targets(targets)
    bilm = load_bilm(model, device, threads)
    language_model(bilm)  # a missing softmax is an error before the table starts
    if forms is not None:
        _print_expectations(bilm, places_of(files, language_of(bilm, lang, pretokenized)), forms, top, files)
        return
    table = Table([*PLACE, "token", "rank", "substitute", "probability"], as_json)
    with progress_of("substitutes") as advance:
        for place in places_of(files, language_of(bilm, lang, pretokenized)):
            tokens = [token.text for token in place.tokens]
            positions = [i for i, token in enumerate(tokens) if not word or token in word]
            for i, found in zip(positions, expect(bilm, tokens, positions, top=top)):
                for rank, (other, p) in enumerate(found, 1):
                    table.row(*place.columns(i), tokens[i], rank, other, float(f"{p:.6g}"))
            table.print()
            advance(len(tokens))
    table.end(files, f"the word{'s' if word and len(word) > 1 else ''} {', '.join(word)}" if word else "text")


def _print_expectations(
    bilm: "BiLM", places: "Iterable[Place]", forms: dict[str, str], top: int, files: list[str]
) -> None:
    """Print a JSON line for each target: the words that each direction expects, with the keys of simple_elmo."""
    from torchelmo.lm.predict import substitutes as expect
    from torchelmo.lm.predict import substitutes_by_direction

    n_found = 0
    with progress_of("substitutes") as advance:
        for place in places:
            tokens = [token.text for token in place.tokens]
            positions = [i for i, token in enumerate(tokens) if token in forms]
            joint = expect(bilm, tokens, positions, top=top)
            for i, both, each in zip(positions, joint, substitutes_by_direction(bilm, tokens, positions, top=top)):
                record: dict[str, Any] = dict(zip(PLACE, place.columns(i)))
                record |= {"lemma": forms[tokens[i]], "token": tokens[i], "candidate_words": [one.word for one in both]}
                for direction, (ids, words, log_p) in each.items():
                    values = [round(value, 4) for value in log_p]
                    record[direction] = {"candidates": ids, "candidate_words": words, "logp": values}
                echo(json.dumps(record, ensure_ascii=False))
                n_found += 1
            advance(len(tokens))
    if not n_found:
        raise InputError(f"{', '.join(map(source_name, files))}: expected a target word, found none.")


PLACE = ("file", "line", "sentence", "position", "start", "end")


class Place(NamedTuple):
    """A sentence and its position in the input."""

    file: str
    line: int
    sentence: int  # its number in the line
    first: int  # the position of its first token in the line
    tokens: "list[Token]"

    def columns(self, i: int) -> tuple[str, int, int, int, int, int]:
        """Return the columns PLACE of token number `i`, or of the end of the sentence if there is no such token."""
        start, end = self.tokens[i][1:] if i < len(self.tokens) else [self.tokens[-1].end] * 2
        return self.file, self.line, self.sentence, self.first + i, start, end


def model_and_files(arguments: list[str], model: str | None) -> tuple[str | None, list[str]]:
    """Separate the optional model from the text files, and expand globs."""
    from torchelmo.lm.preparation import expand

    model, texts = split_model_and_texts(arguments, model)
    return model, expand(texts)


@contextlib.contextmanager
def progress_of(what: str, unit: str = "tokens") -> Iterator[Any]:
    """Show the progress of a command whose total is not known."""
    from torchelmo.progress import progress

    with progress(what, unit=unit) as advance:
        yield advance


def _sentences(file: str, lang: str | None) -> Iterator[list[str]]:
    if Path(file).is_dir():
        from torchelmo.lm.corpus import Corpus

        return Corpus(file, "heldout").sentences()
    from torchelmo.text.reading import read_sentences

    return read_sentences(file, lang)


def places_of(files: Iterable[str], lang: str | None) -> Iterator[Place]:
    """Yield the sentences of the files; `lang` is None for text that is already tokenized."""
    from torchelmo.files import read_lines
    from torchelmo.text.tokenize import align, tokenizer_for

    for file in files:
        for number, text in enumerate(read_lines(file), 1):
            if lang is None:
                sentences = align([words], text) if (words := text.split()) else []
            else:
                sentences = tokenizer_for(lang).spans(text)
            first = 0
            for index, tokens in enumerate(sentences):
                yield Place(source_name(file), number, index, first, tokens)
                first += len(tokens)


def _describe_perplexity(found: "Perplexity") -> str:
    values = {"forward": found.forward, "backward": found.backward, "average": found.average}
    each = ", ".join(f"{name} {value:.2f}" for name, value in values.items() if value is not None)
    return f"perplexity {each}; {count(found.n_tokens, 'tokens')}, {found.oov_rate:.2%} outside the vocabulary"
