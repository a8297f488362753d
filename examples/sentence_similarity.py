"""Compare sentences by the cosine of their vectors, before and after what all texts share is removed.

python examples/sentence_similarity.py [SENTENCES.txt]

The file has one text per line. Default: the short texts about weather, food and music in examples/data. The last
twelve texts are compared, the others show what all texts share. The cosines are also drawn to similarity.png.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchelmo import SentenceEncoder

DATA = Path(__file__).parent / "data"
SHOWN = 12


def main() -> None:
    """Print the most similar text for each text, with both kinds of vectors."""
    texts = read_texts()
    shown, others = texts[-SHOWN:], texts[:-SHOWN]
    encoder = SentenceEncoder()
    before = encoder.similarity(encoder.encode(shown), encoder.encode(shown))
    encoder.fit(others, remove_components=0)  # the first component of so few texts may be a topic: keep it
    after = encoder.similarity(encoder.encode(shown), encoder.encode(shown))
    for name, cosines in (("raw vectors", before), ("after fit", after)):
        pairs = cosines[~torch.eye(len(shown), dtype=torch.bool)]
        print(f"{name}: cosines from {pairs.min():.2f} to {pairs.max():.2f}")
        for text, place in zip(shown, nearest(cosines)):
            print(f"  {text:<50}  {shown[place]}")
    draw(shown, {"raw vectors": before, "after fit": after}, Path("similarity.png"))


def read_texts() -> list[str]:
    """Read the given file; or the examples, the texts to compare last and sorted by topic."""
    if len(sys.argv) > 1:
        return [line for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines() if line.strip()]
    lines = [(DATA / f"topics-{part}.tsv").read_text(encoding="utf-8").splitlines() for part in ("train", "dev")]
    return [line.split("\t")[1] for part in lines for line in sorted(part)]


def nearest(cosines: Tensor) -> list[int]:
    """Return the place of the most similar other text for each text."""
    return list((cosines - 2 * torch.eye(len(cosines))).argmax(dim=1).tolist())


def draw(texts: list[str], cosines: dict[str, Tensor], path: Path) -> None:
    """Draw a map of cosines for each kind of vectors, each with its own range of colors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    for i, (axes, (name, values)) in enumerate(zip(figure.subplots(1, 2), cosines.items())):
        matrix = values.numpy().copy()
        np.fill_diagonal(matrix, np.nan)
        image = axes.imshow(matrix, cmap="viridis")
        axes.set(title=name, xticks=[])
        axes.set_yticks(range(len(texts)), [text[:44] for text in texts] if i == 0 else [])
        figure.colorbar(image, ax=axes, shrink=0.7, label="cosine")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
