"""CAT-RS (Jeong, Kim and Shin 2023)."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, one_hot

from sigmax.train.evaluation import Network, evaluating, noisy_logits
from sigmax.train.objectives.objective import Batch, Objective, Outcome
from sigmax.train.objectives.smoothadv import attack_radius, shorten, unit


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CatRs(Objective):
    r"""Easy copies of uncertain examples, worst cases of confident ones (Jeong, Kim and Shin 2023).

    $\hat p$ is the share of the M noisy copies of an example that the network answers correctly, and
    $K \sim \mathrm{Binomial}(M, \hat p)$, at least 1. The loss of the example is 1/M times the sum of the K smallest
    cross entropies of its copies. Where K = M, $\lambda\,\max_i\,\mathrm{KL}(\hat y \| f(x_i + \delta_i))$ is added:
    $x_i$ are the copies, $\hat y$ the shares of their votes, and $\delta_i$ within $\epsilon$ of 0 maximises its term.

    This differs from the authors' code. There, $\hat y$ are the votes of an earlier network on 10,000 copies, and
    perturbed noise is shifted and scaled to its former mean and length. Here, the network in training votes, in
    evaluation mode. It is attacked in evaluation mode too, and only on confident examples.
    """

    name = "catrs"
    draws: int = 4  # M
    strength: float = 1.0  # lambda
    epsilon: float = 1.0  # the radius of the attack
    relative: bool = False  # whether epsilon is in units of each example's sigma
    steps: int = 4  # of the attack

    @property
    def passes(self) -> int:
        """At most: vote, attack, and train on the copies and on what the attack found."""
        return self.draws * (1 + 3 * self.steps + 6)

    def __call__(self, network: Network, batch: Batch) -> Outcome:
        """Vote, attack the confident examples, then one pass over the copies and what the attack found."""
        noisy, sigma = batch.noise.add(batch.x, batch.sigma, batch.eps), batch.sigma  # batch draws *dims
        with evaluating(network) as fixed:
            with torch.no_grad():
                logits = noisy_logits(fixed, noisy, sigma)  # batch draws classes
            votes = one_hot(logits.argmax(dim=-1), logits.shape[-1]).sum(dim=1)  # batch classes
            kept = self.kept(votes.gather(1, batch.labels.unsqueeze(1)).squeeze(1), batch.uniform)  # batch
            is_sure = kept == self.draws
            target = (votes[is_sure] / self.draws).to(logits).unsqueeze(1).expand(-1, self.draws, -1)
            found = self.attack(fixed, noisy[is_sure], sigma[is_sure], target)  # sure draws *dims
        # One pass: processes that share a batch must call the network equally often.
        logits = noisy_logits(network, torch.cat([noisy, found]), torch.cat([sigma, sigma[is_sure]]))
        logits, attacked = logits[: len(noisy)], logits[len(noisy) :]
        losses = cross_entropy(
            logits.flatten(0, 1), batch.labels.repeat_interleave(self.draws), reduction="none"
        ).reshape(-1, self.draws)
        is_kept = torch.arange(self.draws, device=kept.device) < kept.unsqueeze(1)
        low = (losses.sort(dim=1).values * is_kept).mean()
        high = _divergence(attacked, target).amax(dim=1).sum() / len(noisy)
        return Outcome(loss=low + self.strength * high, logits=logits)

    def kept(self, correct: Tensor, uniform: Tensor) -> Tensor:
        """K of each example: the quantiles of Binomial(M, correct / M) at these numbers in (0, 1); at least 1."""
        below = binom.cdf(np.arange(self.draws), self.draws, np.arange(self.draws + 1)[:, None] / self.draws)
        table = torch.from_numpy(below).to(uniform)  # correct K: the probability of at most K
        return (uniform.unsqueeze(1) >= table[correct]).sum(dim=1).clamp(min=1)

    def attack(self, network: Network, noisy: Tensor, sigma: Tensor, target: Tensor) -> Tensor:
        """Move each noisy copy, by at most epsilon, to where the network is farthest from the target."""
        delta = torch.zeros_like(noisy).flatten(0, 1)  # copies *dims
        levels = sigma.repeat_interleave(self.draws) if self.relative else None
        radius = attack_radius(self.epsilon, levels, like=delta)
        for _ in range(self.steps if len(noisy) else 0):
            delta = delta.detach().requires_grad_()
            logits = noisy_logits(network, noisy + delta.reshape(noisy.shape), sigma)
            (slope,) = torch.autograd.grad(_divergence(logits, target).sum(), delta)
            delta = shorten(delta + 2 * radius / self.steps * unit(slope), radius)
        return noisy + delta.detach().reshape(noisy.shape)


def _divergence(logits: Tensor, target: Tensor) -> Tensor:
    """KL(target || softmax of the logits), over the last dimension."""
    return kl_div(logits.log_softmax(dim=-1), target, reduction="none").sum(dim=-1)
