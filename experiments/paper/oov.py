"""Score the probes of ablations.toml separately on words inside and outside the vocabulary.

python experiments/paper/oov.py experiments/paper/oov.toml --runs runs/paper
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from results import Settings, compare_runs, read_toml, save_result

from torchelmo.tasks import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path, help="oov.toml")
    parser.add_argument("--runs", type=Path, required=True, help="the folder with one folder per experiment")
    given = parser.parse_args()
    spec = read_toml(given.settings)
    table = given.runs / spec["table"] / "table.json"
    if not table.exists():
        raise SystemExit(f"{table}: expected the results of the ablations. Run paper-{spec['table']} first.")
    found = json.loads(table.read_text(encoding="utf-8"))
    save_result(given.runs / "oov" / "result.json", run(spec, found))


def run(spec: Settings, found: Settings) -> Settings:
    """Return the accuracy of every column on both kinds of words, and the claims."""
    start = time.perf_counter()
    folders = {
        cell["column"]: [model_folder(run, spec) for run in cell["runs"]]
        for cell in found["cells"]
        if cell["row"] == spec["row"] and cell["column"] in spec["columns"]
    }
    missing = [name for name in spec["columns"] if name not in folders]
    if missing:
        raise SystemExit(f"Expected finished runs of {spec['row']!r} with {missing[0]!r}, found none.")
    known = vocabulary_of(folders[spec["columns"][1]][0])
    outside, inside = (row["name"] for row in spec["rows"])
    scores: dict[str, dict[str, list[float]]] = {outside: {}, inside: {}}
    n_words = {outside: 0, inside: 0}
    for column in spec["columns"]:
        for folder in folders[column]:
            right = {outside: [0, 0], inside: [0, 0]}
            for word, correct in answers(folder):
                count = right[inside if word in known else outside]
                count[0] += correct
                count[1] += 1
            for kind, (n_correct, n) in right.items():
                n_words[kind] = n
                scores[kind].setdefault(column, []).append(100.0 * n_correct / max(1, n))
    rows = [
        [kind, f"{n_words[kind]:,}", *(show(scores[kind][column]) for column in spec["columns"])]
        for kind in (outside, inside)
    ]
    claims = [
        compare_runs(claim["text"], kind, scores[kind][claim["better"]], scores[kind][claim["than"]])
        for claim in spec["claims"]
        for kind in claim["rows"]
    ]
    tables = [{"title": "", "head": ["words", "number", *spec["columns"]], "rows": rows}]
    minutes = (time.perf_counter() - start) / 60
    return {"title": spec["title"], "tables": tables, "claims": claims, "runs": 0, "missing": 0, "minutes": minutes}


def model_folder(run: Settings, spec: Settings) -> Path:
    """Return the folder of a run. Exit if it is not on this machine: a record has the score, but not the model."""
    folder = Path(run["folder"] or "no folder")
    if (folder / "task.json").is_file():
        return folder
    raise SystemExit(
        f"{folder}: expected the trained model of a run of {spec['row']!r}, found none. The probes are scored word by "
        "word, which needs their models; a record of a run has only its scores. Train them in another folder: "
        f"python experiments/paper/table.py {spec['table']} --rows {spec['row']} --out runs/oov --records "
        "runs/oov/runs.json. Then run this script with --runs runs/oov."
    )


def answers(folder: Path) -> list[tuple[str, bool]]:
    """Return every word of the dev data, and whether its tag is correct."""
    trained = load(folder)
    examples = trained.task.read(trained.config.dev, trained.data_options)
    predictions = trained.predict_examples(examples)
    return [
        (word, gold == tag)
        for example, tags in zip(examples, predictions)
        for word, gold, tag in zip(example.tokens, example.tags, tags)
    ]


def vocabulary_of(folder: Path) -> set[str]:
    """Return the words of the biLM in the folder of a run."""
    return set((folder / "bilm" / "vocab.txt").read_text(encoding="utf-8").split("\n"))


def show(scores: list[float]) -> str:
    deviation = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.2f}{deviation} ({len(scores)})"


if __name__ == "__main__":
    main()
