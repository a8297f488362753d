"""The commands that use a language model: perplexity, surprisal, minimal-pairs and substitutes."""

import contextlib
import json
from collections import deque
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
from torchelmo.errors import InputError, MissingFileError
from torchelmo.files import source_name
from torchelmo.progress import count

if TYPE_CHECKING:
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


def surprisal(
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
    """Print −log2 p of every token, in each direction, as tab-separated values or as JSON lines.

    Lines, the sentences of a line and the tokens of a line are counted from 0; start and end are character offsets in
    the line. If in_vocabulary is 0, the bits are those of <UNK>. The context of a token is its sentence, unless
    --state is carry.
    """
    from torchelmo.lm.predict import language_model
    from torchelmo.lm.predict import surprisal as measure

    model, files = _model_and_files(arguments, model)
    bilm = load_bilm(model, device, threads)
    language_model(bilm)  # a missing softmax is an error before the table starts
    table = Table(
        ["file", "line", "sentence", "position", "start", "end", "token", "forward", "backward", "in_vocabulary"],
        as_json,
    )
    places: deque[_Place] = deque()

    def sentences() -> Iterator[list[str]]:
        for place in _places(files, language_of(bilm, lang, pretokenized)):
            places.append(place)
            yield [token.text for token in place.tokens]

    with _progress_of("surprisal") as advance:
        for result in measure(bilm, sentences(), state=state, batch_tokens=batch_tokens):
            place = places.popleft()
            bits = [[None] * len(place.tokens) if x is None else x.tolist() for x in (result.forward, result.backward)]
            for i, (token, forward, backward) in enumerate(zip(place.tokens, *bits)):
                table.row(
                    *place.columns(i), token.text, _rounded(forward), _rounded(backward), int(result.in_vocabulary[i])
                )
            table.print()
            advance(len(place.tokens))
    table.end(files)


def substitutes(
    arguments: ModelAndTexts,
    model: Model = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Number of words for each place.")] = 10,
    word: Annotated[
        list[str] | None, typer.Option(help="Only for places with this word, as it is written; can be repeated.")
    ] = None,
    lang: Lang = None,
    pretokenized: Pretokenized = False,
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Print the words that both directions expect at each place, as tab-separated values or as JSON lines.

    The probability is the product of both directions over all words of the vocabulary, normalized to sum to 1. The
    word itself may be among them. Lines, sentences and tokens are counted as by `torchelmo surprisal`.
    """
    from torchelmo.lm.predict import language_model
    from torchelmo.lm.predict import substitutes as expect

    model, files = _model_and_files(arguments, model)
    bilm = load_bilm(model, device, threads)
    language_model(bilm)  # a missing softmax is an error before the table starts
    table = Table([*_PLACE, "token", "rank", "substitute", "probability"], as_json)
    with _progress_of("substitutes") as advance:
        for place in _places(files, language_of(bilm, lang, pretokenized)):
            tokens = [token.text for token in place.tokens]
            positions = [i for i, token in enumerate(tokens) if not word or token in word]
            for i, found in zip(positions, expect(bilm, tokens, positions, top=top)):
                for rank, (other, p) in enumerate(found, 1):
                    table.row(*place.columns(i), tokens[i], rank, other, float(f"{p:.6g}"))
            table.print()
            advance(len(tokens))
    table.end(files, f"the word{'s' if word and len(word) > 1 else ''} {', '.join(word)}" if word else "text")


_PLACE = ("file", "line", "sentence", "position", "start", "end")


class _Place(NamedTuple):
    """A sentence and its position in the input."""

    file: str
    line: int
    sentence: int  # its number in the line
    first: int  # the position of its first token in the line
    tokens: "list[Token]"

    def columns(self, i: int) -> tuple[str, int, int, int, int, int]:
        """Return the columns _PLACE of token number `i`."""
        return self.file, self.line, self.sentence, self.first + i, self.tokens[i].start, self.tokens[i].end


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _model_and_files(arguments: list[str], model: str | None) -> tuple[str | None, list[str]]:
    from torchelmo.lm.preparation import expand

    model, texts = split_model_and_texts(arguments, model)
    return model, expand(texts)


@contextlib.contextmanager
def _progress_of(what: str) -> Iterator[Any]:
    from torchelmo.progress import progress

    with progress(what, unit="tokens") as advance:
        yield advance


def _sentences(file: str, lang: str | None) -> Iterator[list[str]]:
    if Path(file).is_dir():
        from torchelmo.lm.corpus import Corpus

        return Corpus(file, "heldout").sentences()
    from torchelmo.text.reading import read_sentences

    return read_sentences(file, lang)


def _places(files: Iterable[str], lang: str | None) -> Iterator[_Place]:
    """Yield the sentences of the files; `lang` is None for text that is already tokenized."""
    from torchelmo.files import read_lines
    from torchelmo.text.tokenize import align, tokenizer_for

    for file in files:
        for number, text in enumerate(read_lines(file)):
            if lang is None:
                sentences = align([words], text) if (words := text.split()) else []
            else:
                sentences = tokenizer_for(lang).spans(text)
            first = 0
            for index, tokens in enumerate(sentences):
                yield _Place(source_name(file), number, index, first, tokens)
                first += len(tokens)


def _describe_perplexity(found: "Perplexity") -> str:
    values = {"forward": found.forward, "backward": found.backward, "average": found.average}
    each = ", ".join(f"{name} {value:.2f}" for name, value in values.items() if value is not None)
    return f"perplexity {each}; {count(found.n_tokens, 'tokens')}, {found.oov_rate:.2%} outside the vocabulary"
