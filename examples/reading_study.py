"""Add surprisals to a table of words, as a reading study needs it, and plot them.

python examples/reading_study.py [WORDS.tsv [WORD_COLUMN [GROUP_COLUMN]]]

The table has one word per row, as the reader saw it. Default: a short story in the layout of the Natural Stories
corpus, with the columns word, zone and item. Writes surprisal.tsv and surprisal.png to the current folder.
"""

import csv
import sys
from pathlib import Path

from matplotlib.figure import Figure

from torchelmo import load
from torchelmo.lm.words import surprisal_table

STORY = """The old man walked slowly down to the river. He sat on a stone and counted the boats. The last boat that the
children saw sank at once. Nobody on the shore could help."""


def main() -> None:
    """Read a table, add columns, write a table and a plot."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else write_story(Path("story.tok"))
    word = sys.argv[2] if len(sys.argv) > 2 else "word"
    group = sys.argv[3] if len(sys.argv) > 3 else "item"
    columns, rows = surprisal_table(load(), path, word, group=group, state="carry", spillover=1)
    table = [dict(zip(columns, row)) for row in rows]
    with Path("surprisal.tsv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)

    shown = table[:40]
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    axes = figure.subplots()
    places = range(len(shown))
    axes.plot(places, [row["forward"] for row in shown], marker="o", label="given the words before")
    axes.plot(places, [row["backward"] for row in shown], marker="x", alpha=0.6, label="given the words after")
    axes.set_xticks(places, [row[word] for row in shown], rotation=70)
    axes.set_ylabel("surprisal (bits)")
    axes.legend()
    figure.savefig("surprisal.png", dpi=110)
    print(f"surprisal.tsv: {len(table)} words; surprisal.png: the first {len(shown)} of them")


def write_story(path: Path) -> Path:
    """Write the story with one word per row."""
    rows = [f"{word}\t{zone}\t1\n" for zone, word in enumerate(STORY.split(), 1)]
    path.write_text("word\tzone\titem\n" + "".join(rows), encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
