"""③ One learned combination of all layers: γ Σ_j softmax(w)_j h_j, and its penalty λ‖w‖²."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from torchelmo.errors import ConfigError, InputError

_EPSILON = 1e-13  # of the layer norm, as published


class ScalarMix(nn.Module):
    """(n_layers, batch, tokens, dim) -> (batch, tokens, dim).

    `initial` are the w before the softmax (default: all 0, the plain average). With `trainable=False` w and
    γ stay as they are. With `layer=j` the mix is layer j itself, with no weights and no γ. `layer_norm` takes its
    mean and variance over the tokens of a sentence, so that a sentence depends on itself alone; with
    `norm_over="batch"` over all tokens of the batch, as published.
    """

    def __init__(
        self,
        n_layers: int,
        *,
        layer_norm: bool = False,
        norm_over: Literal["sentence", "batch"] = "sentence",
        initial: Sequence[float] | None = None,
        gamma: float = 1.0,
        trainable: bool = True,
        layer: int | None = None,
    ) -> None:
        super().__init__()
        if initial is not None and len(initial) != n_layers:
            raise InputError(f"ScalarMix: expected {n_layers} initial values, one per layer, got {len(initial)}.")
        if layer is not None and not -n_layers <= layer < n_layers:
            raise InputError(f"ScalarMix: layer must be 0 to {n_layers - 1}, got {layer}.")
        if norm_over not in ("sentence", "batch"):
            raise ConfigError(f"norm_over: expected 'sentence' or 'batch', got {norm_over!r}.")
        self.n_layers, self.layer_norm, self.norm_over, self.layer = n_layers, layer_norm, norm_over, layer
        scalars = torch.zeros(n_layers) if initial is None else torch.tensor(initial, dtype=torch.float32)
        trainable = trainable and layer is None
        self.scalars = nn.Parameter(scalars, requires_grad=trainable)
        self.gamma = nn.Parameter(torch.tensor(float(gamma)), requires_grad=trainable)

    @property
    def weights(self) -> Tensor:
        """softmax(w), (n_layers,): the share of each layer."""
        if self.layer is None:
            return torch.softmax(self.scalars, dim=0)
        chosen = torch.zeros_like(self.scalars)
        chosen[self.layer] = 1.0
        return chosen

    def penalty(self) -> Tensor:
        """‖w‖²: a large λ pulls the mix to the plain average."""
        return self.scalars.square().sum()

    def forward(self, layers: Tensor | Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """`mask` (batch, tokens) tells the layer norm which tokens are real; without it all are."""
        if len(layers) != self.n_layers:
            raise InputError(f"ScalarMix was built for {self.n_layers} layers, got {len(layers)}.")
        if self.layer is not None:
            return self._normalised(layers[self.layer], mask)
        mixed: Tensor
        if isinstance(layers, Tensor) and not self.layer_norm:
            mixed = torch.tensordot(self.weights, layers, dims=1)  # one pass over the layers
        else:
            first, *others = (weight * self._normalised(layer, mask) for weight, layer in zip(self.weights, layers))
            mixed = sum(others, start=first)
        return self.gamma * mixed

    def _normalised(self, layer: Tensor, mask: Tensor | None) -> Tensor:
        """Mean 0 and variance 1 over the real tokens of each sentence, or of the batch, and their dimensions."""
        if not self.layer_norm:
            return layer
        # Half precision has no room for these sums, nor for the epsilon.
        values = layer.to(torch.promote_types(layer.dtype, torch.float32))
        real = values.new_ones(layer.shape[:-1]) if mask is None else mask.to(values.dtype)
        real = real.unsqueeze(-1)
        dims = (-2, -1) if self.norm_over == "sentence" else tuple(range(layer.dim()))
        n_values = real.sum(dims, keepdim=True).clamp_min(1.0) * layer.shape[-1]
        mean = (values * real).sum(dims, keepdim=True) / n_values
        variance = ((values - mean) * real).square().sum(dims, keepdim=True) / n_values
        return ((values - mean) / torch.sqrt(variance + _EPSILON)).to(layer.dtype)
