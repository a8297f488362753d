"""Show what a biLM does with a word in different sentences, how fast it is, and that its results are reproducible.

python examples/demo.py
"""

import os
import random
import tempfile
import time
from pathlib import Path
from string import ascii_lowercase
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

import torchelmo
from torchelmo import BiLM, Elmo
from torchelmo.analysis import compare


class Senses(NamedTuple):
    """A word in a sentence, in another one with the same sense, and in one with another sense."""

    word: str
    here: str
    same: str
    other: str


WORDS = [
    Senses("bow", "I took a bow.", "The singer smiled and took a bow.", "He was wielding a bow and arrow."),
    Senses("play", "The children play in the garden.", "The boys play football.", "The play was written in 1603."),
    Senses("bank", "We sat on the bank of the river.", "It lay by the bank of the lake.", "She runs a bank."),
    Senses("rose", "The sun rose over the hills.", "The prices rose again that year.", "He gave her a red rose."),
    Senses("match", "They won the match in the end.", "The team lost its last match.", "He lit a match."),
    Senses("kind", "She was kind to the children.", "He was a kind old man.", "What kind of bird is that?"),
]
SENTENCES = [sentence for senses in WORDS for sentence in senses[1:]]
console = Console(highlight=False)


def main() -> None:
    bilm = torchelmo.load()  # the model inside the package
    elmo = Elmo(bilm)
    show_model(bilm)
    vectors = elmo.embed(SENTENCES, layers="all")
    show_shape(vectors[0])
    show_words_in_context(elmo)
    show_speed(elmo)
    show_checks(elmo, vectors)


def show_model(bilm: BiLM) -> None:
    config = bilm.config
    n_parameters = sum(parameter.numel() for parameter in bilm.parameters())
    console.rule("[bold]torchelmo: text → characters → token vectors → biLM layers → mix")
    console.print(
        f"The English biLM in the package: {n_parameters / 1e6:.1f} M parameters, {config.n_layers} layers "
        f"of {config.cell_dim} cells, projected to {config.projection_dim}, in {len(config.directions)} directions."
    )


def show_shape(vectors: npt.NDArray[np.float32]) -> None:
    n_layers, n_tokens, dim = vectors.shape
    console.print(
        f"“{SENTENCES[0]}” becomes {n_layers} layers × {n_tokens} tokens × {dim} numbers: "
        "the token layer, which depends on the word alone, and two layers that depend on the sentence.\n"
    )


def show_words_in_context(elmo: Elmo) -> None:
    """Compare the cosines of words with the same sense and with another sense, for every layer."""
    title = "Cosine of a word in one sentence and in others"
    table = Table(title=title, title_justify="left")
    table.add_column("word", style="bold cyan")
    table.add_column("in a sentence")
    for name in ("static", "layer 1", "layer 2"):
        table.add_column(name, justify="right", no_wrap=True)
    n_nearer = np.zeros(elmo.bilm.config.n_layers + 1, dtype=np.int64)
    for senses in WORDS:
        cosines = compare(elmo, senses.word, senses[1:])
        same, other = cosines[:, 0, 1], cosines[:, 0, 2]
        n_nearer += same > other + 1e-6
        table.add_row(senses.word, senses.here)
        table.add_row("", f"[green]{senses.same}[/]", *(f"{cosine:.2f}" for cosine in same))
        table.add_row("", f"[magenta]{senses.other}[/]", *(f"{cosine:.2f}" for cosine in other), end_section=True)
    console.print(table)
    told = ", ".join(f"layer {layer} {n_nearer[layer]}" for layer in range(1, len(n_nearer)))
    console.print(
        f"[green]The same sense[/] is nearer than [magenta]another sense[/] for how many of the {len(WORDS)} words? "
        f"Static vector {n_nearer[0]}, {told}.\n"
    )


def show_speed(elmo: Elmo, n_sentences: int = 100) -> None:
    chance = random.Random(0)
    words = ["".join(chance.choices(ascii_lowercase, k=chance.randint(1, 10))) for _ in range(2000)]
    sentences = [chance.choices(words, k=chance.randint(5, 35)) for _ in range(n_sentences)]
    n_tokens = sum(map(len, sentences))
    start = time.perf_counter()
    elmo.embed(sentences, layers="all")
    seconds = time.perf_counter() - start
    console.print(
        f"[bold]Speed[/bold]: {n_tokens:,} tokens in {seconds:.2f} s = "
        f"[bold]{n_tokens / seconds:,.0f} tokens/s[/bold], all layers,"
        f" {torch.get_num_threads()} threads on {os.cpu_count()} cores, no warm-up.\n"
    )


def show_checks(elmo: Elmo, vectors: list[npt.NDArray[np.float32]]) -> None:
    table = Table(title="Results are reproducible", title_justify="left")
    table.add_column("the same sentences …")
    table.add_column("largest difference", justify="right")
    for name, difference in (
        ("embedded again", distance(vectors, elmo.embed(SENTENCES))),
        ("each in a separate batch", distance(vectors, elmo.embed(SENTENCES, batch_tokens=1))),
        ("through official files and back", distance(vectors, through_official_files(elmo))),
    ):
        table.add_row(name, "0" if difference == 0 else f"{difference:.0e}")
        # float32 sums in another order differ in their last digits, no more.
        assert difference < 1e-5, f"{name}: {difference}"
    console.print(table)


def through_official_files(elmo: Elmo) -> list[npt.NDArray[np.float32]]:
    """Write options.json + weights.hdf5, read them again, embed with what was read."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "options.json"), Path(folder, "weights.hdf5")
        torchelmo.save_official(elmo.bilm, *files)
        return Elmo(torchelmo.load_official(*files)).embed(SENTENCES)


def distance(vectors: list[npt.NDArray[np.float32]], others: list[npt.NDArray[np.float32]]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(vectors, others))


if __name__ == "__main__":
    main()
