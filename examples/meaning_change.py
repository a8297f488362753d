"""Find the word whose meaning differs between two texts, and plot it.

python examples/meaning_change.py [OLD.txt NEW.txt TARGETS.txt WORD]

Default: two small texts in which animals run about, except that "deer" is the name of a document in the second one.
Writes old.npz, new.npz, ranking.png (all words) and usages.png (the usages of one word) to the current folder.
"""

import sys
from pathlib import Path

from torchelmo import Elmo, load
from torchelmo.analysis import UsageFile, collect_usages, measure_change, read_targets
from torchelmo.analysis.change import plot_ranking, plot_usages

WORDS = "horse dog cat cow sheep pig goat duck wolf fox bear lion deer rabbit bird".split()
ANIMALS = """The {} ran across the field and into the wood.
A farmer fed the {} in the yard every morning.
The {} slept under the old tree.
The hungry {} ate from her hand."""
PAPERS = """The lawyer read the {} and signed the last page.
He wrote a {} to the government about the new law.
The {} was published in the newspaper.
According to the {} the company lost its money."""
OPENINGS = {"old": ["", "Then ", "Soon "], "new": ["Now ", "At last ", "Again "]}


def main() -> None:
    """Collect the usages in both texts, rank the words and plot."""
    texts = sys.argv[1:3] or [write_text("old", ANIMALS), write_text("new", PAPERS)]
    targets = read_targets(sys.argv[3]) if len(sys.argv) > 3 else {word: word for word in WORDS}
    word = sys.argv[4] if len(sys.argv) > 4 else "deer"
    elmo = Elmo(load()).eval()
    for text, out in zip(texts, ("old.npz", "new.npz")):
        collect_usages(elmo, [text], targets, out, overwrite=True)
    with UsageFile("old.npz") as old, UsageFile("new.npz") as new:
        found = measure_change(old, new, old.words, method="prt")
        plot_ranking(found, "ranking.png", method="prt")
        plot_usages(old[word], new[word], "usages.png", title=f"usages of “{word}”", names=("old", "new"))
    for change in found[:5]:
        print(f"{change.word:<12}{change.score:.3f}   {change.n_first} and {change.n_second} usages")


def write_text(period: str, frames_of_deer: str) -> str:
    """Write a text of one period, and return its name."""
    lines = []
    for word in WORDS:
        for frame in (frames_of_deer if word == "deer" else ANIMALS).splitlines():
            lines += [opening + frame.format(word) for opening in OPENINGS[period]]
    Path(f"{period}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"{period}.txt"


if __name__ == "__main__":
    main()
