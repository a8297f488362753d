"""Writes tiny.npz and tiny.json: a tiny official model, and what AllenNLP 2.10.1 makes of it. See README.md."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import allennlp.version
import h5py
import numpy as np
import torch
from allennlp.modules.elmo import Elmo, batch_to_ids

HERE = Path(__file__).parent
FILTERS, CHAR_DIM, PROJECTION_DIM, CELL_DIM = [[1, 4], [2, 6], [4, 6]], 3, 8, 10
OPTIONS = {
    "lstm": {
        "cell_clip": 3,
        "use_skip_connections": True,
        "n_layers": 2,
        "proj_clip": 3,
        "projection_dim": PROJECTION_DIM,
        "dim": CELL_DIM,
    },
    "char_cnn": {
        "embedding": {"dim": CHAR_DIM},
        "filters": FILTERS,
        "n_highway": 2,
        "n_characters": 262,
        "max_characters_per_token": 50,
        "activation": "relu",
    },
}
# Batches that grow and shrink, an empty sentence, a token that is cut, sentence marks as tokens.
CALLS = [
    [["I", "took", "a", "bow"], ["bow", "and", "arrow"]],
    [["The", "naïve", "archer", "日本"], [], ["<S>", "x" * 70, "</S>"]],
    [["One"]],
    [["A", "b"], ["c"], ["d", "e", "f"], ["g"]],
    [["I", "took", "a", "bow"], ["bow", "and", "arrow"]],
]
VOCABULARY = ["@@PADDING@@", "I", "took", "a", "bow", "and"]
WORD_INPUTS = [[1, 2, 3, 4], [4, 5, 99, 0]]  # 99 is "arrow", which is not in the vocabulary
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "layer_norm": {"do_layer_norm": True},
    "boundaries": {"do_layer_norm": True, "keep_sentence_boundaries": True},
    "fixed": {"scalar_mix_parameters": [0.5, -0.25, 1.0]},
}


def main() -> None:
    arrays = {f"official/{name}": array for name, array in official_arrays().items()}
    with TemporaryDirectory() as folder:
        files = f"{folder}/options.json", f"{folder}/weights.hdf5"
        Path(files[0]).write_text(json.dumps(OPTIONS))
        with h5py.File(files[1], "w") as file:
            for name, array in arrays.items():
                file.create_dataset(name.removeprefix("official/"), data=array)
        arrays |= outputs(files)
    np.savez_compressed(HERE / "tiny.npz", **arrays)
    inputs = {
        "options": OPTIONS,
        "calls": CALLS,
        "vocabulary": VOCABULARY,
        "word_inputs": WORD_INPUTS,
        "settings": SETTINGS,
        "made_with": {"allennlp": allennlp.version.VERSION, "torch": torch.__version__},
    }
    (HERE / "tiny.json").write_text(json.dumps(inputs, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def official_arrays() -> dict[str, np.ndarray]:
    """Multiples of 1/128: exact in float32, and small in the file."""
    generator = np.random.default_rng(2018)

    def weights(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (generator.integers(-48, 49, size=shape) / 64.0 * scale).astype(np.float32)

    n_filters = sum(count for _, count in FILTERS)
    arrays = {"char_embed": weights(261, CHAR_DIM)}
    for i, (width, count) in enumerate(FILTERS):
        arrays[f"CNN/W_cnn_{i}"] = weights(1, width, CHAR_DIM, count)
        arrays[f"CNN/b_cnn_{i}"] = weights(count)
    for i in range(2):
        for part in ("carry", "transform"):
            arrays[f"CNN_high_{i}/W_{part}"] = weights(n_filters, n_filters, scale=0.5)
            arrays[f"CNN_high_{i}/b_{part}"] = weights(n_filters)
    arrays["CNN_proj/W_proj"] = weights(n_filters, PROJECTION_DIM, scale=0.5)
    arrays["CNN_proj/b_proj"] = weights(PROJECTION_DIM)
    for direction in range(2):
        for layer in range(2):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            arrays[f"{cell}/W_0"] = weights(2 * PROJECTION_DIM, 4 * CELL_DIM)
            arrays[f"{cell}/B"] = weights(4 * CELL_DIM)
            arrays[f"{cell}/W_P_0"] = weights(CELL_DIM, PROJECTION_DIM)
    return arrays


def outputs(files: tuple[str, str]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}

    def keep(name: str, output: dict[str, Any]) -> None:
        for k, representation in enumerate(output["elmo_representations"]):
            arrays[f"{name}/{k}"] = representation.detach().numpy()
        arrays[f"{name}/mask"] = output["mask"].numpy()

    for i, call in enumerate(CALLS):
        arrays[f"ids/{i}"] = batch_to_ids(call).numpy().astype(np.int16)
    for name, options in SETTINGS.items():
        elmo = Elmo(*files, 1, dropout=0.0, **options)
        for i, call in enumerate(CALLS):
            keep(f"{name}/{i}", elmo(batch_to_ids(call)))
    keep("four", Elmo(*files, 1, dropout=0.0)(batch_to_ids(CALLS[3]).view(2, 2, 3, 50)))
    elmo = Elmo(*files, 1, dropout=0.0, vocab_to_cache=VOCABULARY)
    keep("cached", elmo(batch_to_ids(CALLS[0]), torch.tensor(WORD_INPUTS)))
    elmo = trained(files)
    arrays |= {f"checkpoint/{name}": tensor.numpy() for name, tensor in elmo.state_dict().items()}
    keep("trained", elmo(batch_to_ids(CALLS[1])))
    return arrays


def trained(files: tuple[str, str]) -> Elmo:
    """One step of training of every parameter, rounded to multiples of 1/256."""
    elmo = Elmo(*files, 2, dropout=0.0, requires_grad=True)
    first, second = elmo(batch_to_ids(CALLS[0]))["elmo_representations"]
    (first.square().sum() + second.sin().sum()).backward()
    torch.optim.SGD(elmo.parameters(), lr=0.01).step()
    with torch.no_grad():
        for parameter in elmo.parameters():
            parameter.copy_((parameter * 256).round() / 256)
    elmo._elmo_lstm._elmo_lstm.reset_states()
    return elmo


if __name__ == "__main__":
    main()
