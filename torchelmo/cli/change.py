"""torchelmo analyse usages and change: how the meaning of words differs between two texts."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from torchelmo.cli.exit import Table, echo, log
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
from torchelmo.errors import InputError, WrongCallError
from torchelmo.progress import count
from torchelmo.unfinished import check_output


def usages(
    texts: Annotated[
        list[str],
        typer.Argument(metavar="CORPUS…", help="Text files (also .gz, .bz2, .xz), or uses.csv files of DWUG."),
    ],
    out: Annotated[Path, typer.Option(help="The file to write: .npz, or .parquet with the sentences.")],
    targets: Annotated[
        Path | None,
        typer.Option(help="The words to look for, one per line: word, or lemma,form,form. DWUG files need none."),
    ] = None,
    model: Model = None,
    layers: Annotated[
        str, typer.Option(metavar="LAYERS", help="top, average, sum, concat, or the index of a layer from 0.")
    ] = "top",
    max_usages: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="Take a random sample of N usages of each word.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample.")] = 0,
    ignore_case: Annotated[bool, typer.Option("--ignore-case", help="Find the words in any case.")] = False,
    grouping: Annotated[
        str | None, typer.Option(metavar="VALUE", help="Only uses of DWUG files with this grouping, the period.")
    ] = None,
    lang: Lang = None,
    pretokenized: Pretokenized = False,
    batch_tokens: BatchTokens = 2048,
    device: Device = "auto",
    threads: Threads = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Write the vectors of every usage of some words: an array (usages, dim) for each word.

    A text may have any size. A run that is interrupted leaves OUT.partial, never OUT.
    """
    from torchelmo.analysis.usage_files import KIND, SUFFIXES
    from torchelmo.analysis.usages import collect_usages, read_targets

    for text in texts:
        if text == "-":
            raise WrongCallError("-: expected text files. The text is read twice, so it cannot be standard input.")
        check_text(text)
    check_output(out, KIND, resume=resume, overwrite=overwrite, suffixes=SUFFIXES, inputs=texts)
    forms = None if targets is None else read_targets(targets)
    elmo = load_elmo(model, device, threads)
    log.info("usages: %s for %s", count(len(texts), "inputs"), out)
    done = collect_usages(
        elmo,
        texts,
        forms,
        out,
        layers=layers,
        lang=language_of(elmo.bilm, lang, pretokenized),
        ignore_case=ignore_case,
        grouping=grouping,
        max_usages=max_usages,
        seed=seed,
        batch_tokens=batch_tokens,
        resume=resume,
        overwrite=overwrite,
    )
    state = "already complete, " if done.already_complete else ""
    found = [n for n in done.counts.values() if n]
    echo(f"{out}: {state}{count(sum(found), 'usages')} of {count(len(found), 'words')}, {done.dim} numbers each")


def change(
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="The usages in the first text, from analyse usages.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND", help="The usages in the second text.")],
    method: Annotated[
        Literal["prt", "apd", "jsd"],
        typer.Option(help="prt: distance of the means; apd: mean distance of pairs; jsd: divergence of clusters."),
    ] = "prt",
    targets: Annotated[Path | None, typer.Option(help="Only these words, as for analyse usages.")] = None,
    gold: Annotated[
        Path | None,
        typer.Option(help="Annotated change, for a rank correlation: word TAB value, or the files of RuShiftEval."),
    ] = None,
    gold_column: Annotated[
        int, typer.Option(min=1, max=3, metavar="N", help="Which pair of periods of a RuShiftEval file: 1, 2 or 3.")
    ] = 1,
    min_usages: Annotated[
        int, typer.Option("--min", min=1, metavar="N", help="Leave out words with fewer usages in one of the texts.")
    ] = 3,
    clusters: Annotated[int, typer.Option(min=2, metavar="K", help="Number of clusters for jsd.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the clusters.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Also write word TAB score without a header, as SemEval's scorer reads it.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Plot the ranking to this .png, .svg or .pdf; with --word, that word's usages.")
    ] = None,
    word: Annotated[
        str | None, typer.Option(help="With --plot: show the usages of this word in both texts, by PCA.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rank words by how much their usages differ between two texts, the most changed first.

    Scores are distances, so a higher score is more change. With --gold, Spearman's rank correlation follows on standard
    error, or as the last line of --json.
    """
    from torchelmo.analysis.change import (
        compare_with_gold,
        measure_change,
        plot_ranking,
        plot_usages,
        read_gold,
    )
    from torchelmo.analysis.usage_files import UsageFile
    from torchelmo.analysis.usages import read_targets
    from torchelmo.files import atomic_write
    from torchelmo.progress import progress

    if word is not None and plot is None:
        raise WrongCallError("--word: expected --plot, the file for the plot of its usages, with it.")
    annotated = None if gold is None else read_gold(gold, gold_column)
    with UsageFile(first) as old, UsageFile(second) as new:
        words = old.words if targets is None else list(dict.fromkeys(read_targets(targets).values()))
        if word is not None and not (word in old and word in new):
            raise InputError(f"{word}: expected a word that both {first} and {second} have.")
        with progress("change", len(words), unit="words") as advance:
            found = measure_change(
                old,
                new,
                words,
                method=method,
                min_usages=min_usages,
                n_clusters=clusters,
                seed=seed,
                progress=advance,
            )
        if plot is not None and word is not None:
            plot_usages(old[word], new[word], plot, title=word, names=(first.stem, second.stem))
        elif plot is not None:
            plot_ranking(found, plot, method=method)
    if out is not None:
        with atomic_write(out) as temporary:
            temporary.write_text("".join(f"{one.word}\t{one.score}\n" for one in found), encoding="utf-8")
    table = Table(["word", "score", "usages_first", "usages_second"], as_json)
    for one in found:
        table.row(one.word, round(one.score, 6), one.n_first, one.n_second)
    table.print()
    if annotated is not None:
        agreement = compare_with_gold(found, annotated)
        if as_json:
            echo(json.dumps({"spearman": round(agreement.spearman, 4), "words": agreement.n_words}))
        else:
            log.info(
                "Spearman's rank correlation with %s: %.4f (%s)",
                gold,
                agreement.spearman,
                count(agreement.n_words, "words"),
            )
