"""Consistency regularisation (Jeong & Shin 2020)."""

from dataclasses import dataclass
from typing import final

from torch.nn.functional import cross_entropy

from sigmax.train.evaluation import Network
from sigmax.train.objectives.objective import Batch, Objective, Outcome


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Consistency(Objective):
    r"""Cross entropy, plus disagreement between the noisy copies of an example (Jeong and Shin 2020).

    The loss is cross entropy $+ \lambda\,\mathrm{mean}_j\,\mathrm{KL}(\bar p \| p_j) + \eta\,H(\bar p)$.
    $p_j$ are the probabilities of the j-th noisy copy, $\bar p$ their mean, H the entropy.
    """

    name = "consistency"
    draws: int = 2
    strength: float = 20.0  # lambda
    entropy: float = 0.5  # eta

    def __call__(self, network: Network, batch: Batch) -> Outcome:
        """Cross entropy, disagreement of the copies, and entropy of their mean."""
        logits = batch.logits(network)  # batch draws classes
        fit = cross_entropy(logits.flatten(0, 1), batch.labels.repeat_interleave(self.draws))
        log_probs = logits.log_softmax(dim=-1)
        mean = log_probs.exp().mean(dim=1)  # batch classes
        # log(0) has no gradient. The bound is far below any probability that matters.
        log_mean = mean.clamp(min=1e-20).log()
        spread = (mean * (log_mean - log_probs.mean(dim=1))).sum(dim=-1).mean()
        entropy = -(mean * log_mean).sum(dim=-1).mean()
        return Outcome(loss=fit + self.strength * spread + self.entropy * entropy, logits=logits)
