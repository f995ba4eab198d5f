"""Checks before the first sample: refuse what cannot work, and say how long the run takes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from scipy.stats import binom
from torch import Tensor

from sigmax.engine.prepare import Prepared
from sigmax.jobs import Job
from sigmax.rounding import format_duration
from sigmax.search import Choice
from sigmax.streams import Stage

_INPUTS = 32  # classified under noise once each
_FEWEST = 8  # fewer say nothing
_SHORT = 10.0  # seconds that need no announcement
_LUCK = 0.01  # probability that a guessing network is not noticed


def check(work: Prepared, indices: Sequence[int]) -> Job:
    """Refuse images that are unreadable or outside the model's pixel range, and models that are not fixed functions.

    Returns a few of the inputs.
    """
    work.source.check_images(indices, pixel_range=work.pixel_range)
    few = (indices or work.indices)[:: max(1, len(indices) // _INPUTS)][:_INPUTS]  # a shard may have none
    return work.certifier.job(torch.from_numpy(work.source.images(few)), work.spec.budget, indices=few)


def announce(work: Prepared, few: Job, inputs: int, on_note: Callable[[str], None], *, workers: int = 1) -> float:
    """Note how long the inputs will take, and whether the network only guesses under noise; return the seconds."""
    smoothed, budget = work.smoothed, work.spec.budget
    initial, rows, classes = smoothed.search.initial, smoothed.sampler.rows(few.x), smoothed.classifier.num_classes

    def classify(n: int) -> Tensor:
        choice = Choice(sigma=few.x.new_full((len(few.x),), initial))
        return smoothed.sampler.stage_counts(replace(few, on_progress=None), choice, Stage.PREFLIGHT, n)

    answers = classify(1).argmax(dim=1).numpy()
    hits = int((answers == work.source.labels[list(few.indices)]).sum())
    if len(answers) >= _FEWEST and hits <= binom.ppf(1 - _LUCK, len(answers), 1 / classes):
        on_note(
            f"under noise at sigma={initial:g} the network is right on {hits} of {len(answers)} inputs, as good as "
            f"guessing among {classes} classes; was it trained with noise? if not, give --denoiser"
        )
    began = time.perf_counter()
    classify(-(-rows // len(answers)))
    pace = (time.perf_counter() - began) / rows
    cost = work.certifier.cost(budget)
    if len(smoothed.experts) > 1 or smoothed.classifier.takes_level or work.spec.route:
        choosing = cost - budget.n
        on_note(f"choosing takes at most {choosing:,} samples per input, {100 * choosing / budget.n:.1f} % of n")
    seconds = inputs * cost * pace / workers
    if seconds >= _SHORT:
        most = "at most " if budget.tolerance or budget.radii or budget.n_wrong else ""
        on_note(f"{inputs} inputs take {most}about {format_duration(seconds)}")
    return seconds
