"""Train a text classifier in plain PyTorch, with ELMo as a module and a learned mix of its layers.

python examples/classifier.py [TRAIN.tsv DEV.tsv]

A line of a file is a label, a tab and a text. Default: examples/data/topics-train.tsv and topics-dev.tsv.
"""

import random
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchelmo import Elmo, load
from torchelmo.text.tokenize import tokenizer_for

DATA = Path(__file__).parent / "data"
EPOCHS, BATCH_SIZE, HIDDEN_DIM = 6, 6, 64


class Example(NamedTuple):
    """A tokenized text and its label."""

    tokens: list[str]
    label: str


class Classifier(nn.Module):
    """ELMo, a biLSTM, the maximum over the tokens, and a linear layer."""

    def __init__(self, labels: list[str]) -> None:
        super().__init__()
        self.labels = labels
        self.elmo = Elmo(load(), dropout=0.3)
        self.encoder = nn.LSTM(self.elmo.dim, HIDDEN_DIM, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * HIDDEN_DIM, len(labels))

    def forward(self, texts: list[list[str]]) -> Tensor:
        """(texts) -> scores (texts, labels)."""
        [mix], mask = self.elmo(self.elmo.encode(texts))  # (texts, tokens, dim), (texts, tokens)
        packed = nn.utils.rnn.pack_padded_sequence(mix, mask.sum(dim=1).cpu(), batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.encoder(packed)[0], batch_first=True, padding_value=-1e9)
        scores: Tensor = self.output(states.max(dim=1).values)
        return scores

    def loss(self, examples: list[Example]) -> Tensor:
        """Return the cross-entropy, and a penalty that keeps the mix near the plain average."""
        gold = torch.tensor([self.labels.index(example.label) for example in examples])
        scores = self([example.tokens for example in examples])
        return nn.functional.cross_entropy(scores, gold) + 0.001 * self.elmo.penalty()

    @torch.no_grad()
    def accuracy(self, examples: list[Example]) -> float:
        """Return the share of texts whose label is predicted."""
        self.eval()  # switches dropout off
        predicted = self([example.tokens for example in examples]).argmax(dim=1).tolist()
        self.train()
        n_correct = sum(self.labels[i] == example.label for i, example in zip(predicted, examples))
        return float(n_correct / len(examples))


def read(path: Path) -> list[Example]:
    """Read `label TAB text` lines."""
    tokenizer = tokenizer_for("en")
    rows = [line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Example(tokenizer.tokens(text), label) for label, text in rows]


def main() -> None:
    """Train, and print the accuracy on the dev data after every epoch."""
    torch.manual_seed(1)
    shuffle = random.Random(1).shuffle
    paths = [Path(name) for name in sys.argv[1:]] or [DATA / "topics-train.tsv", DATA / "topics-dev.tsv"]
    train, dev = map(read, paths)
    model = Classifier(sorted({example.label for example in train}))
    # The biLM is frozen: only the mix, the biLSTM and the output layer have gradients.
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.003)
    for epoch in range(1, EPOCHS + 1):
        shuffle(train)
        for start in range(0, len(train), BATCH_SIZE):
            loss = model.loss(train[start : start + BATCH_SIZE])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy on dev {model.accuracy(dev):.2f}")
    weights = ", ".join(f"{weight:.2f}" for weight in model.elmo.mixes[0].weights.tolist())
    print(f"weights of layers 0, 1, 2: {weights}")


if __name__ == "__main__":
    main()
