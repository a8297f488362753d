"""Measure sentence vectors on similarity tasks: what `SentenceEncoder.fit` brings, by layer and pooling.

    python -m benchmarks.sentences tasks --glove glove.6B.50d.100k.txt.xz

TASKS contains snli_small and squad_small (train and dev, in the formats of SNLI and SQuAD 1.1). There are three tasks,
each on the dev part:

premise     a hypothesis that is entailed finds its premise among all premises (accuracy, %)
relation    Spearman correlation (× 100) of the cosine with entailment > neutral > contradiction
paragraph   a question finds its paragraph among those of its article (accuracy, %)

The mean and the components are computed from training texts of the same data, a random sample for each seed.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.common import print_header
from torchelmo import Elmo
from torchelmo.files import read_lines
from torchelmo.sentences import Pooling, find_common, pool_tokens, remove_common
from torchelmo.text.tokenize import Tokenizer

Array = npt.NDArray[np.float32]
Encode = Callable[[list[str]], Array]
ENCODERS: tuple[tuple[int | str, Pooling], ...] = (
    ("average", "mean"),
    ("average", "max"),
    (0, "mean"),
    (1, "mean"),
    ("top", "mean"),
    ("top", "ends"),
)
REMOVED = (None, 0, 1, 2, 4, 8)  # components; None leaves the vectors as they are
_GRADES = {"entailment": 2, "neutral": 1, "contradiction": 0}


class Data(NamedTuple):
    """Texts to compare, and texts to fit on."""

    premises: list[str]
    hypotheses: list[str]
    labels: list[str]
    articles: list[tuple[list[str], list[tuple[str, int]]]]  # paragraphs; questions with the number of their paragraph
    fit_pairs: list[str]
    fit_articles: list[str]


def main() -> None:
    given = parse_arguments()
    data = read_data(given.tasks)
    n_questions = sum(len(questions) for _, questions in data.articles)
    print_header(
        f"{len(data.labels):,} pairs ({data.labels.count('entailment')} entailed), {n_questions:,} questions, "
        f"{given.texts:,} texts to fit on, seeds 1 to {given.seeds}; ± is the standard deviation over the seeds"
    )
    print("| vectors | removed | premise | relation | paragraph |\n|---|---|---|---|---|", flush=True)
    print(row("TF-IDF of words", "–", [tf_idf(data)]), flush=True)
    encoders = elmo_encoders(Elmo(given.model))
    if given.glove:
        encoders = {"GloVe, mean": remember(glove(given.glove)), **encoders}
    for name, encode in encoders.items():
        for n in REMOVED:
            seeds = [0] if n is None else list(range(1, given.seeds + 1))
            scores = [measure(encode, data, n, seed, given.texts) for seed in seeds]
            print(row(name, "–" if n is None else "mean" if n == 0 else f"mean, {n}", scores), flush=True)


def measure(encode: Encode, data: Data, removed: int | None, seed: int, n_texts: int) -> tuple[float, float, float]:
    """Return the scores of the three tasks."""

    def fitted(texts: list[str]) -> Callable[[Array], Array]:
        if removed is None:
            return lambda vectors: vectors
        chosen = np.random.default_rng(seed).choice(len(texts), size=min(n_texts, len(texts)), replace=False)
        vectors = encode([texts[i] for i in sorted(chosen)])
        mean, components = find_common(vectors, vectors.shape[1], removed)
        return lambda some: remove_common(some, mean, components)

    change = fitted(data.fit_pairs)
    premises, hypotheses = unit(change(encode(data.premises))), unit(change(encode(data.hypotheses)))
    change = fitted(data.fit_articles)
    articles = [
        (unit(change(encode(paragraphs))), unit(change(encode([question for question, _ in questions]))))
        for paragraphs, questions in data.articles
    ]
    return score(data, premises, hypotheses, articles)


def score(data: Data, premises: Any, hypotheses: Any, articles: list[tuple[Any, Any]]) -> tuple[float, float, float]:
    """Score unit vectors."""
    from scipy.stats import spearmanr

    names = sorted(set(data.premises))
    first = [data.premises.index(name) for name in names]
    entailed = [i for i, label in enumerate(data.labels) if label == "entailment"]
    nearest = np.argmax(hypotheses[entailed] @ premises[first].T, axis=1)
    premise = np.mean([names[place] == data.premises[i] for place, i in zip(nearest, entailed)])
    cosines = np.sum(premises * hypotheses, axis=1)
    relation = spearmanr(cosines, [_GRADES[label] for label in data.labels]).statistic
    right = [
        place == gold
        for (paragraphs, questions), (_, asked) in zip(articles, data.articles)
        for place, (_, gold) in zip(np.argmax(questions @ paragraphs.T, axis=1), asked)
    ]
    return 100 * float(premise), 100 * float(relation), 100 * float(np.mean(right))


def tf_idf(data: Data) -> tuple[float, float, float]:
    """Return the scores of weighted word counts, for comparison."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    pairs = TfidfVectorizer().fit(data.fit_pairs)
    texts = TfidfVectorizer().fit(data.fit_articles)
    articles = [
        (texts.transform(paragraphs).toarray(), texts.transform([question for question, _ in questions]).toarray())
        for paragraphs, questions in data.articles
    ]
    premises, hypotheses = pairs.transform(data.premises).toarray(), pairs.transform(data.hypotheses).toarray()
    return score(data, premises, hypotheses, articles)


def glove(path: Path) -> Encode:
    """Return an encoder: the mean of the GloVe vectors of the words in lower case."""
    table = {
        word: np.array(numbers, dtype=np.float32) for word, *numbers in (line.split(" ") for line in read_lines(path))
    }
    dim, tokenizer = len(next(iter(table.values()))), Tokenizer("en")

    def encode(texts: list[str]) -> Array:
        result = np.zeros((len(texts), dim), dtype=np.float32)
        for i, text in enumerate(texts):
            found = [table[token.lower()] for token in tokenizer.tokens(text) if token.lower() in table]
            if found:
                result[i] = np.mean(found, axis=0)
        return result

    return encode


def elmo_encoders(elmo: Elmo) -> dict[str, Encode]:
    """Return an encoder for each choice of layers and pooling. The biLM runs once for all of them."""
    n_layers, directions = elmo.bilm.config.n_layers + 1, elmo.bilm.config.directions
    known: dict[str, list[Array]] = {}  # the vectors of a text, in the order of ENCODERS

    def encoder(place: int) -> Encode:
        def encode(texts: list[str]) -> Array:
            new = sorted({text for text in texts if text not in known})
            for text, layers in zip(new, elmo.stream(new, "all")):
                chosen = [
                    layers.mean(axis=0) if one == "average" else layers[n_layers - 1 if one == "top" else int(one)]
                    for one, _ in ENCODERS
                ]
                known[text] = [
                    pool_tokens(vectors, pooling, 1, directions) for vectors, (_, pooling) in zip(chosen, ENCODERS)
                ]
            return np.stack([known[text][place] for text in texts])

        return encode

    names = [f"ELMo, {f'layer {one}' if isinstance(one, int) else one}, {pooling}" for one, pooling in ENCODERS]
    return {name: encoder(place) for place, name in enumerate(names)}


def remember(encode: Encode) -> Encode:
    """Return an encoder that keeps the vectors of all texts."""
    known: dict[str, Array] = {}

    def call(texts: list[str]) -> Array:
        new = sorted({text for text in texts if text not in known})
        known.update(zip(new, encode(new)))
        return np.stack([known[text] for text in texts])

    return call


def unit(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths == 0, 1, lengths), dtype=np.float32)


def row(name: str, removed: str, scores: list[tuple[float, float, float]]) -> str:
    cells = []
    for values in zip(*scores):
        spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
        cells.append(f"{np.mean(values):.1f}{spread}")
    return f"| {name} | {removed} | {' | '.join(cells)} |"


def read_data(tasks: Path) -> Data:
    pairs = {part: list(read_pairs(tasks / "snli_small" / f"{part}.jsonl")) for part in ("train", "dev")}
    squad = {part: read_articles(tasks / "squad_small" / f"{part}-v1.1.json") for part in ("train", "dev")}
    return Data(
        premises=[premise for premise, _, _ in pairs["dev"]],
        hypotheses=[hypothesis for _, hypothesis, _ in pairs["dev"]],
        labels=[label for _, _, label in pairs["dev"]],
        articles=squad["dev"],
        fit_pairs=sorted({text for pair in pairs["train"] for text in pair[:2]}),
        fit_articles=[text for paragraphs, questions in squad["train"] for text in (*paragraphs, *dict(questions))],
    )


def read_pairs(path: Path) -> Iterator[tuple[str, str, str]]:
    for line in read_lines(path):
        pair = json.loads(line)
        if pair["gold_label"] in _GRADES:
            yield pair["sentence1"], pair["sentence2"], pair["gold_label"]


def read_articles(path: Path) -> list[tuple[list[str], list[tuple[str, int]]]]:
    articles = []
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        paragraphs = [paragraph["context"] for paragraph in article["paragraphs"]]
        questions = [(qa["question"], i) for i, part in enumerate(article["paragraphs"]) for qa in part["qas"]]
        articles.append((paragraphs, questions))
    return articles


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, help="folder with snli_small and squad_small")
    parser.add_argument("--model", default="english-small", help="a model folder, or a name")
    parser.add_argument("--glove", type=Path, help="GloVe vectors, for comparison")
    parser.add_argument("--texts", type=int, default=2000, help="texts to fit on (default: 2000)")
    parser.add_argument("--seeds", type=int, default=3, help="number of samples of these texts (default: 3)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
