"""③ A learned combination of all layers, γ Σ_j softmax(w)_j h_j, and its penalty ‖w‖²."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from torchelmo.errors import ConfigError, InputError

_EPSILON = 1e-13  # of the layer norm, as published


class ScalarMix(nn.Module):
    """A weighted average of layers: (n_layers, batch, tokens, dim) -> (batch, tokens, dim).

    Args:
        n_layers: The number of layers.
        layer_norm: Normalize each layer before mixing.
        norm_over: Compute mean and variance of the layer norm over the tokens of each "sentence", so that a sentence's
            vectors depend on that sentence alone, or over all tokens of the "batch", as published.
        initial: The weights w before the softmax; default: all 0, the plain average.
        gamma: The initial scale γ.
        trainable: Train w and γ.
        layer: Return this layer alone, without weights and without γ.

    Raises:
        InputError: `initial` or `layer` does not fit `n_layers`.
        ConfigError: `norm_over` has a wrong value.

    Example:
        >>> import torch
        >>> from torchelmo import ScalarMix
        >>> mix = ScalarMix(3, initial=[0.0, 0.0, 0.0], gamma=2.0)
        >>> mix(torch.ones(3, 1, 2, 4)).shape, mix.weights.tolist()
        (torch.Size([1, 2, 4]), [0.3333333432674408, 0.3333333432674408, 0.3333333432674408])
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
        """The weight of each layer, softmax(w), (n_layers,)."""
        if self.layer is None:
            return torch.softmax(self.scalars, dim=0)
        chosen = torch.zeros_like(self.scalars)
        chosen[self.layer] = 1.0
        return chosen

    def penalty(self) -> Tensor:
        """Return ‖w‖². Adding λ‖w‖² to the loss pulls the mix towards the plain average."""
        return self.scalars.square().sum()

    def forward(self, layers: Tensor | Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Mix the layers.

        Args:
            layers: (n_layers, batch, tokens, dim), or a list of layers.
            mask: (batch, tokens), true at real tokens, for the layer norm; default: all tokens are real.

        Returns:
            The mix (batch, tokens, dim).

        Raises:
            InputError: The number of layers is not that of the mix.
        """
        if len(layers) != self.n_layers:
            raise InputError(f"ScalarMix expects {self.n_layers} layers, got {len(layers)}.")
        if self.layer is not None:
            return self._normalize(layers[self.layer], mask)
        mixed: Tensor
        if isinstance(layers, Tensor) and not self.layer_norm:
            weights = self.weights
            dtype = torch.promote_types(weights.dtype, layers.dtype)  # autocast may have changed that of the layers
            mixed = torch.tensordot(weights.to(dtype), layers.to(dtype), dims=1)  # one pass over the layers
        else:
            first, *others = (weight * self._normalize(layer, mask) for weight, layer in zip(self.weights, layers))
            mixed = sum(others, start=first)
        return self.gamma * mixed

    def _normalize(self, layer: Tensor, mask: Tensor | None) -> Tensor:
        """Shift and scale to mean 0 and variance 1 over the dimensions of all real tokens of a sentence or batch."""
        if not self.layer_norm:
            return layer
        # Half precision cannot represent these sums, nor the epsilon.
        values = layer.to(torch.promote_types(layer.dtype, torch.float32))
        real = values.new_ones(layer.shape[:-1]) if mask is None else mask.to(values.dtype)
        real = real.unsqueeze(-1)
        dims = (-2, -1) if self.norm_over == "sentence" else tuple(range(layer.dim()))
        n_values = real.sum(dims, keepdim=True).clamp_min(1.0) * layer.shape[-1]
        mean = (values * real).sum(dims, keepdim=True) / n_values
        variance = ((values - mean) * real).square().sum(dims, keepdim=True) / n_values
        return ((values - mean) / torch.sqrt(variance + _EPSILON)).to(layer.dtype)
