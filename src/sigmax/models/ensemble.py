"""Ensembles: the mean of several networks' logits as one base classifier (Horvath et al. 2022)."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from sigmax.errors import InvalidInputError
from sigmax.models.levels import takes_level, told


@final
class Ensemble(nn.Module):
    """One network whose logits are the mean of the logits of its members.

    Averaging reduces the variance of the logits under noise, so that the top class leads more often.

    Args:
        members: Networks in eval mode that return logits for the same classes. Noise-aware members get the told level
            of the ensemble.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        if not members:
            raise InvalidInputError("expected an ensemble of at least one network, got none")
        self.members = nn.ModuleList(members)
        self.train(any(member.training for member in members))

    @property
    def takes_level(self) -> bool:
        """Whether it has a noise-aware member."""
        return any(map(takes_level, self.members))

    def forward(self, x: Tensor, tau: Tensor | None = None) -> Tensor:
        """The mean logits, (batch, classes)."""
        return torch.stack([told(member, x, tau) for member in self.members]).mean(dim=0)
