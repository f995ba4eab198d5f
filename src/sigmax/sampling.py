"""Class counts under noise: the hot loop. Owns batching and the one batch shape."""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NotRequired, TypedDict, Unpack

import torch
from torch import Tensor

from sigmax.lattice import to_pixels
from sigmax.models.classifier import BaseClassifier
from sigmax.noise import SmoothingDistribution
from sigmax.streams import Stream

Progress = Callable[[int], None]
_TILE = 128  # samples drawn at a time: what they need stays in the cache
_MOST_NUMBERS = 2**21  # in a forward pass, or in small batches that are drawn together


class _How(TypedDict):
    """The arguments of `count_classes` that are the same for all inputs."""

    noise: SmoothingDistribution
    levels: NotRequired[int | None]
    batch_size: int
    on_progress: NotRequired[Progress | None]


def default_batch_size(dimensions: int) -> int:
    """Noisy samples per forward pass: 2**21 numbers at most, between 16 and 1,024 samples."""
    return min(1024, max(16, 1 << max(0, (_MOST_NUMBERS // dimensions).bit_length() - 1)))


def count_classes(
    classifier: BaseClassifier,
    x: Tensor,
    sigma: Tensor,
    *,
    tau: Tensor | None = None,
    noise: SmoothingDistribution,
    levels: int | None = None,
    n: int | Sequence[int],
    streams: Sequence[Stream],
    batch_size: int,
    on_progress: Progress | None = None,
) -> Tensor:
    """How often each class leads among n noisy copies of each input, (inputs, classes) on the CPU.

    Every forward pass has the same shape: batches are filled across inputs and the last one is padded, because kernels
    may differ in the last bits from shape to shape. The next batch is drawn while the network runs, unless that
    has every core. Memory does not grow with n.

    Args:
        classifier: The base classifier f.
        x: Inputs, (inputs, *dims).
        sigma: The noise level of each input, (inputs,).
        tau: The level that a noise-aware network is told of each input, (inputs,); by default sigma.
        noise: The smoothing distribution.
        levels: Inputs are multiples of 1 / levels, and the noise is exact; None: noise in floating point.
        n: Samples per input; one number for all, or one for each.
        streams: One random stream per input; each moves on by its samples.
        batch_size: Rows of a forward pass.
        on_progress: Called after each forward pass with the number of samples it counted.
    """
    classes = classifier.num_classes
    counts = torch.zeros(len(x) * classes, dtype=torch.int64)
    plan = [n] * len(x) if isinstance(n, int) else n
    order = torch.arange(len(x))
    if classifier.takes_level:
        # By level: a backend may run a batch once for each level in it.
        taus = (sigma if tau is None else tau).to(x)
        order = taus.argsort(stable=True).cpu()
        x, sigma = x[order], sigma[order]
        plan, streams = ([values[i] for i in order.tolist()] for values in (plan, streams))
    batches = _noisy_batches(x.detach(), sigma, noise=noise, levels=levels, n=plan, streams=streams, rows=batch_size)
    # Torch splits its work evenly: if one core also drew noise, the others would wait for it.
    is_busy = classifier.takes_torch_threads and torch.get_num_threads() >= _usable_cores()
    with torch.no_grad():
        for batch, places in batches if is_busy else _ahead(batches):
            owner, told = order[places], None
            if classifier.takes_level:
                told = taus[owner[-1]].expand(batch_size).clone()
                told[: len(owner)] = taus[owner]
            cells = owner * classes + classifier.labels(batch, told).cpu()[: len(owner)]
            counts.add_(torch.bincount(cells, minlength=len(counts)))
            if on_progress is not None:
                on_progress(len(cells))
    return counts.view(len(x), classes)


def count_by_expert(
    experts: Sequence[BaseClassifier],
    x: Tensor,
    sigma: Tensor,
    *,
    tau: Tensor | None = None,
    expert: Tensor | None = None,
    n: int | Sequence[int],
    streams: Sequence[Stream],
    **how: Unpack[_How],
) -> Tensor:
    """As `count_classes`, where each input has its own network among the experts, (inputs,); None: the first.

    A batch has samples of one network only. Networks run in the order of the experts, each over its inputs in theirs.
    """
    if expert is None:
        return count_classes(experts[0], x, sigma, tau=tau, n=n, streams=streams, **how)
    plan = [n] * len(x) if isinstance(n, int) else n
    counts = torch.zeros(len(x), experts[0].num_classes, dtype=torch.int64)
    for place, classifier in enumerate(experts):
        rows = (expert == place).nonzero().squeeze(1)
        if len(rows):
            there = rows.to(x.device)
            counts[rows] = count_classes(
                classifier,
                x[there],
                sigma[rows.to(sigma.device)],
                tau=None if tau is None else tau[rows.to(tau.device)],
                n=[plan[row] for row in rows.tolist()],
                streams=[streams[row] for row in rows.tolist()],
                **how,
            )
    return counts


def _noisy_batches(
    x: Tensor,
    sigma: Tensor,
    *,
    noise: SmoothingDistribution,
    levels: int | None,
    n: Sequence[int],
    streams: Sequence[Stream],
    rows: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches, each with the input of every row that is one's; the next but one may overwrite it."""
    room = rows * _drawn_together(x, rows)
    buffers = itertools.cycle([sample_buffer(x, room) for _ in range(2)])
    inputs = _channels_last(x if levels is None else to_pixels(x, levels))
    sigmas = sigma.tolist()
    buffer, batches = next(buffers)
    owner, start = torch.empty(room, dtype=torch.int64), 0
    for i, left in enumerate(n):
        while left > 0:
            part = slice(start, min(room, start + left))
            for first in range(part.start, part.stop, _TILE):
                tile = buffer[first : min(first + _TILE, part.stop)]
                noise.write(tile, inputs[i], sigma=sigmas[i], stream=streams[i], levels=levels)
            owner[part] = i
            start, left = part.stop, left - (part.stop - part.start)
            if start == room:
                yield from ((batches[k : k + rows], owner[k : k + rows]) for k in range(0, room, rows))
                buffer, batches = next(buffers)
                owner, start = torch.empty(room, dtype=torch.int64), 0
    if start:
        buffer[start:] = 0.0  # padding
        yield from ((batches[k : k + rows], owner[k : min(k + rows, start)]) for k in range(0, start, rows))


def _drawn_together(x: Tensor, rows: int) -> int:
    """How many batches to draw at a time: a draw of few samples costs nearly as much as one of many.

    One where batches after the first would not begin at a multiple of 64 bytes: kernels may differ in the last bits
    from alignment to alignment.
    """
    numbers = rows * x[0].numel() if len(x) else 0
    if not numbers or numbers * x.element_size() % 64:
        return 1
    return max(1, min(_TILE // rows, _MOST_NUMBERS // numbers))


def noisy_batch(
    x: Tensor,
    sigma: Tensor,
    *,
    noise: SmoothingDistribution,
    levels: int | None,
    streams: Sequence[Stream],
    rows: int,
) -> Tensor:
    """One batch as the network gets it, (rows, *dims): about as many noisy copies of each of at most `rows` inputs."""
    n = [rows // len(x) + (i < rows % len(x)) for i in range(len(x))]
    batch, _ = next(_noisy_batches(x.detach(), sigma, noise=noise, levels=levels, n=n, streams=streams, rows=rows))
    return batch


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _ahead(batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The same batches, each drawn by another thread while the one before is used."""
    with ThreadPoolExecutor(1) as drawer:
        coming = drawer.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = drawer.submit(next, batches, None)
            yield batch


def sample_buffer(x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """A buffer for noisy copies of inputs like x, and the same buffer as the network sees it, (rows, *dims).

    Images are kept with their channels last: convolutions run up to twice as fast on such a batch, whatever the layout
    of their weights. The buffer itself is contiguous, so that noise is written fast.
    """
    buffer = _channels_last(x)[:1].repeat(rows, *[1] * (x.ndim - 1))  # finite also where it is never filled
    return buffer, buffer.permute(0, 3, 1, 2) if x.ndim == 4 else buffer


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous() if x.ndim == 4 else x
