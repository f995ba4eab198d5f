"""Which class is certified: the prediction under sigma0 (paper, Eq. 2), of one network or of several experts."""

import torch
from torch import Tensor

from sigmax.experts import ClassRule
from sigmax.search.base import SearchTask, expected_radius
from sigmax.streams import Stage


def select_class(task: SearchTask, n0: int, rule: ClassRule) -> tuple[Tensor, Tensor]:
    """The class of each input and the expert whose prediction it is, each (inputs,) on the CPU.

    All experts see the same noise, each at its own sigma0. Search and estimation draw other noise, so any rule is
    sound. An expert abstains here if the expected radius from its n0 samples is 0.
    """
    inputs = torch.arange(len(task.x))
    classes = torch.zeros(len(task.experts), len(inputs), dtype=torch.int64)
    radii = torch.zeros(len(task.experts), len(inputs), dtype=torch.float64)
    left = inputs
    for place, expert in enumerate(task.experts):
        streams = [task.stream(task.indices[i], Stage.SELECTION) for i in left.tolist()]
        here = torch.full((len(left),), place)
        counts = task.counts(left, task.constant(expert.sigma)[: len(left)], expert=here, n=n0, streams=streams)
        classes[place, left] = counts.argmax(dim=1)
        if len(task.experts) > 1:
            radii[place, left] = _expected(task, counts.amax(dim=1), n0, expert.sigma)
        if rule == "first":
            left = left[radii[place, left] == 0]
    if rule == "first":
        leader = (radii > 0).int().argmax(dim=0)  # the first that would not abstain, else the first of all
        return classes[leader, inputs], leader
    votes = torch.zeros(len(inputs), task.classifier.num_classes, dtype=torch.float64)
    votes.scatter_add_(1, classes.T, radii.T)
    label = torch.where(votes.amax(dim=1) > 0, votes.argmax(dim=1), classes[0])
    return label, (radii + 1).mul(classes == label).argmax(dim=0)  # the surest of those that predict it


def _expected(task: SearchTask, hits: Tensor, n0: int, sigma: float) -> Tensor:
    radii = [
        expected_radius(k, samples=n0, n=task.n, alpha=task.alpha, noise=task.noise, sigma=sigma) for k in hits.tolist()
    ]
    return torch.tensor(radii, dtype=torch.float64)
