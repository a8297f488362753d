"""Choose the layers and the pooling of ELMo vectors for a classifier of scikit-learn, by cross-validation.

python examples/sklearn_search.py [TRAIN.tsv DEV.tsv]

A line of a file is a label, a tab and a text. Default: examples/data/topics-train.tsv and topics-dev.tsv. Needs
scikit-learn: pip install 'torchelmo[sklearn]'
"""

import sys
from pathlib import Path

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

from torchelmo.integrations.sklearn import ElmoVectorizer

DATA = Path(__file__).parent / "data"


def read(path: Path) -> tuple[list[str], list[str]]:
    """Return the texts and the labels of a file."""
    rows = [line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines()]
    return [text for _, text in rows], [label for label, _ in rows]


def main() -> None:
    """Search, and print the accuracy of each choice and of the best one on the dev data."""
    paths = [Path(name) for name in sys.argv[1:]] or [DATA / "topics-train.tsv", DATA / "topics-dev.tsv"]
    (texts, labels), (dev_texts, dev_labels) = map(read, paths)
    model = Pipeline([("elmo", ElmoVectorizer()), ("classifier", LogisticRegression(max_iter=1000))])
    grid = {"elmo__layers": [0, "average", "top"], "elmo__pooling": ["mean", "max"]}
    search = GridSearchCV(model, grid, cv=3).fit(texts, labels)
    for choice, accuracy in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"]):
        print(f"layers {choice['elmo__layers']!s:<8} pooling {choice['elmo__pooling']:<5} accuracy {accuracy:.2f}")
    print(f"on dev, with the best choice: {search.score(dev_texts, dev_labels):.2f}")


if __name__ == "__main__":
    main()
