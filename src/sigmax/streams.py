"""Random streams that anybody can draw from any place: the bits of (seed, input index, stage, sample).

The bits come from Philox 4x64 (Salmon et al. 2011), a counter-based generator. A cryptographic hash of seed, index and
stage is its key, and the number of the sample its counter. So noise depends neither on the batch, nor on threads,
processes or the device.
"""

from enum import IntEnum, unique
from hashlib import blake2b
from typing import Self, final

import numpy as np
import torch
from torch import Tensor

from sigmax.errors import InvalidInputError

SEED_BITS = 256
INDICES = 2**63  # how many inputs have streams of their own
_MASK = 2**64 - 1
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)  # of Philox 4x64
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)  # added to the key after each round
_ROUNDS = 10


@unique
class Stage(IntEnum):
    """What noise is drawn for. No two stages share noise: reuse would void the bounds.

    Training is one of them: a network must not be certified with the noise that it was trained on.
    """

    SEARCH = 0
    PILOT = 1
    SELECTION = 2
    ESTIMATION = 3
    PREDICTION = 4
    TRAINING = 5  # the index is the training step
    LEVELS = 6  # sigma of training examples; the index is the training step
    PREFLIGHT = 7
    EVALUATION = 8  # of a trained network on held-out images
    ROUTE_SELECTION = 9
    ROUTE_ESTIMATION = 10


@final
class Stream:
    """The random numbers of (seed, input index, stage), sample by sample.

    A draw moves the stream on. All samples of a stream need the same number of bits, because they are counted.
    """

    def __init__(self, key: int, device: torch.device) -> None:
        self._key = key
        self._device = device
        self._words: int | None = None  # per sample
        self.position = 0  # the next sample

    def side(self, samples: int) -> "Stream":
        """Another stream for the last samples of this one, for those that need more bits than they have."""
        digest = blake2b(b"side", digest_size=16, key=self._key.to_bytes(16, "little")).digest()
        return Stream(int.from_bytes(digest, "little"), self._device).skip(self.position - samples)

    def skip(self, samples: int) -> Self:
        """Leave samples out, which somebody else draws."""
        self.position += samples
        return self

    def words(self, n: int, size: int) -> Tensor:
        """The next n samples, each as integers of 64 random bits: `size` of them, rounded up to a multiple of 4."""
        if self._words not in (None, size):
            raise InvalidInputError(
                f"expected {self._words} words per sample as before, got {size}; open another stream"
            )
        self._words = size
        blocks = -(-size // 4)
        first, self.position = self.position * blocks, self.position + n
        if self._device.type == "cpu":
            drawn = np.random.Philox(key=self._key, counter=first).random_raw(n * blocks * 4)
            words = torch.from_numpy(drawn.view(np.int64))
        else:
            words = philox(self._key, first, n * blocks, device=self._device)
        return words.view(n, blocks * 4)

    def uniform(self, n: int, shape: tuple[int, ...], *, dtype: torch.dtype) -> Tensor:
        """The next n samples, (n, *shape), uniform in (0, 1) with 31 bits each."""
        size = int(np.prod(shape))
        halves = self.words(n, -(-size // 2)).view(torch.int32)[:, :size]
        return _open_unit(halves, dtype).reshape(n, *shape)

    def normal(self, n: int, shape: tuple[int, ...], *, dtype: torch.dtype) -> Tensor:
        """The next n samples, (n, *shape), from N(0, 1) by the Box-Muller transform; they end at 6.6."""
        size = int(np.prod(shape))
        pairs = -(-size // 2)
        halves = self.words(n, pairs).view(torch.int32)
        radius = _open_unit(halves[:, :pairs], dtype).log_().mul_(-2).sqrt_()
        angle = halves[:, pairs : 2 * pairs].to(dtype).mul_(torch.pi * 2.0**-31)
        both = torch.stack([angle.cos(), angle.sin()], dim=1).mul_(radius.unsqueeze(1))  # n 2 pairs
        return both.flatten(1)[:, :size].reshape(n, *shape)


def random_stream(seed: int, index: int, stage: Stage, device: torch.device) -> Stream:
    """The stream of (seed, input index, stage), from its start."""
    if not 0 <= index < INDICES:
        raise InvalidInputError(f"expected an input index in [0, {INDICES}), got index={index}")
    check_seed(seed)
    digest = blake2b(f"sigmax {seed} {index} {int(stage)}".encode(), digest_size=16).digest()
    return Stream(int.from_bytes(digest, "little"), device)


def check_seed(seed: int) -> None:
    """Refuse a seed of more than 256 bits."""
    if not -(2 ** (SEED_BITS - 1)) <= seed < 2**SEED_BITS:
        raise InvalidInputError(f"expected a seed of at most {SEED_BITS} bits, got seed={seed}")


def philox(key: int, counter: int, blocks: int, *, device: torch.device) -> Tensor:
    """What `numpy.random.Philox(key, counter)` draws, (4 * blocks,), in tensor operations, for accelerators."""
    low, high = key & _MASK, key >> 64
    # NumPy counts before it draws. Counters stay below 2**63, so the upper words are 0.
    c0 = torch.arange(counter + 1, counter + 1 + blocks, device=device)
    c1, c2, c3 = (torch.zeros_like(c0) for _ in range(3))
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ _signed(low), low1, high0 ^ c3 ^ _signed(high), low0
        low, high = (low + _WEYL[0]) & _MASK, (high + _WEYL[1]) & _MASK
    return torch.stack([c0, c1, c2, c3], dim=1).flatten()


def _multiply(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """Upper and lower 64 bits of the unsigned product, from products of 32-bit halves."""
    half = 2**32 - 1
    a0, a1 = a & half, a >> 32 & half
    b0, b1 = b & half, b >> 32
    low, cross0, cross1 = a0 * b0, a1 * b0, a0 * b1
    carry = (low >> 32 & half) + (cross0 & half) + (cross1 & half)
    upper = a1 * b1 + (cross0 >> 32 & half) + (cross1 >> 32 & half) + (carry >> 32)
    return upper, a * _signed(b)


def _signed(word: int) -> int:
    """The 64 bits as torch holds them."""
    return word - 2**64 if word >> 63 else word


def _open_unit(words: Tensor, dtype: torch.dtype) -> Tensor:
    """31 of 32 random bits as a number in (0, 1): fine near 0, as a logarithm needs it."""
    return (words & 0x7FFFFFFF).to(dtype).add_(0.5).mul_(2.0**-31)
