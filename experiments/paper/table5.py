"""Table 5 of the paper: word sense disambiguation with each layer.

    python experiments/paper/table5.py experiments/paper/table5.toml --out runs/paper/table5 [--model MODEL]

A sense is the mean of its vectors in the training data (the method of the paper), or its nearest usages vote.
"""

import itertools
import time

from results import Settings, compare_pairs, run_analysis

import torchelmo
from torchelmo.analysis import disambiguate, read_senses, read_tagged
from torchelmo.analysis.senses import SenseInventory, TaggedSentence
from torchelmo.progress import progress


def run(spec: Settings, elmo: torchelmo.Elmo) -> Settings:
    """Return the F1 of each layer and baseline on both tests with both methods, and the claims."""
    start = time.perf_counter()
    senses, semcor = read_senses(spec["senses"]), list(read_tagged(spec["train"]))
    n_train, n_test = (round(len(semcor) * spec[key]) for key in ("train_share", "heldout_share"))
    tests = {
        "SemEval-2007": (semcor, list(read_tagged(spec["test"], spec["keys"]))),
        "SemCor": (semcor[:n_train], semcor[len(semcor) - n_test :]),
    }
    methods = {"sense means": None, "nearest neighbors": spec["neighbors"]}
    names = ["first sense", "most frequent sense", *(f"layer {i}" for i in range(elmo.bilm.config.n_layers + 1))]
    rows, claims, papers = [], [], {row["name"]: row.get("paper", "") for row in spec["rows"]}
    for (test, (train, words)), (method, n) in itertools.product(tests.items(), methods.items()):
        row = f"{test}, {method}"
        if row not in papers:
            continue
        f1, correct = score(elmo, train, words, senses, n, row)
        n_words = len(next(iter(correct.values()), []))
        rows.append([row, f"{n_words:,}", *(f1[name] for name in names), papers.get(row, "")])
        for claim in spec["claims"]:
            better, than = correct[claim["better"]], correct[claim["than"]]
            claims.append(compare_pairs(claim["text"], row, better, than, "words"))
    head = ["test", "words", *names, "in the paper"]
    minutes = (time.perf_counter() - start) / 60
    tables = [{"title": "", "head": head, "rows": rows}]
    return {"title": spec["title"], "tables": tables, "claims": claims, "runs": 0, "missing": 0, "minutes": minutes}


def score(
    elmo: torchelmo.Elmo,
    train: list[TaggedSentence],
    test: list[TaggedSentence],
    senses: SenseInventory,
    neighbors: int | None,
    name: str,
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return F1 by method, and for every test word 100 if the answer is correct and 0 if not."""
    with progress(name) as advance:
        found = disambiguate(elmo, train, test, senses, neighbours=neighbors, progress=advance)
    counts = {"first sense": found.first_sense, "most frequent sense": found.most_frequent}
    counts |= {f"layer {layer}": of_layer for layer, of_layer in found.layers.items()}
    by_method = zip(*found.correct) if found.correct else [()] * len(counts)
    correct = {name: [100.0 * one for one in column] for name, column in zip(counts, by_method)}
    return {name: one.f1 for name, one in counts.items()}, correct


if __name__ == "__main__":
    run_analysis(__doc__, run)
