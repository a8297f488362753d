"""Widen a biLM without changing what it computes, to continue its training as a larger model.

    python experiments/pretrain/widen.py runs/english-small runs/wide --cells 768 --projection 192

Old vectors are the first dimensions of new ones. New cells and dimensions get random weights on the side of their
inputs, and zero on the side of what old parts read of them, so the language model predicts the same as before.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

import torch
from torch import Tensor

import torchelmo
from torchelmo import BiLM
from torchelmo.errors import ConfigError, TorchelmoError


def widen(bilm: BiLM, cells: int, projection: int, seed: int = 1) -> BiLM:
    """Return a model with more cells and a wider projection.

    Args:
        bilm: A model that reads characters. Directions must be separate, the encoder needs a projection, and the
            weights are not in int8.
        cells: The cells of the new model.
        projection: Its projection_dim.
        seed: Determines the new weights.

    Raises:
        ConfigError: The new model would be narrower, or models of this kind cannot be widened.
    """
    old = bilm.config
    if cells < old.cell_dim or projection < old.projection_dim:
        raise ConfigError(f"widen: expected at least {old.cell_dim} cells, {old.projection_dim} projected; got less.")
    if old.input != "characters" or old.joint or old.objective != "bilm" or not old.char_projection or bilm.is_int8:
        raise ConfigError(
            "widen: expected a model that reads characters, with a projection after the filters, separate directions, "
            "objective = 'bilm' and floating-point weights."
        )
    torch.manual_seed(seed)
    wide = BiLM(dataclasses.replace(old, cell_dim=cells, projection_dim=projection), vocabulary=bilm.vocabulary)
    wide.lang, wide.pretokenized, wide.origin = bilm.lang, bilm.pretokenized, f"{bilm.origin}, widened"
    with torch.no_grad():
        for (name, new), before in zip(wide.named_parameters(), bilm.parameters(), strict=True):
            kind = name.rpartition(".")[2]
            if kind in ("input_weight", "state_weight", "bias") and name.startswith(("forward", "backward")):
                for gate, old_gate in zip(new.chunk(4, dim=-1), before.chunk(4, dim=-1)):
                    _copy(gate, old_gate, unread_rows=gate.dim() == 2)
            else:
                _copy(new, before, unread_rows=kind == "projection", unread_columns=name == "softmax.weight")
    return wide


def _copy(new: Tensor, old: Tensor, *, unread_rows: bool = False, unread_columns: bool = False) -> None:
    """Write `old` into the first part of `new`; old columns do not read new rows, and old rows no new columns."""
    if unread_rows:
        new[len(old) :, : old.shape[1]] = 0.0
    if unread_columns:
        new[: len(old), old.shape[1] :] = 0.0
    new[tuple(slice(size) for size in old.shape)] = old


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model folder or name")
    parser.add_argument("out", type=Path, help="the folder of the new model")
    parser.add_argument("--cells", type=int, required=True, help="cells of the new LSTMs")
    parser.add_argument("--projection", type=int, required=True, help="projection_dim of the new model")
    parser.add_argument("--seed", type=int, default=1, help="seed of the new weights (default: 1)")
    given = parser.parse_args()
    try:
        widen(torchelmo.load(given.model), given.cells, given.projection, given.seed).save(given.out)
    except TorchelmoError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
