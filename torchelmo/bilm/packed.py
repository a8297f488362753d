"""The fast path for inference: sentences without padding, longest first, both directions in step.

At step t the forward LSTM reads token t of every sentence that has one, the backward LSTM token length−1−t:
the two share their batch sizes, which shrink as sentences end. The product with the input does not depend on
the step before, so it is taken for many steps at once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from torchelmo.bilm.lstm import FORGET_BIAS
from torchelmo.bilm.model import BiLM, BiLMState


def run_packed(
    bilm: BiLM, x: Tensor, lengths: Sequence[int], state: BiLMState | None = None
) -> tuple[Tensor, BiLMState]:
    """(n_tokens, projection_dim), sentence after sentence -> (n_layers + 1, n_tokens, dim) in the same order.

    `state` has one row per sentence; a sentence of length 0 leaves its row as it is.
    """
    raise NotImplementedError
