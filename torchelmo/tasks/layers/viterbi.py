"""The best path through label scores: max_y start(y_1) + Σ_t emission_t(y_t) + Σ_t pair(y_t, y_{t+1}) + end(y_n)."""

import torch
from torch import Tensor


@torch.no_grad()
def viterbi_decode(emissions: Tensor, mask: Tensor, *, pairs: Tensor, start: Tensor, end: Tensor) -> list[list[int]]:
    """(batch, tokens, n_labels) and `mask` (batch, tokens) -> the labels of each row, [] for a row without tokens.

    `pairs` (n_labels, n_labels) scores from → to. −∞ forbids. Of equal paths that with the lowest last label wins,
    then with the lowest label before it, and so on.
    """
    batch, tokens, n_labels = emissions.shape
    if not mask.numel():
        return [[] for _ in range(batch)]
    steps, real = emissions.transpose(0, 1), mask.transpose(0, 1).unsqueeze(2)
    stay = torch.arange(n_labels, device=emissions.device).expand(batch, n_labels)
    best = start + steps[0]  # (batch, n_labels): of the paths that end in each label so far
    pointers: list[Tensor] = []  # (batch, n_labels) for each step: the label before
    for t in range(1, tokens):
        score, before = (best.unsqueeze(2) + pairs).max(dim=1)  # the first of equals
        best = torch.where(real[t], score + steps[t], best)
        pointers.append(torch.where(real[t], before, stay))
    label = (best + end).argmax(dim=1, keepdim=True)
    path = [label]
    for before in reversed(pointers):
        label = before.gather(1, label)
        path.append(label)
    rows = torch.cat(path[::-1], dim=1).tolist()
    return [row[:length] for row, length in zip(rows, mask.sum(dim=1).tolist())]
