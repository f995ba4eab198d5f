"""Optimizers: stochastic gradient descent as usual in the field, and Muon, which needs fewer epochs.

torch's own Muon takes only matrices, but most weights here are convolutions.
"""

import math
from collections.abc import Iterable
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

Optimizer = Literal["sgd", "muon"]

# Iterating this quintic drives all singular values towards 1 within a few steps (Jordan et al. 2024).
_QUINTIC, _ITERATIONS = (3.4445, -4.7750, 2.0315), 5
# Other parameters than convolutions take plain gradient steps, at this multiple of the learning rate.
_REST = 2.5


def make_optimizer(
    kind: Optimizer, network: nn.Module, *, lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """The optimizer of this kind. The learning rate of a group is its `scale` times that of the schedule.

    "sgd" uses Nesterov momentum, with decay on weights but not on biases and batch norm. "muon" treats convolutions
    by Muon with decoupled decay, and all other parameters by plain steps without decay.
    """
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if kind == "sgd":
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay, "scale": 1.0},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0, "scale": 1.0},
        ]
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0)
    groups = [
        {"params": [p for p in parameters if p.ndim == 4], "weight_decay": weight_decay, "scale": 1.0},
        {"params": [p for p in parameters if p.ndim != 4], "weight_decay": 0.0, "scale": _REST},
    ]
    return Muon(groups, lr=lr, momentum=momentum)


@final
class Muon(torch.optim.Optimizer):
    """Momentum whose step on a convolution is the nearest orthogonal matrix (Jordan et al. 2024).

    A filter bank (out, in, h, w) is treated as the matrix (out, h w in). It moves by the same length in all its
    directions, whatever the size of the gradient along them, so a network needs fewer epochs. Parameters of other
    shapes take the plain Nesterov step. Weight decay is decoupled: a parameter shrinks by lr * weight_decay per step.
    """

    def __init__(self, params: Iterable[Any], *, lr: float, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum = state["momentum"]
                torch.add(parameter.grad, momentum, alpha=group["momentum"], out=momentum)
                direction = torch.add(parameter.grad, momentum, alpha=group["momentum"])
                if parameter.ndim == 4:
                    # Channels last, as convolutions are kept in training: no copies.
                    filters = direction.permute(0, 2, 3, 1)
                    direction = orthogonalised(filters.flatten(1)).reshape(filters.shape).permute(0, 3, 1, 2)
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=group["lr"])


def orthogonalised(matrix: Tensor) -> Tensor:
    """Roughly the nearest matrix with orthonormal rows; of a tall one: columns, times sqrt(rows / columns).

    Singular values need to be near 1 only roughly: all but the tiniest end between 0.3 and 1.3.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if is_tall else matrix
    norm = matrix.norm() + 1e-7
    # Each iterate a x + (b g + c g^2) x with g = x x^T is a symmetric factor times the first x, and g stays a
    # polynomial of the first g. If a filter has more numbers than there are filters, iterating only on these two
    # takes a third of the time.
    gram: Tensor = x @ x.T / norm**2
    step = _quintic(gram)
    factor = step / norm
    for _ in range(_ITERATIONS - 1):
        gram = step @ gram @ step
        step = _quintic(gram)
        factor = step @ factor
    x = factor @ x
    if is_tall:
        x = x.T * math.sqrt(matrix.shape[0] / matrix.shape[1])
    return x


def _quintic(gram: Tensor) -> Tensor:
    """The factor of an iteration: a + b g + c g^2."""
    a, b, c = _QUINTIC
    step = torch.addmm(gram, gram, gram, beta=b, alpha=c)
    step.diagonal().add_(a)
    return step
