"""The fast path for inference: sentences without padding, longest first, the directions side by side.

At step t the forward LSTM reads token t of every sentence that has one, the backward LSTM token length−1−t:
the two share their batch sizes, which shrink as sentences end. The product with the input does not depend on
the step before, so it is taken for many steps at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchelmo.bilm.lstm import ProjectedLSTM
from torchelmo.bilm.packed_lstm import PairedLayer, SeparateLayer
from torchelmo.bilm.products import Precision

_PAIRED_VALUES = 1 << 20  # of the state weight: up to here both directions fit one product well


class Packing(NamedTuple):
    """Where every token stands when the sentences are run side by side, longest first."""

    sizes: list[int]  # rows of each step
    forward: Tensor  # (n_tokens,) for each packed place, the place in the text; the forward order
    backward: Tensor  # the same in the backward order
    order: Tensor  # (n_sentences,) the sentences, longest first


class PackedBiLM:
    """All LSTMs of a biLM with their weights prepared; to be made anew when the weights change."""

    def __init__(
        self,
        directions: Sequence[Sequence[ProjectedLSTM]],
        *,
        residual: bool,
        precision: Precision = "float32",
    ) -> None:
        self.residual = residual
        self.backward = [lstms[0].backward for lstms in directions]
        weight = directions[0][0].state_weight
        paired = weight.numel() <= _PAIRED_VALUES or weight.device.type != "cpu"
        self.layers: list[PairedLayer | SeparateLayer] = [
            PairedLayer(lstms) if paired else SeparateLayer(lstms, precision) for lstms in zip(*directions)
        ]

    def run(self, x: Tensor, lengths: Sequence[int], hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(n_tokens, projection_dim), sentence after sentence -> (n_layers + 1, n_tokens, dim), same order.

        `hidden` and `cell` (n_directions, n_layers, n_sentences, …) are the state before; the two other
        results are the state after. A sentence of length 0 leaves its state as it is.
        """
        # What comes out must be ordinary tensors: a mix that is trained keeps them for its gradients.
        layers = x.new_empty(len(self.layers) + 1, len(x), len(self.backward), x.shape[1])
        hidden_after, cell_after = torch.empty_like(hidden), torch.empty_like(cell)
        with torch.inference_mode():
            packing = pack(lengths, x.device)
            places = [packing.backward if backward else packing.forward for backward in self.backward]
            below = torch.stack([x[place] for place in places])
            layers[0] = x.unsqueeze(1)
            for j, layer in enumerate(self.layers):
                state = hidden[:, j, packing.order], cell[:, j, packing.order]
                out = layer.run(below, packing.sizes, *state)
                below = out.add_(below) if self.residual and j > 0 else out
                for d, place in enumerate(places):
                    layers[j + 1, :, d].index_copy_(0, place, below[d])
                hidden_after[:, j].index_copy_(1, packing.order, state[0])
                cell_after[:, j].index_copy_(1, packing.order, state[1])
        return layers.flatten(2), hidden_after, cell_after


def pack(lengths: Sequence[int], device: torch.device) -> Packing:
    """
    >>> pack([1, 3], torch.device("cpu")).sizes
    [2, 1, 1]
    """
    of = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-of, kind="stable")
    longest_first = of[order]
    starts = (np.cumsum(of) - of)[order]
    steps = np.arange(longest_first[0] if len(of) else 0)
    sizes = np.searchsorted(-longest_first, -steps, side="left")  # sentences longer than the step
    step, row = np.nonzero(np.arange(len(of)) < sizes[:, None])
    forward = starts[row] + step
    backward = starts[row] + longest_first[row] - 1 - step
    tensors = (torch.from_numpy(array).to(device) for array in (forward, backward, order))
    return Packing(sizes.tolist(), *tensors)
