"""Examples for a router: images that its experts were not trained on, each with the route of the largest radius."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sigmax.budget import Budget
from sigmax.data import ImageSource
from sigmax.data.source import ArraySource
from sigmax.errors import DataError
from sigmax.routing import Route
from sigmax.sampling import Progress
from sigmax.search import Choice
from sigmax.search.base import expected_radius
from sigmax.smoothed import SmoothedClassifier
from sigmax.streams import Stage

_BLOCK = 16  # images at a time
_MOST_COPIES = 4  # of the image with the most at stake


def route_radii(
    experts: SmoothedClassifier,
    routes: Sequence[Route],
    x: Tensor,
    labels: Sequence[int],
    *,
    indices: Sequence[int],
    samples: int,
    budget: Budget,
    on_progress: Progress | None = None,
) -> Tensor:
    """The expected radius of each input on each route, (inputs, routes); 0 if the answer is not the true class.

    All routes of an input see the same noise. `budget` is that of the certification.
    """
    x, indices = experts.sampler.checked(x, indices)
    radii = torch.zeros(len(x), len(routes), dtype=torch.float64)
    for place, route in enumerate(routes):
        choice = Choice(
            sigma=x.new_full((len(x),), route.sigma),
            tau=x.new_full((len(x),), route.tau or route.sigma),
            expert=torch.full((len(x),), route.expert),
        )
        streams = [experts.sampler.stream(budget.seed, index, Stage.SEARCH) for index in indices]
        counts = experts.sampler.counts(x, choice, n=samples, streams=streams, on_progress=on_progress)
        for i, label in enumerate(labels):
            radii[i, place] = expected_radius(
                int(counts[i, label]),
                samples=samples,
                n=budget.n,
                alpha=budget.alpha,
                noise=experts.noise,
                sigma=route.sigma,
            )
    return radii


def route_examples(
    experts: SmoothedClassifier,
    routes: Sequence[Route],
    source: ImageSource,
    *,
    samples: int = 64,
    budget: Budget | None = None,
    on_progress: Progress | None = None,
) -> ImageSource:
    """A data set for `train`: the images of the source, each labelled with the route of its largest radius.

    The more radius a wrong route would lose, the more copies of an image there are: at most four, in proportion to the
    difference between its best route and the mean of all. An image on which all routes are equal is left out. The
    source must have images that the experts were not trained on, such as `--split tune`.
    """
    budget = budget or Budget()
    blocks = [list(range(start, min(start + _BLOCK, len(source)))) for start in range(0, len(source), _BLOCK)]
    radii = torch.cat(
        [
            route_radii(
                experts,
                routes,
                torch.from_numpy(source.images(block)),
                source.labels[block].tolist(),
                indices=block,
                samples=samples,
                budget=budget,
                on_progress=on_progress,
            )
            for block in blocks
        ]
    ).numpy()
    stakes = radii.max(axis=1) - radii.mean(axis=1)
    if not stakes.any():
        raise DataError(f"{source.name}: expected routes with different radii, got the same on every image")
    copies = np.ceil(stakes / stakes.max() * _MOST_COPIES).astype(np.int64)
    places = np.repeat(np.arange(len(source)), copies)
    return ArraySource(
        f"routes-{source.name}",
        np.concatenate([source.images([place]) for place in places.tolist()]),
        radii.argmax(axis=1)[places],
        [route.name for route in routes],
        levels=None,  # the pixels are as they were read
    )
