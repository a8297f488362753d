"""The Muon optimizer: orthogonalized momentum for matrices (Jordan et al. 2024), AdamW for all other parameters.

M ← μ M + (1 − μ) G,   U = (1 − μ) G + μ M,   W ← W − lr · (λ W + s · √max(rows, columns) · orthogonal(U))

orthogonal(U) approximates the nearest matrix whose singular values are all 1. Five Newton-Schulz steps compute it,
X ← (a I + b X Xᵀ + c (X Xᵀ)²) X, which move singular values close to 1. With s = 0.2, an update has about the root mean
square of an update of AdamW (Liu et al. 2025), so that both kinds of parameters share one learning rate.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from torchelmo.bilm.lstm import ProjectedLSTM
from torchelmo.runs.distributed import World

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # a, b, c
_N_STEPS = 5


class Muon(torch.optim.Optimizer):
    """Train matrices by orthogonalized momentum, and all other parameters by AdamW.

    Args:
        parameters: All trained parameters.
        blocks: The matrices to orthogonalize, each with the number of blocks that its columns form (see `lstm_blocks`).
            Every block is orthogonalized separately.
        lr: The learning rate of all parameters.
        betas: The decay rates of AdamW.
        eps: Added to the denominator of AdamW.
        momentum: The decay rate μ of the momentum of matrices.
        scale: The factor s of orthogonalized updates.
        weight_decay: The decoupled weight decay λ of all parameters.
        world: The ranks of a training with several processes, which share the work of orthogonalizing.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        blocks: Mapping[Tensor, int],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        momentum: float = 0.95,
        scale: float = 0.2,
        weight_decay: float = 0.0,
        world: World | None = None,
    ) -> None:
        super().__init__(
            parameters,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "momentum": momentum,
                "scale": scale,
                "weight_decay": weight_decay,
            },
        )
        self._blocks, self._world = dict(blocks), world or World()

    def state_names(self, parameter: Tensor) -> tuple[str, ...]:
        """Return the names of the tensors that the optimizer keeps for a parameter."""
        return ("momentum",) if parameter in self._blocks else ("exp_avg", "exp_avg_sq", "step")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        if closure is not None:
            raise NotImplementedError("Muon.step does not support a closure. Call it without arguments.")
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            self._orthogonal_step(group, [parameter for parameter in trained if parameter in self._blocks])
            self._adamw_step(group, [parameter for parameter in trained if parameter not in self._blocks])

    def _orthogonal_step(self, group: dict[str, Any], matrices: list[nn.Parameter]) -> None:
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}  # blocks of weights and updates
        for weight in matrices:
            assert weight.grad is not None
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            state["momentum"].lerp_(weight.grad, 1.0 - group["momentum"])
            update = weight.grad.lerp(state["momentum"], group["momentum"])
            n_blocks = self._blocks[weight]
            for pair in zip(weight.detach().chunk(n_blocks, dim=1), update.chunk(n_blocks, dim=1)):
                wide = pair if weight.shape[0] <= pair[0].shape[1] else (pair[0].T, pair[1].T)
                by_shape.setdefault(wide[0].shape, []).append(wide)
        for shape, blocks in by_shape.items():
            directions = self._world.map_shares(orthogonalize, torch.stack([update for _, update in blocks]))
            for (block, _), direction in zip(blocks, directions):
                block.mul_(1.0 - group["lr"] * group["weight_decay"])
                block.add_(direction, alpha=-group["lr"] * group["scale"] * shape[1] ** 0.5)

    def _adamw_step(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        states = [self.state[parameter] for parameter in parameters]
        adamw(
            list(parameters),
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def lstm_blocks(model: nn.Module) -> dict[Tensor, int]:
    """Return the matrices of all LSTMs of a biLM, each with its number of blocks: one per gate, 1 for projections."""
    blocks: dict[Tensor, int] = {}
    for module in model.modules():
        if isinstance(module, ProjectedLSTM):
            blocks |= {module.input_weight: 4, module.state_weight: 4, module.projection: 1}
    return blocks


def orthogonalize(matrices: Tensor) -> Tensor:
    """Move the singular values of matrices close to 1: (n, rows, columns) -> the same shape, for rows ≤ columns.

    The steps use G = X Xᵀ, which is smaller than X, and multiply their factors P:
    X_k = P_k … P_1 X_0, G_k = P_k G_{k−1} P_k.
    """
    a, b, c = _COEFFICIENTS
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    gram = torch.bmm(x, x.mT)
    factor: Tensor | None = None
    for k in range(_N_STEPS):
        step = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # P − a I
        step.diagonal(dim1=1, dim2=2).add_(a)
        factor = step if factor is None else torch.bmm(step, factor)
        if k < _N_STEPS - 1:
            gram = torch.bmm(step, torch.bmm(gram, step))
    assert factor is not None
    return torch.bmm(factor, x)
