"""MACER (Zhai et al. 2020)."""

from dataclasses import dataclass
from typing import final

from torch.nn.functional import nll_loss

from sigmax.train.evaluation import Network
from sigmax.train.objectives.objective import Batch, Objective, Outcome

# The quantile function is infinite at 0 and 1. At this distance its gap is 9.5, beyond the usual hinge of 8.
_MARGIN = 1e-6


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Macer(Objective):
    r"""Cross entropy of the smoothed classifier, plus a hinge on its certified radius (Zhai et al. 2020).

    The loss of an example is $-\log\bar p_y$, plus $\frac{\lambda\sigma}{2}\max(\gamma - \frac{2R}{\sigma}, 0)$ where
    the answer is right. $\bar p$ is the mean softmax over the draws. R is the radius of $\bar q$, the mean softmax of
    $\beta$ times the logits, which is closer to the hard answers that certification counts. Under
    Gaussian noise $2R/\sigma = \Phi^{-1}(\bar q_{(1)}) - \Phi^{-1}(\bar q_{(2)})$.
    """

    name = "macer"
    draws: int = 64  # k
    strength: float = 12.0  # lambda
    hinge: float = 8.0  # gamma
    sharpness: float = 16.0  # beta

    def __call__(self, network: Network, batch: Batch) -> Outcome:
        """Cross entropy of the mean probabilities, and the hinge where the answer is right."""
        logits = batch.logits(network)  # batch draws classes
        probs = logits.softmax(dim=-1).mean(dim=1)  # batch classes
        fit = nll_loss(probs.clamp(min=1e-20).log(), batch.labels)

        sharp = (self.sharpness * logits).softmax(dim=-1).mean(dim=1)  # batch classes
        is_correct = (probs.argmax(dim=-1) == batch.labels) & (sharp.argmax(dim=-1) == batch.labels)
        radius = batch.noise.soft_radius(sharp.clamp(_MARGIN, 1 - _MARGIN), batch.sigma, label=batch.labels)
        shortfall = (self.hinge - 2 * radius / batch.sigma).clamp(min=0)  # batch
        robustness = (batch.sigma / 2 * shortfall * is_correct).sum() / len(batch.x)
        return Outcome(loss=fit + self.strength * robustness, logits=logits)
