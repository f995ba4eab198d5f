"""Training networks that certify well: an objective, and a source of sigma for each example."""

from sigmax.train.objectives import Batch, Objective, Outcome, make_objective, objectives
from sigmax.train.recipe import Recipe
from sigmax.train.run import TrainingSummary, train
from sigmax.train.training import StepReport, Training

__all__ = [
    "Batch",
    "Objective",
    "Outcome",
    "Recipe",
    "StepReport",
    "Training",
    "TrainingSummary",
    "make_objective",
    "objectives",
    "train",
]
