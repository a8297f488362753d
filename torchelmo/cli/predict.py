"""The commands perplexity and substitutes, and the sentences of text files for commands that use a language model."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from torchelmo.cli.exit import Output, Table, check_table_output, echo, open_output
from torchelmo.cli.options import (
    AsJson,
    BatchTokens,
    Device,
    Lang,
    Model,
    ModelAndTexts,
    Overwrite,
    Pretokenized,
    Resume,
    State,
    TableOut,
    Threads,
    language_of,
    load_bilm,
    split_model_and_texts,
)
from torchelmo.errors import InputError, MissingFileError, WrongCallError
from torchelmo.files import source_name
from torchelmo.progress import count, progress

if TYPE_CHECKING:
    from torchelmo import BiLM
    from torchelmo.lm.cloze import PseudoPerplexity, Substitute
    from torchelmo.lm.predict import Perplexity
    from torchelmo.text.tokenize import Token


def perplexity(
    arguments: ModelAndTexts,
    model: Model = None,
    lang: Lang = None,
    pretokenized: Pretokenized = False,
    state: State = "reset",
    pseudo: Annotated[
        bool,
        typer.Option(
            "--pseudo",
            help="Measure pseudo-perplexity: predict every token from all others of its sentence. For any model, and "
            "the only choice for a masked one.",
        ),
    ] = False,
    batch_tokens: BatchTokens = 2048,
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure the exact perplexity of a text: forward, backward, and their mean.

    TEXT may also be a folder that `torchelmo prepare` wrote, for its held-out part. Targets are all tokens and the end
    of each sentence. A word outside the vocabulary counts as <UNK>, so perplexities can only be compared for the same
    vocabulary and text. With --pseudo, every token is predicted from all others of its sentence, by a masked model with
    the token hidden, one at a time.
    """
    from torchelmo.formats.load import DEFAULT_MODEL
    from torchelmo.lm import cloze, predict
    from torchelmo.lm.preparation import expand

    if pseudo and state != "reset":
        raise WrongCallError("--pseudo: expected --state reset, since a token is predicted from its sentence alone.")
    model, texts = split_model_and_texts(arguments, model)
    files = expand(texts, folders=True)
    bilm = load_bilm(model, device, threads)
    predict.language_model(bilm, from_both_sides=pseudo)  # an error of the model, not of a text
    language = language_of(bilm, lang, pretokenized)
    found: dict[str, Any] = {}
    for file in files:
        name = source_name(file)
        with progress(f"perplexity of {name}", unit="tokens") as advance:
            try:
                sentences = _sentences(file, language)
                if pseudo:
                    found[name] = cloze.pseudo_perplexity(bilm, sentences, batch_tokens=batch_tokens, progress=advance)
                else:
                    found[name] = predict.perplexity(
                        bilm, sentences, state=state, batch_tokens=batch_tokens, progress=advance
                    )
            except MissingFileError:
                raise
            except InputError as error:
                raise error if name in str(error) else InputError(f"{name}: {error}") from error
    total = (cloze if pseudo else predict).combine(list(found.values()))
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
    out: TableOut = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Print the words that both directions expect at each place, as tab-separated values or as JSON lines.

    The word itself is not among them. They are ranked by p(w | words before) · p(w | words after) / p(w), or by a
    masked model with the word hidden, normalized to sum to 1 over the vocabulary. Lines, sentences and tokens are
    counted as by `torchelmo surprisal`.
    """
    from torchelmo.analysis.usages import read_targets
    from torchelmo.lm.cloze import substitutes as expect
    from torchelmo.lm.predict import language_model

    if targets is not None and word:
        raise WrongCallError("--targets: expected either --targets or --word, got both.")
    model, files = model_and_files(arguments, model)
    if not check_table_output(out, "substitutes", files, resume=resume, overwrite=overwrite):
        return
    forms = None if targets is None else read_targets(targets)
    bilm = load_bilm(model, device, threads)
    language_model(bilm, from_both_sides=True)  # a missing softmax is an error before the table starts
    language = language_of(bilm, lang, pretokenized)
    wanted = forms or word
    settings = {"fingerprint": bilm.fingerprint(), "top": top, "word": word, "targets": forms, "lang": language}
    with open_output(
        out, "substitutes", files, {**settings, "json": as_json}, resume=resume, unit="sentences"
    ) as output:
        table = Table([*PLACE, "token", "rank", "substitute", "probability"], as_json, output=output)
        n_done, n_found = (int(output.state.get(name, 0)) for name in ("sentences", "found"))
        with progress_to("substitutes", count_lines(files), output, "lines") as reach:
            for place in islice(places_of(files, language), n_done, None):
                tokens = [token.text for token in place.tokens]
                positions = [i for i, token in enumerate(tokens) if not wanted or token in wanted]
                found = expect(bilm, tokens, positions, top=top)
                if forms is not None:
                    output.write(_expectations(bilm, place, positions, found, forms, top))
                else:
                    for i, some in zip(positions, found):
                        for rank, (other, p) in enumerate(some, 1):
                            table.row(*place.columns(i), tokens[i], rank, other, float(f"{p:.6g}"))
                    table.print()
                n_done, n_found = n_done + 1, n_found + len(positions)
                reach(place.n_lines)
                output.commit(n_done, sentences=n_done, found=n_found, done=place.n_lines)
        if not n_found:
            named = f"the word{'s' if len(word) > 1 else ''} {', '.join(word)}" if word else "text"
            expected = named if forms is None else "a target word"
            raise InputError(f"{', '.join(map(source_name, files))}: expected {expected}, found none.")
    print_size(out, n_done, "sentences")


def _expectations(
    bilm: "BiLM",
    place: "Place",
    positions: list[int],
    joint: "list[list[Substitute]]",
    forms: dict[str, str],
    top: int,
) -> str:
    """Return a JSON line for each target: the words that each direction expects, with the keys of simple_elmo."""
    from torchelmo.lm.cloze import substitutes_by_direction

    tokens = [token.text for token in place.tokens]
    lines = []
    for i, both, each in zip(positions, joint, substitutes_by_direction(bilm, tokens, positions, top=top)):
        record: dict[str, Any] = dict(zip(PLACE, place.columns(i)))
        record |= {"lemma": forms[tokens[i]], "token": tokens[i], "candidate_words": [one.word for one in both]}
        for direction, (ids, words, log_p) in each.items():
            values = [round(value, 4) for value in log_p]
            record[direction] = {"candidates": ids, "candidate_words": words, "logp": values}
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    return "".join(lines)


PLACE = ("file", "line", "sentence", "position", "start", "end")


class Place(NamedTuple):
    """A sentence and its position in the input."""

    file: str
    line: int
    sentence: int  # its number in the line
    first: int  # the position of its first token in the line
    tokens: "list[Token]"
    n_lines: int  # that were read so far, of all files

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
def progress_to(what: str, total: int | None, output: Output, unit: str) -> Iterator[Callable[[int], None]]:
    """Show the progress of a command, from `done` in the state of its output.

    Yields:
        A function to call with the number of units that are done since the beginning.
    """
    reached = int(output.state.get("done", 0))
    with progress(what, total, done=reached, unit=unit) as advance:

        def reach(n: int) -> None:
            nonlocal reached
            advance(n - reached)
            reached = n

        yield reach
        if total is not None and reached < total:
            reach(total)  # blank lines at the end


def count_lines(files: Iterable[str]) -> int | None:
    """Return the number of lines, or None for text that can be read only once. Text with errors is found now."""
    from torchelmo.files import read_lines

    if not all(Path(file).is_file() for file in files):
        return None
    return sum(1 for file in files for _ in read_lines(file))


def print_size(out: Path | None, n: int, unit: str) -> None:
    """Print what was written to --out."""
    if out is not None:
        echo(f"{out}: {count(n, unit)}")


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

    n_lines = 0
    for file in files:
        for number, text in enumerate(read_lines(file), 1):
            n_lines += 1
            if lang is None:
                sentences = align([words], text) if (words := text.split()) else []
            else:
                sentences = tokenizer_for(lang).spans(text)
            first = 0
            for index, tokens in enumerate(sentences):
                yield Place(source_name(file), number, index, first, tokens, n_lines)
                first += len(tokens)


def _describe_perplexity(found: "Perplexity | PseudoPerplexity") -> str:
    values = found._asdict()
    each = [f"{name} {value:.2f}" for name in ("forward", "backward", "average") if (value := values.get(name))]
    what = f"perplexity {', '.join(each)}" if each else f"pseudo-perplexity {values['pseudo_perplexity']:.2f}"
    return f"{what}; {count(found.n_tokens, 'tokens')}, {found.oov_rate:.2%} outside the vocabulary"
