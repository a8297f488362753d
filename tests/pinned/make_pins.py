"""Compute the pinned values that a restructuring must not change, and write them: `python tests/pinned/make_pins.py`.

Run it only after a deliberate change of behavior, and say in the commit why the values differ. Names of the parts to
write may follow: `python tests/pinned/make_pins.py commands`.
"""

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import torchelmo

FOLDER = Path(__file__).parent
VECTORS = FOLDER / "english_small.npz"
MEASURES = FOLDER / "english_small.json"
COMMANDS = FOLDER / "commands.json"

MODEL = "english-small"
REFERENCE = "reference"  # `path=` of BiLM.forward: the name of the reference path
STRIDE = 16  # every 16th dimension is kept, in both directions: the file stays small

SENTENCES: list[list[str]] = [
    "He took a bow .".split(),
    "The archer drew his bow and shot an arrow into the old oak tree .".split(),
    ["Yes"],
    ["?"],
    '" Well , " she said -- quite ( ! ) suddenly ; " it \'s 3.14 % , is n\'t it ? "'.split(),
    "Zürich , 東京 und Škofja Loka : naïve café 🎭 e\u0301 ½ Ωμέγα мир .".split(),
    ["A", "word", "of", "200", "characters", ":", "abcdefghij" * 20, "ends", "here", "."],
    "THE CAPITAL LETTERS OF the lower-case letters and CamelCase http://example.org/a?b=c&d=1 .".split(),
    "bow bow bow bow bow bow bow bow".split(),
    (
        "In the first years after the war , when the bridges over the river had not yet been rebuilt and the trains "
        "ran only twice a week , the people of the small town used to walk for hours along the bank , past the empty "
        "mills and the gardens of the old hospital , until they came to the place where a ferryman , who was said to "
        "be more than ninety years old , carried them across for a loaf of bread , a few eggs , or a song ."
    ).split(),
]

TEXT = """\
The old man walked slowly down to the river and sat on a stone .
He had lived in the village for many years , and everyone knew his name .
She did not know what to say , so she said nothing .
The company was founded in London and moved to New York in the following year .
Xyzzy is not a word of the vocabulary .
"""
SENTENCE = "The children of Zyxwvut went to school in the morning ."


def pinned_vectors() -> list[npt.NDArray[np.float32]]:
    """Compute the vectors in float64, so that the pins carry no rounding errors of the machine that made them."""
    bilm = torchelmo.load(MODEL).double()
    return [reduce(vectors).astype(np.float32) for vectors in reference_vectors(bilm)]


def reference_vectors(bilm: torchelmo.BiLM) -> Iterator[npt.NDArray[Any]]:
    """Yield (n_layers + 1, n_tokens, dim) for each sentence, by the reference path, without `<S>` and `</S>`."""
    elmo = torchelmo.Elmo(bilm)
    for sentence in SENTENCES:
        with torch.no_grad():
            layers = bilm(elmo.encode([sentence]), path=REFERENCE).layers
        yield layers[:, 0, 1:-1].numpy()


def reduce(vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Keep every 16th dimension: (n_layers + 1, n_tokens, dim) -> (n_layers + 1, n_tokens, dim / 16)."""
    return vectors[..., ::STRIDE]


def measure_perplexity(folder: Path) -> dict[str, Any]:
    """Return the numbers of `torchelmo perplexity --json` for TEXT."""
    file = _write(folder / "text.txt", TEXT)
    found: dict[str, Any] = json.loads(_call("perplexity", MODEL, str(file), "--pretokenized", "--json"))["all"]
    return found


def measure_surprisal(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of `torchelmo surprisal` for SENTENCE."""
    file = _write(folder / "sentence.txt", SENTENCE + "\n")
    head, *rows = _call("surprisal", MODEL, str(file), "--pretokenized").splitlines()
    found: list[dict[str, Any]] = [dict(zip(head.split("\t"), row.split("\t"), strict=True)) for row in rows]
    for row in found:
        row |= {name: float(row[name]) for name in ("forward", "backward")}
        del row["file"]  # the name of a temporary folder
    return found


def list_commands() -> dict[str, list[str]]:
    """Return the sorted options of every command, by the words that call it; "" is `torchelmo` itself."""
    return {
        " ".join(words): sorted(name for option in options for name in [*option.opts, *option.secondary_opts])
        for words, command in walk_commands()
        for options in [[p for p in command.params if p.param_type_name == "option"]]
    }


def walk_commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words and the Click command of `torchelmo`, of its groups and of all their commands."""
    import typer

    from torchelmo.cli import app

    waiting: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(app))]
    while waiting:
        words, command = waiting.pop()
        yield words, command
        waiting += [((*words, name), part) for name, part in getattr(command, "commands", {}).items()]


def _call(*arguments: str) -> str:
    """Run `torchelmo …` in this process and return its standard output."""
    from torchelmo.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            main(arguments)
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"torchelmo {' '.join(arguments)}: exit code {end.code}.") from None
    return out.getvalue()


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _write_json(path: Path, value: object) -> None:
    _write(path, json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def make_vectors() -> None:
    """Write english_small.npz and english_small.json."""
    np.savez_compressed(VECTORS, *pinned_vectors())
    with tempfile.TemporaryDirectory() as folder:
        found = {"perplexity": measure_perplexity(Path(folder)), "surprisal": measure_surprisal(Path(folder))}
    _write_json(MEASURES, found)


def make_commands() -> None:
    """Write commands.json."""
    _write_json(COMMANDS, list_commands())


PARTS = {"vectors": make_vectors, "commands": make_commands}


def main(names: Sequence[str]) -> None:
    """Write the named parts, or all of them."""
    unknown = set(names) - PARTS.keys()
    if unknown:
        sys.exit(f"Expected {' or '.join(PARTS)}, got {', '.join(sorted(unknown))}.")
    for name in names or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
