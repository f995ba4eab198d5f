"""Class counts under noise: the hot loop. Owns random streams, batching and the one batch shape.

Noise is drawn in tiles: a few samples of one input, always drawn whole, also where only a part of them is needed.
So the noise of an input depends on its own stream alone, whatever shares the batch with it.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from hashlib import blake2b

import torch
from torch import Tensor

from sigmax.errors import InvalidInputError
from sigmax.models.classifier import BaseClassifier
from sigmax.named import name_of
from sigmax.noise import SmoothingDistribution

Progress = Callable[[int], None]


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


_STAGES = 8  # room for stages to come without moving the streams of today
_MASK = 2**32 - 1
INDICES = 2**32 // _STAGES  # how many inputs have streams of their own


def random_stream(seed: int, index: int, stage: Stage, device: torch.device) -> torch.Generator:
    """The stream of (seed, input index, stage): for one seed, no two streams start alike.

    The CPU generator looks only at the low 32 bits of its seed, where hashing would collide now and
    then (10,000 inputs: one chance in ten). So the low bits are a bijection of (index, stage).
    """
    if not 0 <= index < INDICES:
        raise InvalidInputError(f"expected an input index in [0, {INDICES}), got index={index}")
    key = int.from_bytes(blake2b(int(seed).to_bytes(16, "little", signed=True), digest_size=8).digest(), "little")
    low = _mix((index * _STAGES + stage + key) & _MASK)
    return torch.Generator(device).manual_seed((key >> 32 << 32 | low) - 2**63)


def _mix(value: int) -> int:
    """A bijection of 32-bit integers in which every input bit moves every output bit."""
    value = (value ^ value >> 16) * 0x7FEB352D & _MASK
    value = (value ^ value >> 15) * 0x846CA68B & _MASK
    return value ^ value >> 16


def tile_size(dimensions: int) -> int:
    """How many samples of one input are drawn at once, by the size of the input alone.

    About 2**14 numbers a draw keep the Python work per sample small; at most 64, so that short
    selections (n0 = 100) waste little. A power of two, to fit into batches.
    """
    return 1 << min(6, max(0, (2**14 // dimensions).bit_length() - 1))


def default_batch_size(dimensions: int) -> int:
    """Noisy samples per forward pass: 2**21 numbers at most, between 16 and 1,024 samples."""
    return min(1024, max(16, 1 << max(0, (2**21 // dimensions).bit_length() - 1)))


def batch_rows(dimensions: int, batch_size: int | None = None) -> int:
    """The rows of every forward pass: the batch size, rounded up to whole tiles."""
    tile = tile_size(dimensions)
    return -(-(batch_size or default_batch_size(dimensions)) // tile) * tile


def count_classes(
    classifier: BaseClassifier,
    x: Tensor,
    sigma: Tensor,
    *,
    tau: Tensor | None = None,
    noise: SmoothingDistribution,
    n: int | Sequence[int],
    streams: Sequence[torch.Generator],
    batch_size: int,
    on_progress: Progress | None = None,
) -> Tensor:
    """How often each class leads among n noisy copies of each input, (inputs, classes) on the CPU.

    Every forward pass has the same shape: batches are filled across inputs and the last one is padded,
    because kernels may differ in the last bits from shape to shape. Memory does not grow with n.

    Args:
        classifier: The base classifier f.
        x: Inputs, (inputs, *dims).
        sigma: The noise level of each input, (inputs,).
        tau: The level that a noise-aware network is told of each input, (inputs,); by default sigma.
        noise: The smoothing distribution.
        n: Samples per input; one number for all, or one for each.
        streams: One random stream per input; each is advanced by whole tiles.
        batch_size: Rows of a forward pass; rounded up to a multiple of the tile.
        on_progress: Called after each forward pass with the number of samples it counted.
    """
    tile = tile_size(x[0].numel())
    rows = batch_rows(x[0].numel(), batch_size)
    classes = classifier.num_classes
    counts = torch.zeros(len(x) * classes, dtype=torch.int64)
    with torch.no_grad():
        inputs, buffer, batch = sample_buffer(x, rows)
        owner = torch.empty(rows, dtype=torch.int64)  # which input a row belongs to; -1: nobody's

        def tally() -> None:
            kept = owner >= 0
            cells = owner[kept] * classes + classifier.labels(batch, told).cpu()[kept]
            counts.add_(torch.bincount(cells, minlength=len(counts)))
            if on_progress is not None:
                on_progress(len(cells))

        levels = sigma.tolist()
        taus = levels if tau is None else tau.tolist()
        told = buffer.new_ones(rows) if classifier.takes_level else None  # the level of each row
        most = rows // tile if _draws_alike(noise, buffer, tile) else 1
        scratch = torch.empty_like(buffer[:tile])  # for the last tile of an input, of which a part is needed
        start = 0
        for i, left in enumerate([n] * len(x) if isinstance(n, int) else n):
            while left > 0:
                if rows - start < min(left, tile):
                    owner[start:] = -1
                    tally()
                    start = 0
                # As many tiles at once as fit: the same noise for less work.
                count = min(left // tile, (rows - start) // tile, most) * tile or left
                place = buffer[start : start + count]
                noise.write(place, inputs[i], sigma=levels[i], generator=streams[i], scratch=scratch)
                if told is not None:
                    told[start : start + count] = taus[i]
                owner[start : start + count] = i
                start, left = start + count, left - count
                if start == rows:
                    tally()
                    start = 0
        if start:
            owner[start:] = -1
            tally()
    return counts.view(len(x), classes)


def sample_buffer(x: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """The inputs, a buffer to fill, and the same buffer as the network sees it, (rows, *dims).

    Images are kept with their channels last: convolutions run up to twice as fast on such a batch,
    whatever the layout of their weights, and the buffer itself is contiguous, so that noise is drawn fast.
    """
    inputs = x.permute(0, 2, 3, 1).contiguous() if x.ndim == 4 else x
    buffer = inputs[:1].repeat(rows, *[1] * (x.ndim - 1))  # finite also where it is never filled
    return inputs, buffer, buffer.permute(0, 3, 1, 2) if x.ndim == 4 else buffer


_alike: dict[tuple[object, ...], bool] = {}


def _draws_alike(noise: SmoothingDistribution, buffer: Tensor, tile: int) -> bool:
    """Whether tiles drawn at once are the tiles drawn one after another: it depends on generator and size."""
    key = (name_of(type(noise)), str(noise.settings()), buffer.shape, tile, buffer.dtype, buffer.device)
    if key not in _alike:
        whole, parts = torch.empty_like(buffer), torch.empty_like(buffer)
        noise.fill(whole, generator=random_stream(0, 0, Stage.ESTIMATION, buffer.device))
        stream = random_stream(0, 0, Stage.ESTIMATION, buffer.device)
        for part in torch.split(parts, tile):
            noise.fill(part, generator=stream)
        _alike[key] = torch.equal(whole, parts)
    return _alike[key]
