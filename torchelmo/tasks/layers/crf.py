"""A linear-chain conditional random field (Lafferty et al., 2001; Lample et al., 2016).

score(y) = start(y_1) + Σ_t emission_t(y_t) + Σ_t pair(y_t, y_{t+1}) + end(y_n)
log p(y) = score(y) − log Σ_{y'} exp score(y')
"""

import torch
from torch import Tensor, nn

from torchelmo.errors import InputError
from torchelmo.tasks.tagging import Transitions

# Score of a forbidden transition in the forward algorithm: exp of it is 0 beside any score. With -inf, the gradient
# of a label that cannot be reached would be NaN.
_FORBIDDEN = -1e9


class CRF(nn.Module):
    """A CRF over emissions (batch, tokens, n_labels), with a `mask` (batch, tokens) that is true at real tokens.

    Real tokens come first in every row.

    Args:
        n_labels: The number of labels.
        transitions: Which labels may start, follow one another and end; paths that break this are neither summed nor
            decoded. None allows all.
    """

    allowed_start: Tensor
    allowed_pairs: Tensor
    allowed_end: Tensor

    def __init__(self, n_labels: int, *, transitions: Transitions | None = None) -> None:
        super().__init__()
        self.n_labels = n_labels
        self.pairs = nn.Parameter(torch.empty(n_labels, n_labels))  # from → to
        self.start = nn.Parameter(torch.empty(n_labels))
        self.end = nn.Parameter(torch.empty(n_labels))
        for name, parameter in list(self.named_parameters()):
            nn.init.uniform_(parameter, -0.1, 0.1)
            everything = torch.ones_like(parameter, dtype=torch.bool)
            allowed = everything if transitions is None else getattr(transitions, name)
            if allowed.shape != parameter.shape:
                raise InputError(
                    f"CRF: expected transitions.{name} of shape {tuple(parameter.shape)} for {n_labels} labels, "
                    f"got {tuple(allowed.shape)}."
                )
            self.register_buffer(f"allowed_{name}", allowed, persistent=False)

    def log_likelihood(self, emissions: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Return log p(labels) of each row: labels (batch, tokens) -> (batch,); 0 for a row without tokens."""
        emissions = emissions.to(self.pairs.dtype)
        if not mask.numel():
            return emissions.sum(dim=(1, 2))
        self._check(labels, mask)
        score = self._score(emissions, labels, mask) - self._log_partition(emissions, mask)
        return score.masked_fill(~mask.any(dim=1), 0.0)

    def viterbi(self, emissions: Tensor, mask: Tensor) -> list[list[int]]:
        """Return the most likely labels of each row."""
        start, pairs, end = self._scores(-torch.inf)
        return viterbi_decode(emissions.to(pairs.dtype), mask, pairs=pairs, start=start, end=end)

    def _scores(self, forbidden: float) -> tuple[Tensor, Tensor, Tensor]:
        return (
            self.start.masked_fill(~self.allowed_start, forbidden),
            self.pairs.masked_fill(~self.allowed_pairs, forbidden),
            self.end.masked_fill(~self.allowed_end, forbidden),
        )

    def _log_partition(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Return log Σ_y exp score(y) of each row, (batch,), by the forward algorithm."""
        start, pairs, end = self._scores(_FORBIDDEN)
        steps, real = emissions.transpose(0, 1), mask.transpose(0, 1).unsqueeze(2)
        alpha = start + steps[0]  # (batch, n_labels): log-sum of all paths so far that end in each label
        for t in range(1, len(steps)):
            after = torch.logsumexp(alpha.unsqueeze(2) + pairs, dim=1) + steps[t]
            alpha = torch.where(real[t], after, alpha)
        return torch.logsumexp(alpha + end, dim=1)

    def _score(self, emissions: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Return score(y) of the given labels, (batch,)."""
        labels = labels.masked_fill(~mask, 0)  # padding may hold any number
        of_tokens = emissions.gather(2, labels.unsqueeze(2)).squeeze(2)
        of_pairs = self.pairs[labels[:, :-1], labels[:, 1:]]
        score = (of_tokens * mask).sum(dim=1) + (of_pairs * mask[:, 1:]).sum(dim=1)
        return score + self.start[labels[:, 0]] + self.end[_last(labels, mask)]

    def _check(self, labels: Tensor, mask: Tensor) -> None:
        """Refuse gold labels that the transitions forbid: their probability would be 0."""
        inside = labels.masked_fill(~mask, 0)
        fine = self.allowed_pairs[inside[:, :-1], inside[:, 1:]] | ~mask[:, 1:]
        good = self.allowed_start[inside[:, 0]] & fine.all(dim=1) & self.allowed_end[_last(inside, mask)]
        bad = (~good & mask.any(dim=1)).nonzero()
        if len(bad):
            row = int(bad[0])
            raise InputError(
                f"CRF: expected labels that the transitions allow, but row {row} breaks them: "
                f"{labels[row][mask[row]].tolist()}. Convert the labels to the scheme that the CRF was built for."
            )


@torch.no_grad()
def viterbi_decode(emissions: Tensor, mask: Tensor, *, pairs: Tensor, start: Tensor, end: Tensor) -> list[list[int]]:
    """Return the labels of the best path of each row, [] for a row without tokens.

    Ties are resolved by the lowest last label, then by the lowest label before it, and so on.

    Args:
        emissions: (batch, tokens, n_labels).
        mask: (batch, tokens), true at real tokens, which come first.
        pairs: (n_labels, n_labels), scores of transitions from → to; -inf forbids one.
        start: (n_labels,), scores of the first label.
        end: (n_labels,), scores of the last label.
    """
    batch, tokens, n_labels = emissions.shape
    if not mask.numel():
        return [[] for _ in range(batch)]
    steps, real = emissions.transpose(0, 1), mask.transpose(0, 1).unsqueeze(2)
    stay = torch.arange(n_labels, device=emissions.device).expand(batch, n_labels)
    best = start + steps[0]  # (batch, n_labels): score of the best path so far that ends in each label
    pointers: list[Tensor] = []  # (batch, n_labels) for each step: the best previous label
    for t in range(1, tokens):
        score, before = (best.unsqueeze(2) + pairs).max(dim=1)  # the first of equal maxima
        best = torch.where(real[t], score + steps[t], best)
        pointers.append(torch.where(real[t], before, stay))
    label = (best + end).argmax(dim=1, keepdim=True)
    path = [label]
    for before in reversed(pointers):
        label = before.gather(1, label)
        path.append(label)
    rows = torch.cat(path[::-1], dim=1).tolist()
    return [row[:length] for row, length in zip(rows, mask.sum(dim=1).tolist())]


def _last(labels: Tensor, mask: Tensor) -> Tensor:
    """Return the label of the last real token of each row, (batch,)."""
    places = (mask.sum(dim=1) - 1).clamp_min(0)
    return labels.gather(1, places.unsqueeze(1)).squeeze(1)
