"""Find the usages of a word in a text that are most similar to the word in given sentences.

python examples/nearest_usages.py [WORD TEXT.txt "SENTENCE" "SENTENCE" …]

The text has one paragraph per line. Default: "bow", and a few sentences about bows.
"""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from torchelmo import Elmo, load
from torchelmo.text.tokenize import tokenizer_for

TEXT = """He made a low bow to the king. An arrow flew from his bow. The actors came out and took a bow.
She drew her bow and shot at the deer. With a stiff bow the butler closed the door. The string of the bow was wet.
They carried a bow, a knife and some bread."""
SENTENCES = ["I took a bow", "He was wielding a bow and arrow"]
LAYER, TOP = 2, 4


def main() -> None:
    """Embed every sentence with the word once, and print the nearest usages of each query."""
    word = sys.argv[1] if len(sys.argv) > 1 else "bow"
    text = Path(sys.argv[2]).read_text(encoding="utf-8") if len(sys.argv) > 2 else TEXT
    queries = sys.argv[3:] or SENTENCES
    tokenizer = tokenizer_for("en")
    elmo = Elmo(load())

    usages = [tokens for line in text.splitlines() for tokens in tokenizer.sentences(line) if word in tokens]
    vectors = vectors_of(elmo, word, usages)
    targets = vectors_of(elmo, word, [tokenizer.tokens(query) for query in queries])
    cosines = targets @ vectors.T  # (queries, usages)

    table = Table(title=f"Usages of “{word}”, by the cosine of layer {LAYER}")
    for query in queries:
        table.add_column(query)
    best = np.argsort(-cosines, axis=1)[:, :TOP]
    for rank in range(best.shape[1]):
        cells = [
            f"{cosines[row, best[row, rank]]:.2f}  {' '.join(usages[best[row, rank]])}" for row in range(len(best))
        ]
        table.add_row(*cells)
    Console().print(table)


def vectors_of(elmo: Elmo, word: str, sentences: list[list[str]]) -> npt.NDArray[np.float32]:
    """Return the vector of the first occurrence of a word in each sentence, with length 1: (sentences, dim)."""
    embedded = elmo.embed(sentences, layers=LAYER)
    rows = np.stack([vectors[tokens.index(word)] for tokens, vectors in zip(sentences, embedded)])
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


if __name__ == "__main__":
    main()
