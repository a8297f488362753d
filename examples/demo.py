"""What a biLM does with one word in different sentences, how fast it is, and that nothing depends on chance.

python examples/demo.py
"""

import os
import random
import tempfile
import time
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

import torchelmo
from torchelmo import BiLM, BiLMConfig, Elmo
from torchelmo.errors import MissingFileError

WORD = "bow"
SENTENCES = {
    "stage": "After the last song the singer took a bow and left the stage .".split(),
    "archery": "The archer took her bow and an arrow and aimed at the tree .".split(),
    "stage again": "The actors took a bow while the whole house stood and cheered .".split(),
}
console = Console(highlight=False)


def main() -> None:
    bilm, trained = get_model()
    elmo = Elmo(bilm)
    show_model(bilm, trained)
    vectors = dict(zip(SENTENCES, elmo.embed(SENTENCES.values(), layers="all")))
    show_shapes(vectors)
    show_word_in_context(vectors, trained)
    show_speed(elmo)
    show_checks(elmo, vectors)


def get_model() -> tuple[BiLM, bool]:
    """The model inside the package; without one, the paper's small shape with fixed random weights."""
    try:
        return torchelmo.load(), True
    except MissingFileError:
        torch.manual_seed(0)
        return BiLM(BiLMConfig(n_highway=1, projection_dim=128, cell_dim=1024)), False


def show_model(bilm: BiLM, trained: bool) -> None:
    config = bilm.config
    n_parameters = sum(parameter.numel() for parameter in bilm.parameters())
    console.rule("[bold]torchelmo: text → characters → token vectors → biLM layers → mix")
    console.print(
        f"A biLM of {n_parameters / 1e6:.1f} M parameters: {config.n_layers} layers of {config.cell_dim} "
        f"cells, projected to {config.projection_dim}, in {len(config.directions)} directions."
    )
    if trained:
        console.print(f"Its weights come with the package ({bilm.origin}).\n")
    else:
        console.print(
            "[yellow]Its weights are random[/yellow] (seed 0): this shows how vectors behave, "
            "not what a trained model knows.\n"
        )


def show_shapes(vectors: dict[str, npt.NDArray[np.float32]]) -> None:
    table = Table(title="Every token gets one vector per layer", title_justify="left")
    table.add_column("sentence")
    table.add_column("(layers, tokens, dim)", justify="right", no_wrap=True)
    for name, tokens in SENTENCES.items():
        text = " ".join(f"[bold cyan]{token}[/]" if token == WORD else token for token in tokens)
        table.add_row(text, str(vectors[name].shape))
    console.print(table, "")


def show_word_in_context(vectors: dict[str, npt.NDArray[np.float32]], trained: bool) -> None:
    """The token layer sees only the spelling; the layers above see the sentence."""
    stage, archery, again = (vectors[name][:, SENTENCES[name].index(WORD)] for name in SENTENCES)
    table = Table(title=f"How alike is “{WORD}” to itself? (cosine)", title_justify="left")
    table.add_column("layer")
    table.add_column("stage · archery", justify="right")
    table.add_column("stage · stage again", justify="right")
    for j in range(len(stage)):
        name = "h₀  token layer: spelling only" if j == 0 else f"h{'₀₁₂₃₄₅₆₇₈₉'[j]}  biLM layer {j}: in context"
        table.add_row(name, f"{cosine(stage[j], archery[j]):.3f}", f"{cosine(stage[j], again[j]):.3f}")
    console.print(table)
    if not trained:
        console.print("The sentence changes the vector; to tell senses apart a model must be trained.")
    console.print()


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


def show_checks(elmo: Elmo, vectors: dict[str, npt.NDArray[np.float32]]) -> None:
    table = Table(title="Nothing depends on chance", title_justify="left")
    table.add_column("the same sentences …")
    table.add_column("largest difference", justify="right")
    for name, difference in (
        ("once more, after all the above", distance(vectors, elmo.embed(SENTENCES.values()))),
        ("each in a batch of its own", distance(vectors, elmo.embed(SENTENCES.values(), batch_tokens=1))),
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
        return Elmo(torchelmo.load_official(*files)).embed(SENTENCES.values())


def cosine(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def distance(vectors: dict[str, npt.NDArray[np.float32]], others: list[npt.NDArray[np.float32]]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(vectors.values(), others))


if __name__ == "__main__":
    main()
