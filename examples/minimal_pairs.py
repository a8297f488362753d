"""Measure and plot how many minimal pairs a model gets right, by phenomenon and direction.

python examples/minimal_pairs.py [PAIRS.jsonl [MODEL]]

The file is in the format of BLiMP. Default: a few pairs of English agreement. Writes pairs.png to the current folder.
"""

import sys

from matplotlib.figure import Figure

from torchelmo import load
from torchelmo.lm.pairs import MinimalPair, judge_pairs, measure_accuracy, read_pairs

PAIRS = [
    MinimalPair("The boy likes the house.", "The boy like the house.", "verb"),
    MinimalPair("The women know the road.", "The women knows the road.", "verb"),
    MinimalPair("The ships near the city are old.", "The ships near the city is old.", "distractor"),
    MinimalPair("The letter with the pictures is new.", "The letter with the pictures are new.", "distractor"),
    MinimalPair("He read these books.", "He read these book.", "demonstrative"),
    MinimalPair("She knows that man.", "She knows that men.", "demonstrative"),
]


def main() -> None:
    """Judge the pairs, print the accuracy and plot it."""
    pairs = read_pairs(sys.argv[1]) if len(sys.argv) > 1 else iter(PAIRS)
    bilm = load(sys.argv[2] if len(sys.argv) > 2 else None)
    accuracy = measure_accuracy(judge_pairs(bilm, pairs))
    names = list(accuracy)
    directions = list(accuracy[names[0]].n_correct)

    figure = Figure(figsize=(7, 1 + 0.4 * len(names)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(directions)
    for i, direction in enumerate(directions):
        shares = [accuracy[name].share(direction) for name in names]
        axes.barh([place + i * height for place in range(len(names))], shares, height, label=direction)
        for name, share in zip(names, shares):
            print(f"{name:<36}{direction:<10}{share:6.1%} of {accuracy[name].n_pairs} pairs")
    axes.axvline(0.5, color="gray", linestyle=":")
    axes.set_yticks([place + height for place in range(len(names))], [name.replace("_", " ") for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("share of correct pairs (dotted: chance)")
    figure.legend(loc="outside upper right", ncols=len(directions))
    figure.savefig("pairs.png", dpi=110)
    print("pairs.png: the same as a plot")


if __name__ == "__main__":
    main()
