"""The convolutions of the character encoder by tables, with their gradient written out: the fast path for training.

    ∂/∂T_k[c] = the sum of ∂/∂y_p over all windows p where c_{p+k} = c        (see char_tables.py)

The filters are shared out to the cores.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchelmo.bilm.char_cnn import CharCNN
from torchelmo.bilm.char_tables import Words, chunks, make_tables, shortest_first, sum_rows
from torchelmo.bilm.parallel import in_parallel


def encode_types(encoder: CharCNN, ids: Tensor) -> Tensor:
    """(n, max_characters) -> (n, projection_dim): what `encoder(ids)` gives, and its gradients."""
    layers = encoder.conv_layers()
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    pooled = _Convolutions.apply(ids.long(), encoder.embedding, *weights)  # type: ignore[no-untyped-call]
    pooled = pooled + torch.cat([bias for bias in biases if bias is not None])
    features = torch.relu(pooled) if encoder.config.activation == "relu" else torch.tanh(pooled)
    return encoder.combine(features)


class _Convolutions(torch.autograd.Function):
    """ids, E (n_characters, char_dim), weights (count, char_dim, width) -> maxima (n, n_filters), no bias."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, embedding: Tensor, *weights: Tensor) -> Tensor:
        ctx.words = words = shortest_first(ids)
        ctx.save_for_backward(embedding, *weights)
        pooled = embedding.new_empty(len(ids), sum(map(len, weights)))
        columns = pooled.split([len(weight) for weight in weights], dim=1)
        with torch.autocast(ids.device.type, enabled=False):
            shares = zip(_share(weights, 0), _share(columns, 1))
            in_parallel(_pool, [(words, embedding, *share) for share in shares], ids.device)
        return torch.empty_like(pooled).index_copy_(0, words.order, pooled)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        embedding, *weights = ctx.saved_tensors
        columns = gradient[ctx.words.order].split([len(weight) for weight in weights], dim=1)
        with torch.autocast(gradient.device.type, enabled=False):
            shares = zip(_share(weights, 0), _share(columns, 1))
            parts = in_parallel(_pool_backward, [(ctx.words, embedding, *share) for share in shares], gradient.device)
        d_weights = [torch.cat(pieces) for pieces in zip(*(part[1] for part in parts))]
        return None, torch.stack([part[0] for part in parts]).sum(dim=0), *d_weights


def _pool(words: Words, embedding: Tensor, weights: Sequence[Tensor], pooled: Sequence[Tensor]) -> None:
    for weight, columns in zip(weights, pooled):
        tables = make_tables(embedding, weight)
        for rows, ids in chunks(words, tables):
            torch.amax(sum_rows(tables, ids), dim=1, out=columns[rows])


def _pool_backward(
    words: Words, embedding: Tensor, weights: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The gradients of the embedding and of each weight. What went forward is cheaper to repeat than to keep."""
    d_embedding, d_weights = torch.zeros_like(embedding), []
    for weight, gradient in zip(weights, gradients):
        tables = make_tables(embedding, weight)
        d_tables = torch.zeros_like(tables)
        for rows, ids in chunks(words, tables):
            values = sum_rows(tables, ids)
            # Windows that share the maximum share its gradient, as `amax` has it.
            d_values = values.eq_(values.amax(dim=1, keepdim=True))
            d_values.mul_((gradient[rows] / d_values.sum(dim=1)).unsqueeze(1))
            for k in range(len(tables)):
                d_tables[k].index_add_(0, ids[:, :, k].reshape(-1), d_values.flatten(0, 1))
        d_embedding += torch.bmm(d_tables, weight.permute(2, 0, 1)).sum(dim=0)
        d_weights.append(torch.matmul(embedding.T, d_tables).permute(2, 1, 0))
    return d_embedding, d_weights


def _share(tensors: Sequence[Tensor], dim: int) -> list[list[Tensor]]:
    """For each core a part of every tensor along `dim`; fewer where there is too little to share."""
    n = max(1, min(torch.get_num_threads(), *(tensor.shape[dim] for tensor in tensors)))
    return [list(parts) for parts in zip(*(tensor.tensor_split(n, dim) for tensor in tensors))]
