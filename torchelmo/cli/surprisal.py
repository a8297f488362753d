"""The commands surprisal and minimal-pairs: how probable tokens, words and sentences are."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from torchelmo.cli.exit import Output, Table, check_table_output, open_output
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
)
from torchelmo.cli.predict import PLACE, Place, count_lines, model_and_files, places_of, print_size, progress_to
from torchelmo.errors import WrongCallError

if TYPE_CHECKING:
    from torchelmo import BiLM
    from torchelmo.lm.predict import Scores

SENTENCES_PER_BLOCK = 1024  # that are scored together: a run can be resumed between two blocks
DirectionOption = Annotated[
    Literal["forward", "backward", "both"] | None,
    typer.Option(
        "--direction",
        help="forward: given the tokens before; backward: given those after; both. Default: both, or forward for a "
        "format with one direction.",
    ),
]


def surprisal(
    arguments: ModelAndTexts,
    model: Model = None,
    lang: Lang = None,
    pretokenized: Pretokenized = False,
    state: State = "reset",
    format: Annotated[
        Literal["ours", "lm-zoo", "minicons"],
        typer.Option(help="The columns: ours, or those of lm-zoo or minicons, which have one direction."),
    ] = "ours",
    direction: DirectionOption = None,
    end_mark: Annotated[
        bool | None,
        typer.Option(
            "--end-mark/--no-end-mark",
            help="Add a row for the end of each sentence. Default: only for the format lm-zoo.",
        ),
    ] = None,
    rank: Annotated[
        bool, typer.Option("--rank", help="Add the rank of the token among all words of the vocabulary, from 1.")
    ] = False,
    entropy: Annotated[
        bool, typer.Option("--entropy", help="Add the entropy, in bits, of the distribution before the token is read.")
    ] = False,
    words: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="TEXT is a CSV or TSV table with one word per row, in this column."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="With --words: the story or item; contexts never cross its borders."),
    ] = None,
    sentence: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="With --words: the sentence. Default: found by the rules of the language."),
    ] = None,
    spillover: Annotated[
        int, typer.Option(min=0, metavar="N", help="With --words: add the values of the N words before each word.")
    ] = 0,
    frequencies: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="With --words: add log2 frequencies, from a folder that prepare wrote or a file of word TAB count.",
        ),
    ] = None,
    batch_tokens: BatchTokens = 2048,
    device: Device = "auto",
    threads: Threads = None,
    out: TableOut = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Print −log2 p of every token, in each direction, as tab-separated values or as JSON lines.

    Lines are counted from 1, the sentences and the tokens of a line from 0; start and end are character offsets in the
    line. If in_vocabulary is 0, the bits are those of <UNK>. The context of a token is its sentence, unless --state
    is carry. With --words, the rows are those of a table, and the bits of the tokens of a word are added. With --out, a
    run that is interrupted leaves OUT.partial, never OUT.
    """
    from torchelmo.lm.predict import language_model

    given = {"--group": group, "--sentence": sentence, "--spillover": spillover, "--frequencies": frequencies}
    if words is None and (extra := [option for option, value in given.items() if value]):
        raise WrongCallError(f"{extra[0]}: expected --words, the column of the words of a table, with it.")
    if words is not None and (format != "ours" or end_mark):
        raise WrongCallError("--words: expected no --format and no --end-mark, since rows are those of the table.")
    model, files = model_and_files(arguments, model)
    if not check_table_output(out, "surprisal", files, resume=resume, overwrite=overwrite):
        return
    bilm = load_bilm(model, device, threads)
    language_model(bilm)  # a missing softmax is an error before the table starts
    directions = _choose_directions(bilm, direction, one=format != "ours")
    language = language_of(bilm, lang, pretokenized)
    if end_mark is None:
        end_mark = format == "lm-zoo"
    options: dict[str, Any] = {"state": state, "batch_tokens": batch_tokens, "rank": rank, "entropy": entropy}
    settings = {**options, **given, "fingerprint": bilm.fingerprint(), "lang": language, "directions": directions}
    settings |= {"words": words, "format": format, "end_mark": end_mark, "json": as_json}
    unit = "lines" if words is None else "words"
    with open_output(out, "surprisal", files, settings, resume=resume, unit=unit) as output:
        if words is None:
            rows = _TokenRows(format, directions, output, rank=rank, entropy=entropy, as_json=as_json)
            n_rows = _print_tokens(bilm, files, language, rows, output, end_mark=end_mark, **options)
        else:
            options |= {"lang": language, "directions": directions, "spillover": spillover}
            columns = {"word": words, "group": group, "sentence": sentence}
            n_rows = _print_words(bilm, files, columns, frequencies, output, as_json=as_json, **options)
    print_size(out, n_rows, unit)


def _print_tokens(
    bilm: "BiLM",
    files: list[str],
    lang: str | None,
    rows: "_TokenRows",
    output: Output,
    *,
    end_mark: bool,
    **options: Any,
) -> int:
    """Print the surprisal of all tokens; return the number of lines."""
    from torchelmo.text.batching import windows

    n_lines = int(output.state.get("done", 0))
    places = islice(places_of(files, lang), rows.n_sentences, None)
    # Blocks are scored separately, and are the same in a resumed run: it gives the same numbers. A carried state is
    # lost with the process: a run with it can only be resumed from the beginning.
    carry = options["state"] == "carry"
    blocks: Iterable[Iterable[Place]] = [places] if carry else windows(places, SENTENCES_PER_BLOCK)
    with progress_to("surprisal", count_lines(files), output, "lines") as reach:
        for block in blocks:
            for place, result in _scored(bilm, block, options):
                rows.add(place, result, end_mark=end_mark)
                n_lines = place.n_lines
                reach(n_lines)
            if not carry:
                output.commit(n_lines, done=n_lines, sentences=rows.n_sentences)
    rows.table.end(files)
    return n_lines


def _scored(bilm: "BiLM", block: Iterable[Place], options: dict[str, Any]) -> Iterator[tuple[Place, "Scores"]]:
    from torchelmo.lm.predict import scores

    waiting: deque[Place] = deque()

    def sentences() -> Iterator[list[str]]:
        for place in block:
            waiting.append(place)
            yield [token.text for token in place.tokens]

    for result in scores(bilm, sentences(), **options):
        yield waiting.popleft(), result


def _print_words(
    bilm: "BiLM",
    files: list[str],
    columns: dict[str, Any],
    frequencies: str | None,
    output: Output,
    *,
    as_json: bool,
    **options: Any,
) -> int:
    """Print the tables of words with their surprisal; return the number of words."""
    from torchelmo.lm.words import Frequencies, TableState, surprisal_table

    counts = None if frequencies is None else Frequencies(frequencies)
    first, n_words = (int(output.state.get(name, 0)) for name in ("file", "done"))
    start = TableState(*output.state["table"]) if output.state else None
    table: Table | None = None
    with progress_to("surprisal", _count_rows(files), output, "words") as reach:
        for number, file in enumerate(files[first:], first):
            states: list[TableState] = []
            names, found = surprisal_table(
                bilm, file, **columns, **options, frequencies=counts, resume_from=start, checkpoint=states.append
            )
            if table is None or table.columns != names:  # files with the same columns become one table
                table = Table(names, as_json, output=output)
            for i, row in enumerate(found):
                if i % 64 == 0 or states:
                    table.print()
                if states:
                    output.commit(n_words, done=n_words, file=number, table=states.pop())
                table.row(*row)
                n_words += 1
                reach(n_words)
            table.print()
            start = None
    return n_words


def _count_rows(files: list[str]) -> int | None:
    """Return the number of rows of tables, or None if they can be read only once. Damaged tables are found now."""
    from torchelmo.text.tables import TableReader

    return sum(1 for file in files for _ in TableReader(file)) if all(Path(file).is_file() for file in files) else None


class _TokenRows:
    """The rows of `surprisal`, in one of its formats."""

    def __init__(
        self, format: str, directions: Sequence[str], output: Output, *, rank: bool, entropy: bool, as_json: bool
    ) -> None:
        self.format, self.directions = format, directions
        self.n_sentences = int(output.state.get("sentences", 0))
        self.parts = ["", *(["rank"] if rank else []), *(["entropy"] if entropy else [])]
        values = [f"{direction}_{part}".rstrip("_") for part in self.parts for direction in directions]
        columns = [*PLACE, "token", *values, "in_vocabulary"]
        if format == "lm-zoo":
            columns = ["sentence_id", "token_id", "token", "surprisal", *self.parts[1:]]
        elif format == "minicons":  # a pandas table without names
            columns = [str(i) for i in range(3 + len(self.parts))]
        self.table = Table(columns, as_json, separator=" " if format == "minicons" else "\t", output=output)

    def add(self, place: Place, found: "Scores", *, end_mark: bool) -> None:
        """Print the rows of a sentence."""
        self.n_sentences += 1
        n_tokens = len(place.tokens)
        columns = [self._column(found, part, direction) for part in self.parts for direction in self.directions]
        for i in range(n_tokens + end_mark):
            token = place.tokens[i].text if i < n_tokens else "</s>" if self.format == "lm-zoo" else "</S>"
            values = [column[i] for column in columns]
            if self.format == "ours":
                self.table.row(*place.columns(i), token, *values, int(i == n_tokens or found.known[i]))
            else:
                self.table.row(self.n_sentences, i + 1, token, *values)
        self.table.print()

    @staticmethod
    def _column(found: "Scores", part: str, direction: str) -> list[float | int]:
        """Return the values of the tokens and, after them, of the end, which is the first target backward."""
        if part == "rank":
            values = found.ranks[direction].tolist()
        elif part == "entropy":
            values = [_rounded(x / math.log(2)) for x in found.entropies[direction].tolist()]
        else:
            values = [_rounded(-x / math.log(2)) for x in getattr(found, direction).tolist()]
        return values if direction == "forward" else [*values[1:], values[0]]


def minimal_pairs(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] PAIRS…",
            help="The model (default: english-small), then files in the format of BLiMP (also .gz, .bz2, .xz), globs, "
            "or - for standard input: JSON lines with sentence_good and sentence_bad.",
        ),
    ],
    model: Model = None,
    by: Annotated[
        str, typer.Option(metavar="KEY", help="The key of the JSON lines that names the phenomenon.")
    ] = "UID",
    each: Annotated[
        bool, typer.Option("--each", help="Print the log-probabilities of each pair instead of the accuracy.")
    ] = False,
    lang: Lang = None,
    pretokenized: Pretokenized = False,
    batch_tokens: BatchTokens = 2048,
    device: Device = "auto",
    threads: Threads = None,
    out: TableOut = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Print the share of minimal pairs whose correct sentence is more probable, by phenomenon and direction.

    The probability of a sentence includes its end; "both" is the product of the directions. The column unknown counts
    the pairs that differ in a word outside the vocabulary, which is scored as <UNK>.
    """
    from torchelmo.files import read_lines
    from torchelmo.lm.pairs import Accuracy, combine_accuracy, judge_pairs, measure_accuracy, read_pairs
    from torchelmo.lm.predict import language_model
    from torchelmo.text.batching import windows

    model, files = model_and_files(arguments, model)
    if not check_table_output(out, "minimal-pairs", files, resume=resume, overwrite=overwrite):
        return
    bilm = load_bilm(model, device, threads)
    language_model(bilm)
    language = language_of(bilm, lang, pretokenized)
    directions = [*bilm.config.directions, *(["both"] if len(bilm.config.directions) == 2 else [])]
    settings = {"fingerprint": bilm.fingerprint(), "by": by, "each": each, "lang": language, "json": as_json}
    total = None
    if all(Path(file).is_file() for file in files):
        total = sum(1 for file in files for line in read_lines(file) if line.strip())
    with open_output(
        out, "minimal-pairs", files, {**settings, "batch_tokens": batch_tokens}, resume=resume, unit="pairs"
    ) as output:
        names = [f"{kind}_{direction}" for direction in directions for kind in ("good", "bad")]
        columns = ["phenomenon", "sentence_good", "sentence_bad", *names, "in_vocabulary"]
        table = Table(columns if each else ["phenomenon", "pairs", *directions, "unknown"], as_json, output=output)
        n_pairs = int(output.state.get("done", 0))
        found = {name: Accuracy(*counts) for name, counts in output.state.get("accuracy", {}).items()}
        pairs = islice((pair for file in files for pair in read_pairs(file, by)), n_pairs, None)
        with progress_to("minimal-pairs", total, output, "pairs") as reach:
            # Blocks are scored separately, and are the same in a resumed run: it gives the same numbers.
            for block in windows(pairs, SENTENCES_PER_BLOCK // 2):
                results = []
                for result in judge_pairs(bilm, block, lang=language, batch_tokens=batch_tokens):
                    results.append(result)
                    n_pairs += 1
                    reach(n_pairs)
                if each:
                    for result in results:
                        both = (result.good, result.bad)
                        values = [_rounded(scores[direction]) for direction in directions for scores in both]
                        table.row(result.pair.phenomenon, *result.pair[:2], *values, int(result.in_vocabulary))
                    table.print()
                else:
                    for name, one in measure_accuracy(results).items():
                        found[name] = combine_accuracy([found[name], one]) if name in found else one
                output.commit(n_pairs, done=n_pairs, accuracy=found)
        if not each and found:
            found["all"] = combine_accuracy(found.values())
            for name, one in found.items():
                shares = [_rounded(one.share(direction)) for direction in directions]
                table.row(name, one.n_pairs, *shares, one.n_unknown)
            table.print()
        table.end(files, "minimal pairs")
    print_size(out, n_pairs, "pairs")


def _rounded(value: float) -> float:
    return round(value, 4)


def _choose_directions(bilm: "BiLM", direction: str | None, *, one: bool) -> list[str]:
    """Return the directions of --direction: by default those of the model, or the first of them if `one`."""
    known = list(bilm.config.directions)
    if direction is None:
        return known[:1] if one else known
    wanted = ["forward", "backward"] if direction == "both" else [direction]
    if one and len(wanted) > 1:
        raise WrongCallError("--direction both: this format has one number per token. Use forward or backward.")
    if missing := [name for name in wanted if name not in known]:
        raise WrongCallError(f"--direction {direction}: the model has no {missing[0]} direction, only {known[0]}.")
    return wanted
