"""Normalisation before a network: (x - mean) / std, channel by channel."""

import math
from collections.abc import Sequence
from typing import Self, final

import torch
from torch import Tensor, nn

from sigmax.errors import InvalidInputError, ModelError

_KNOWN: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "none": ((), ()),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar10-mean": ((0.4914, 0.4822, 0.4465), (1.0, 1.0, 1.0)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "imagenet-mean": ((0.485, 0.456, 0.406), (1.0, 1.0, 1.0)),
    "imagenet-keras": ((123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255, 1 / 255, 1 / 255)),
}
SPELLINGS = ", ".join(_KNOWN) + ", or MEAN,…/STD,… with one number per channel"


@final
class Normalize(nn.Module):
    """Shifts and scales each channel. Without any numbers, it leaves the input unchanged."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.values = (tuple(float(m) for m in mean), tuple(float(s) for s in std))
        is_finite = all(math.isfinite(number) for number in (*mean, *std))
        if len(mean) != len(std) or not is_finite or not all(s > 0 for s in std):
            raise ModelError(f"expected one mean and one std > 0 per channel, got {tuple(mean)} and {tuple(std)}")
        # Not part of the state dict, as in published checkpoints. The card of a checkpoint holds the numbers, and
        # extra_repr brings them into the fingerprint.
        self.register_buffer("mean", torch.tensor(self.values[0]).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(self.values[1]).view(-1, 1, 1), persistent=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The normalisation of this name or with these numbers; see `SPELLINGS`."""
        if text in _KNOWN:
            return cls(*_KNOWN[text])
        try:
            mean, std = ([float(number) for number in part.split(",")] for part in text.split("/"))
        except ValueError as error:
            raise ModelError(f"expected a normalisation ({SPELLINGS}), got {text!r}") from error
        return cls(mean, std)

    @property
    def text(self) -> str:
        """The numbers as `parse` takes them."""
        return "/".join(",".join(map(str, part)) for part in self.values) if self.values[0] else "none"

    def forward(self, x: Tensor) -> Tensor:
        """(x - mean) / std."""
        if not self.values[0]:
            return x
        # Checked, because broadcasting would turn a gray image into a coloured one.
        if x.ndim < 3 or x.shape[-3] != len(self.mean):
            raise InvalidInputError(f"expected {len(self.mean)} channels to normalise, got shape {tuple(x.shape)}")
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        """Mean and std, for the text of a network."""
        return f"mean={self.values[0]}, std={self.values[1]}"
