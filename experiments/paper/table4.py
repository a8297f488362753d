"""Table 4 of the paper: nearest neighbors of words, by static vectors and by the biLM in context.

    python experiments/paper/table4.py experiments/paper/table4.toml --out runs/paper/table4 [--model MODEL]

The usages are sentences of the texts that contain the word. How often the nearest usage has the same sense or part of
speech is counted on labeled sentences, and compared with the share that a random usage has.
"""

import itertools
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from results import Settings, compare_pairs, run_analysis

import torchelmo
from torchelmo.analysis.similarity import find_word, l2_normalize, neighbours
from torchelmo.files import read_lines
from torchelmo.tasks import pos
from torchelmo.tasks.words import read_vectors
from torchelmo.text.tokenize import tokenizer_for

SENSES = Path(__file__).parents[1] / "senses" / "words.tsv"
_CONTEXT = 7  # words on each side of a neighbor


class Usage(NamedTuple):
    word: str
    label: str  # its sense or part of speech
    tokens: Sequence[str]
    position: int


def run(spec: Settings, elmo: torchelmo.Elmo) -> Settings:
    """Return the neighbors of every query, the shares of neighbors with the same label, and the claims."""
    start = time.perf_counter()
    words = list(dict.fromkeys(query["word"] for query in spec["queries"]))
    static = static_neighbors(spec["vectors"], words, spec["n_words"])
    usages = [
        [show(query["sentence"].split(), query["word"]), "<br>".join(find_usages(spec, elmo, **query))]
        for query in spec["queries"]
    ]
    names = [f"layer {i}" for i in range(elmo.bilm.config.n_layers + 1)]
    labeled = {
        "77 words with two senses": read_sense_usages(SENSES),
        "UD English EWT": read_tagged_usages(spec["treebank"], spec["min_usages"], spec["max_usages"]),
    }
    rows, claims = [], []
    for row, some in labeled.items():
        shares = same_label_shares(elmo, some)
        rows.append([row, *(statistics.fmean(shares[name]) for name in ["chance", *names])])
        for claim in spec["claims"]:
            if row in claim["rows"]:
                claims.append(
                    compare_pairs(claim["text"], row, shares[claim["better"]], shares[claim["than"]], "words")
                )
    tables = [
        {
            "title": "GloVe",
            "head": ["word", "nearest words"],
            "rows": [[word, ", ".join(static[word])] for word in words],
        },
        {"title": "biLM, top layer", "head": ["word in context", "nearest usages"], "rows": usages},
        {
            "title": "Nearest usages with the same sense or part of speech (%)",
            "head": ["usages", "chance", *names],
            "rows": rows,
        },
    ]
    minutes = (time.perf_counter() - start) / 60
    return {"title": spec["title"], "tables": tables, "claims": claims, "runs": 0, "missing": 0, "minutes": minutes}


def static_neighbors(path: str, words: Sequence[str], n: int) -> dict[str, list[str]]:
    """Return the words whose static vectors have the highest cosine."""
    file = read_vectors(path)
    units = l2_normalize(np.asarray(file.vectors))
    rows = {word: i for i, word in enumerate(file.words)}
    found = {}
    for word in words:
        order = np.argsort(-(units @ units[rows[word]]), kind="stable")
        found[word] = [file.words[i] for i in order[: n + 1] if i != rows[word]][:n]
    return found


def find_usages(spec: Settings, elmo: torchelmo.Elmo, word: str, sentence: str) -> list[str]:
    """Return the usages of a word, and of words beside it, that are nearest to a word in a sentence."""
    tokens = sentence.split()
    texts = (sentences_with(path, word, spec["n_sentences"]) for path in spec["texts"])
    found = neighbours(elmo, tokens, find_word(tokens, word), itertools.chain(*texts), top=spec["n_usages"])
    return [show(one.tokens, one.word, one.position) for some in found.values() for one in some]


def sentences_with(path: str, word: str, n: int) -> Iterator[list[str]]:
    """Yield the first n sentences of a text that contain a word, of 5 to 40 tokens."""
    tokenizer = tokenizer_for("en")
    paragraphs = (line for line in read_lines(path) if f" {word} " in line)
    sentences = (tokens for line in paragraphs for tokens in tokenizer.sentences(line))
    return itertools.islice((one for one in sentences if word in one and 5 <= len(one) <= 40), n)


def read_sense_usages(path: Path) -> list[Usage]:
    """Read words.tsv: word, sense, and a sentence with the word in brackets."""
    usages = []
    for line in path.read_text(encoding="utf-8").splitlines():
        word, sense, sentence = line.split("\t")
        position = sentence.split().index(f"[{word}]")
        usages.append(Usage(word, sense, sentence.replace(f"[{word}]", word).split(), position))
    return usages


def read_tagged_usages(path: str, min_usages: int, max_usages: int) -> list[Usage]:
    """Return the usages of words that occur `min_usages` times with at least two universal tags."""
    sentences = pos.read(path, pos.PosData(column="upos"))
    usages = [
        Usage(token, tag, sentence.tokens, i)
        for sentence in sentences
        for i, (token, tag) in enumerate(zip(sentence.tokens, sentence.tags or ()))
        if token.isalpha()
    ]
    counts = Counter((usage.word, usage.label) for usage in usages)
    frequent = {pair for pair, n in counts.items() if n >= min_usages}
    words = {word for word, n in Counter(word for word, _ in frequent).items() if n > 1}
    kept: dict[str, list[Usage]] = {word: [] for word in sorted(words)}
    for usage in usages:
        if (usage.word, usage.label) in frequent and usage.word in kept and len(kept[usage.word]) < max_usages:
            kept[usage.word].append(usage)
    return [usage for some in kept.values() for usage in some if len({one.label for one in some}) > 1]


def same_label_shares(elmo: torchelmo.Elmo, usages: Sequence[Usage]) -> dict[str, list[float]]:
    """Return, word by word, how many percent of the usages have the label of their nearest usage, and by chance."""
    sentences = list(dict.fromkeys(tuple(usage.tokens) for usage in usages))
    positions: dict[tuple[str, ...], set[int]] = {}
    for usage in usages:
        positions.setdefault(tuple(usage.tokens), set()).add(usage.position)
    vectors = {
        (tokens, place): layers[:, place]
        for tokens, layers in zip(sentences, elmo.stream(sentences, layers="all"))
        for place in positions[tokens]
    }
    by_word: dict[str, list[Usage]] = {}
    for usage in usages:
        by_word.setdefault(usage.word, []).append(usage)
    shares: dict[str, list[float]] = {"chance": []}
    for some in by_word.values():
        layers = np.stack([vectors[tuple(one.tokens), one.position] for one in some], axis=1)
        labels = np.array([one.label for one in some])
        same_sentence = np.array([[one.tokens == other.tokens for other in some] for one in some])
        if same_sentence.all(axis=1).any():
            continue
        candidates = ~same_sentence
        same = (labels[:, np.newaxis] == labels) & candidates
        shares["chance"].append(100.0 * float((same.sum(axis=1) / candidates.sum(axis=1)).mean()))
        for layer, values in enumerate(layers):
            shares.setdefault(f"layer {layer}", []).append(100.0 * share_of_nearest(values, same, same_sentence))
    return shares


def share_of_nearest(
    vectors: npt.NDArray[np.float32], same: npt.NDArray[np.bool_], excluded: npt.NDArray[np.bool_]
) -> float:
    """Return the share of usages whose nearest usage has the same label. Equally near usages count in equal parts."""
    units = l2_normalize(vectors.astype(np.float64))
    cosines = np.where(excluded, -np.inf, (units @ units.T).round(6))
    nearest = cosines == cosines.max(axis=1, keepdims=True)
    return float(((nearest & same).sum(axis=1) / nearest.sum(axis=1)).mean())


def show(tokens: Sequence[str], word: str, position: int | None = None) -> str:
    """Return a word in bold with the words around it.

    >>> show("I took a bow".split(), "bow")
    'I took a **bow**'
    """
    place = find_word(tokens, word, position)
    before, after = tokens[max(0, place - _CONTEXT) : place], tokens[place + 1 : place + 1 + _CONTEXT]
    start, end = ("… " if len(before) < place else ""), (" …" if place + 1 + len(after) < len(tokens) else "")
    escaped = " ".join([*before, f"**{word}**", *after]).replace("|", "\\|").replace("`", "'")
    return f"{start}{escaped}{end}"


if __name__ == "__main__":
    run_analysis(__doc__, run)
