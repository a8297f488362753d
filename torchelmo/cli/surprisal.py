"""The commands surprisal and minimal-pairs: how probable tokens, words and sentences are."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from torchelmo.cli.exit import Table
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
)
from torchelmo.cli.predict import PLACE, Place, model_and_files, places_of, progress_of
from torchelmo.errors import WrongCallError

if TYPE_CHECKING:
    from torchelmo import BiLM
    from torchelmo.lm.pairs import PairScore
    from torchelmo.lm.predict import Scores

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
    as_json: AsJson = False,
) -> None:
    """Print −log2 p of every token, in each direction, as tab-separated values or as JSON lines.

    Lines are counted from 1, the sentences and the tokens of a line from 0; start and end are character offsets in the
    line. If in_vocabulary is 0, the bits are those of <UNK>. The context of a token is its sentence, unless --state
    is carry. With --words, the rows are those of a table, and the bits of the tokens of a word are added.
    """
    from torchelmo.lm.predict import language_model, scores

    given = {"--group": group, "--sentence": sentence, "--spillover": spillover, "--frequencies": frequencies}
    if words is None and (extra := [option for option, value in given.items() if value]):
        raise WrongCallError(f"{extra[0]}: expected --words, the column of the words of a table, with it.")
    if words is not None and (format != "ours" or end_mark):
        raise WrongCallError("--words: expected no --format and no --end-mark, since rows are those of the table.")
    model, files = model_and_files(arguments, model)
    bilm = load_bilm(model, device, threads)
    language_model(bilm)  # a missing softmax is an error before the table starts
    directions = _choose_directions(bilm, direction, one=format != "ours")
    language = language_of(bilm, lang, pretokenized)
    if words is not None:
        from torchelmo.lm.words import Frequencies, surprisal_table

        counts = None if frequencies is None else Frequencies(frequencies)
        table: Table | None = None
        with progress_of("surprisal", "words") as advance:
            for file in files:
                columns, found = surprisal_table(
                    bilm,
                    file,
                    words,
                    group=group,
                    sentence=sentence,
                    state=state,
                    lang=language,
                    directions=directions,
                    rank=rank,
                    entropy=entropy,
                    frequencies=counts,
                    spillover=spillover,
                    batch_tokens=batch_tokens,
                    progress=advance,
                )
                if table is None or table.columns != columns:  # files with the same columns become one table
                    table = Table(columns, as_json)
                for number, row in enumerate(found):
                    table.row(*row)
                    if number % 64 == 0:
                        table.print()
                table.print()
        return
    rows = _TokenRows(format, directions, rank=rank, entropy=entropy, as_json=as_json)
    if end_mark is None:
        end_mark = format == "lm-zoo"
    places: deque[Place] = deque()

    def sentences() -> Iterator[list[str]]:
        for place in places_of(files, language):
            places.append(place)
            yield [token.text for token in place.tokens]

    with progress_of("surprisal") as advance:
        for result in scores(bilm, sentences(), state=state, batch_tokens=batch_tokens, rank=rank, entropy=entropy):
            place = places.popleft()
            rows.add(place, result, end_mark=end_mark)
            advance(len(place.tokens))
    rows.table.end(files)


class _TokenRows:
    """The rows of `surprisal`, in one of its formats."""

    def __init__(self, format: str, directions: Sequence[str], *, rank: bool, entropy: bool, as_json: bool) -> None:
        self.format, self.directions, self.n_sentences = format, directions, 0
        self.parts = ["", *(["rank"] if rank else []), *(["entropy"] if entropy else [])]
        values = [f"{direction}_{part}".rstrip("_") for part in self.parts for direction in directions]
        columns = [*PLACE, "token", *values, "in_vocabulary"]
        if format == "lm-zoo":
            columns = ["sentence_id", "token_id", "token", "surprisal", *self.parts[1:]]
        elif format == "minicons":  # a pandas table without names
            columns = [str(i) for i in range(3 + len(self.parts))]
        self.table = Table(columns, as_json, separator=" " if format == "minicons" else "\t")

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
    as_json: AsJson = False,
) -> None:
    """Print the share of minimal pairs whose correct sentence is more probable, by phenomenon and direction.

    The probability of a sentence includes its end; "both" is the product of the directions. The column unknown counts
    the pairs that differ in a word outside the vocabulary, which is scored as <UNK>.
    """
    from torchelmo.lm.pairs import combine_accuracy, judge_pairs, measure_accuracy, read_pairs
    from torchelmo.lm.predict import language_model

    model, files = model_and_files(arguments, model)
    bilm = load_bilm(model, device, threads)
    language_model(bilm)
    language = language_of(bilm, lang, pretokenized)
    directions = [*bilm.config.directions, *(["both"] if len(bilm.config.directions) == 2 else [])]

    with progress_of("minimal-pairs", "pairs") as advance:

        def results() -> Iterator["PairScore"]:
            pairs = (pair for file in files for pair in read_pairs(file, by))
            for result in judge_pairs(bilm, pairs, lang=language, batch_tokens=batch_tokens):
                yield result
                advance(1)

        if each:
            names = [f"{kind}_{direction}" for direction in directions for kind in ("good", "bad")]
            table = Table(["phenomenon", "sentence_good", "sentence_bad", *names, "in_vocabulary"], as_json)
            for result in results():
                values = [
                    _rounded(scores[direction]) for direction in directions for scores in (result.good, result.bad)
                ]
                table.row(result.pair.phenomenon, *result.pair[:2], *values, int(result.in_vocabulary))
                table.print()
            table.end(files, "minimal pairs")
            return
        found = measure_accuracy(results())
    table = Table(["phenomenon", "pairs", *directions, "unknown"], as_json)
    if found:
        found["all"] = combine_accuracy(found.values())
    for name, one in found.items():
        table.row(name, one.n_pairs, *(_rounded(one.share(direction)) for direction in directions), one.n_unknown)
    table.print()
    table.end(files, "minimal pairs")


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
