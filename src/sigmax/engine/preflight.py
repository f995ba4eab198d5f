"""Before the first sample: does the network classify noisy inputs at all, and how long will it take?"""

import time
from collections.abc import Callable

import torch
from scipy.stats import binom

from sigmax.engine.prepare import Prepared
from sigmax.rounding import format_duration
from sigmax.sampling import count_classes
from sigmax.streams import Stage, random_stream

_INPUTS = 32  # classified under noise once each
_FEWEST = 8  # fewer say nothing
_SHORT = 10.0  # seconds that need no announcement
_LUCK = 0.01  # a network that only guesses gets away with it so often


def preflight(work: Prepared, inputs: int, on_note: Callable[[str], None]) -> None:
    """Say what to expect of the next so many inputs: how long they take, and whether the network knows noise at all."""
    smoothed, source = work.smoothed, work.source
    few = work.indices[:: max(1, len(work.indices) // _INPUTS)][:_INPUTS]
    x, _ = smoothed.checked(torch.from_numpy(source.images(few)), few)
    rows = smoothed.rows(x)
    batch = x.repeat(-(-rows // len(x)), *[1] * (x.ndim - 1))[:rows]  # the one batch shape
    smoothed.classifier.check_answers(batch, batch.new_full((rows,), smoothed.search.initial))

    def classify(n: int) -> torch.Tensor:
        return count_classes(
            smoothed.classifier,
            x,
            x.new_full((len(x),), smoothed.search.initial),
            noise=smoothed.noise,
            levels=smoothed.levels,
            n=n,
            streams=[random_stream(work.spec.budget.seed, i, Stage.PREFLIGHT, x.device) for i in few],
            batch_size=rows,
        )

    hits = int((classify(1).argmax(dim=1).numpy() == source.labels[few]).sum())
    classes = smoothed.classifier.num_classes
    if len(few) >= _FEWEST and hits <= binom.ppf(1 - _LUCK, len(few), 1 / classes):
        on_note(
            f"under noise at sigma={smoothed.search.initial:g} the network is right on {hits} of {len(few)} inputs, as "
            f"good as guessing among {classes} classes; was it trained with noise? if not, give --denoiser"
        )
    began = time.perf_counter()
    classify(-(-rows // len(x)))
    pace = (time.perf_counter() - began) / rows
    budget = work.spec.budget
    seconds = inputs * (budget.n0 + budget.n + smoothed.search.cost()) * pace
    if seconds >= _SHORT:
        on_note(f"{inputs} inputs take about {format_duration(seconds)}")
