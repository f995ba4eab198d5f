"""Noise augmentation (Cohen et al. 2019)."""

from dataclasses import dataclass
from typing import final

from torch.nn.functional import cross_entropy

from sigmax.train.evaluation import Network
from sigmax.train.objectives.objective import Batch, Objective, Outcome


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cohen(Objective):
    r"""Cross entropy on noisy copies (Cohen et al. 2019): $-\log f_y(x + \sigma\epsilon)$, averaged over the draws."""

    name = "cohen"
    draws: int = 1

    def __call__(self, network: Network, batch: Batch) -> Outcome:
        """Cross entropy of every noisy copy."""
        logits = batch.logits(network)  # batch draws classes
        loss = cross_entropy(logits.flatten(0, 1), batch.labels.repeat_interleave(self.draws))
        return Outcome(loss=loss, logits=logits)
