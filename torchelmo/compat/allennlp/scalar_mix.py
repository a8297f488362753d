"""AllenNLP's `ScalarMix`: the core's mix with one parameter for each layer."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchelmo.errors import ConfigError
from torchelmo.mix import ScalarMix as CoreMix


class ScalarMix(nn.Module):
    """`mixture_size` tensors (..., dim) -> (..., dim): gamma · Σ softmax(scalar_parameters)_j tensor_j."""

    def __init__(
        self,
        mixture_size: int,
        do_layer_norm: bool = False,
        initial_scalar_parameters: Sequence[float] | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        self.mixture_size, self.do_layer_norm = mixture_size, do_layer_norm
        initial = [0.0] * mixture_size if initial_scalar_parameters is None else initial_scalar_parameters
        if len(initial) != mixture_size:
            raise ConfigError(
                f"ScalarMix: expected {mixture_size} initial_scalar_parameters, one for each layer, got {len(initial)}."
            )
        self.scalar_parameters = nn.ParameterList(
            nn.Parameter(torch.tensor([float(value)]), requires_grad=trainable) for value in initial
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=trainable)
        with torch.device("meta"):  # and in a tuple: it has no weights of its own
            self._core = (CoreMix(mixture_size, layer_norm=do_layer_norm, norm_over="batch"),)

    def forward(self, tensors: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """`mask` (...) tells the layer norm which tokens are real; without layer norm it is not used."""
        own = {"scalars": torch.cat(list(self.scalar_parameters)), "gamma": self.gamma}
        mixed: Tensor = functional_call(self._core[0], own, (tensors, mask))
        return mixed
