"""SmoothAdv (Salman et al. 2019)."""

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from sigmax.errors import InvalidInputError
from sigmax.train.evaluation import Network, evaluating
from sigmax.train.objectives.objective import Batch, Objective, Outcome

# How DDN grows and shrinks the norm of its perturbation from step to step (Rony et al. 2019).
_DDN_FACTOR = 0.05


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothAdv(Objective):
    r"""Cross entropy on noisy adversarial examples (Salman et al. 2019).

    The adversarial example is the $x'$ within $\zeta$ of x that maximises
    $-\log\mathrm{mean}_j\,f_y(x' + \sigma\epsilon_j)$. Attack and training step use the same noise. The attack runs the
    network in evaluation mode: neither its batch-norm statistics nor its gradients change.
    """

    name = "smoothadv"
    draws: int = 1  # m
    epsilon: float = 0.25  # the radius of the attack, zeta
    relative: bool = False  # whether epsilon is in units of each example's sigma
    steps: int = 2  # of the attack
    warmup: int = 10  # epochs over which the radius grows to epsilon
    attack: Literal["pgd", "ddn"] = "pgd"  # ddn looks for the nearest adversarial input inside the ball

    def __post_init__(self) -> None:
        Objective.__post_init__(self)  # super() does not find its class in a dataclass with slots
        if self.steps < 1 or self.attack not in ("pgd", "ddn"):
            raise InvalidInputError(
                f"expected steps >= 1 and attack pgd or ddn, got steps={self.steps}, attack={self.attack}"
            )

    @property
    def passes(self) -> int:
        """Each attack step costs as much as the training step; DDN looks once more than it moves."""
        return 3 * self.draws * (self.steps + 1 + (self.attack == "ddn"))

    def __call__(self, network: Network, batch: Batch) -> Outcome:
        """Attack, then cross entropy of the noisy copies of what was found."""
        logits = batch.logits(network, self.adversary(network, batch))  # batch draws classes
        loss = cross_entropy(logits.flatten(0, 1), batch.labels.repeat_interleave(self.draws))
        return Outcome(loss=loss, logits=logits)

    def adversary(self, network: Network, batch: Batch) -> Tensor:
        """Inputs within the radius of this epoch that the smoothed classifier likes least, (batch, *dims)."""
        grown = min(1.0, (batch.epoch + 1) / self.warmup if self.warmup else 1.0)
        radius = attack_radius(self.epsilon * grown, batch.sigma if self.relative else None, like=batch.x)
        attack = _pgd if self.attack == "pgd" else _ddn
        with evaluating(network) as fixed:
            delta = attack(fixed, batch, radius=radius, steps=self.steps)
        return batch.x + delta


def attack_radius(epsilon: float, sigma: Tensor | None, *, like: Tensor) -> float | Tensor:
    """The radius of an attack on `like`: epsilon, or epsilon times the sigma of each, shaped to multiply it."""
    return epsilon if sigma is None else _column(epsilon * sigma, like)


def _pgd(network: Network, batch: Batch, *, radius: float | Tensor, steps: int) -> Tensor:
    """Steps of 2 radius / steps along the normalised gradient, each followed by projection onto the ball."""
    delta = torch.zeros_like(batch.x)
    for _ in range(steps):
        slope, _ = _ascent_direction(network, batch, delta)
        delta = shorten(delta + 2 * radius / steps * slope, radius)
    return delta


def _ddn(network: Network, batch: Batch, *, radius: float | Tensor, steps: int) -> Tensor:
    """Decoupled direction and norm: the norm shrinks where the input is adversarial and grows where it is not.

    The answer is the smallest adversarial perturbation seen, and the last one where there was none.
    """
    delta = torch.zeros_like(batch.x)
    norm = (radius * torch.ones_like(_lengths(delta))).flatten()
    best, best_norm = delta, torch.full_like(norm, math.inf)
    for step in range(steps + 1):  # once more than it moves: the last place is looked at too
        slope, is_fooled = _ascent_direction(network, batch, delta)
        length = delta.flatten(1).norm(dim=1)
        is_best = is_fooled & (length < best_norm)
        best, best_norm = torch.where(_column(is_best, delta), delta, best), torch.where(is_best, length, best_norm)
        if step == steps:
            break
        stride = 0.01 + 0.99 * (1 + math.cos(math.pi * step / steps)) / 2  # from 1 down to 0.01
        norm = norm * torch.where(is_fooled, 1 - _DDN_FACTOR, 1 + _DDN_FACTOR)
        moved = delta + stride * slope
        delta = shorten(moved * _column(norm, moved) / _lengths(moved), radius)
    return torch.where(_column(best_norm < math.inf, delta), best, delta)


def _ascent_direction(network: Network, batch: Batch, delta: Tensor) -> tuple[Tensor, Tensor]:
    """The unit gradient of the smoothed loss at x + delta, and where the smoothed answer is wrong."""
    delta = delta.detach().requires_grad_()
    logits = batch.logits(network, batch.x + delta)  # batch draws classes
    labels = batch.labels.reshape(-1, 1, 1).expand(-1, logits.shape[1], 1)
    # By margins: where the label's probability rounds to 1, what it lacks to 1 still has a gradient.
    lead = logits.gather(-1, labels).squeeze(-1) - logits.scatter(-1, labels, -math.inf).logsumexp(dim=-1)
    loss = -logsigmoid(lead).logsumexp(dim=1).sum()  # up to a constant
    (gradient,) = torch.autograd.grad(loss, delta)
    return unit(gradient), logits.softmax(dim=-1).mean(dim=1).argmax(dim=-1) != batch.labels


def unit(gradient: Tensor) -> Tensor:
    """Each example's gradient at length 1, however short it is; none where there is none."""
    largest = gradient.flatten(1).abs().amax(dim=1).clamp(min=torch.finfo(gradient.dtype).tiny)
    gradient = gradient / _column(largest, gradient)  # whose squares neither vanish nor overflow
    return gradient / _lengths(gradient)


def shorten(delta: Tensor, radius: float | Tensor) -> Tensor:
    """The nearest points of the ball."""
    return delta * (radius / _lengths(delta)).clamp(max=1.0)


def _lengths(tensor: Tensor) -> Tensor:
    """The l2 norm of each example, shaped to divide it; never 0."""
    return _column(tensor.flatten(1).norm(dim=1).clamp(min=1e-12), tensor)


def _column(values: Tensor, like: Tensor) -> Tensor:
    """(batch,) -> (batch, 1, …)."""
    return values.reshape(-1, *[1] * (like.ndim - 1))
