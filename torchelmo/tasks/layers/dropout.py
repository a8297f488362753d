"""Dropout that forgets the same dimensions at every token of a sentence (Gal and Ghahramani, 2016)."""

from torch import Tensor, nn
from torch.nn import functional as F

from torchelmo.errors import ConfigError


class VariationalDropout(nn.Module):
    """(batch, tokens, dim) -> the same shape, with one mask for all tokens of a row."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ConfigError(f"VariationalDropout: expected a share p of at least 0 and less than 1, got {p}.")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        return x * F.dropout(x.new_ones(len(x), 1, x.shape[2]), self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"
