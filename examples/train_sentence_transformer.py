"""Train sentence vectors on pairs of texts, with an ELMo biLM as the first module of a SentenceTransformer.

python examples/train_sentence_transformer.py [OUT]

The pairs are texts about the same topic, from examples/data. OUT is the folder to write. Needs sentence-transformers:
pip install 'torchelmo[sentence-transformers]' datasets accelerate
"""

import itertools
import sys
import tempfile
from pathlib import Path

import numpy as np
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling

from torchelmo.integrations.sentence_transformers import ElmoModule

DATA = Path(__file__).parent / "data"


def main() -> None:
    """Train for a few seconds, and print the cosines within and between topics of other texts."""
    elmo = ElmoModule()
    model = SentenceTransformer(modules=[elmo, Pooling(elmo.get_embedding_dimension(), "mean")], device="cpu")
    texts, topics = read("dev")
    print(f"before: {cosines(model, texts, topics)}")
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=3,  # a text of each topic
            learning_rate=0.0005,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            seed=1,
        )
        loss = MultipleNegativesRankingLoss(model)
        SentenceTransformerTrainer(model, arguments, train_dataset=pairs(), loss=loss).train()
    print(f"after: {cosines(model, texts, topics)}")
    if len(sys.argv) > 1:
        model.save(sys.argv[1])


def read(part: str) -> tuple[list[str], list[str]]:
    """Return the texts and topics of a file of examples/data."""
    rows = [line.split("\t") for line in (DATA / f"topics-{part}.tsv").read_text(encoding="utf-8").splitlines()]
    return [text for _, text in rows], [topic for topic, _ in rows]


def pairs() -> Dataset:
    """Return pairs of texts of the same topic; the topics take turns."""
    texts, topics = read("train")
    by_topic = [[text for text, one in zip(texts, topics) if one == topic] for topic in sorted(set(topics))]
    found = [pair for turn in zip(*(itertools.pairwise(some) for some in by_topic)) for pair in turn]
    return Dataset.from_dict({"anchor": [a for a, _ in found], "positive": [b for _, b in found]})


def cosines(model: SentenceTransformer, texts: list[str], topics: list[str]) -> str:
    """Return the mean cosine of two texts of the same topic, and of two texts of different topics."""
    vectors = model.encode(texts, normalize_embeddings=True)
    same = np.array([[one == other for other in topics] for one in topics])
    different_texts = ~np.eye(len(texts), dtype=bool)
    within, between = (float((vectors @ vectors.T)[pairs & different_texts].mean()) for pairs in (same, ~same))
    return f"mean cosine {within:.2f} within a topic, {between:.2f} between topics"


if __name__ == "__main__":
    main()
