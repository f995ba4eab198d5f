"""Training networks that certify well: an objective, and a source of sigma for each example."""

from sigmax.train.objectives import Batch, Objective, Outcome, make_objective
from sigmax.train.recipe import Recipe
from sigmax.train.run import TrainingSummary, train
from sigmax.train.sigma import ConstantSigma, SigmaRange, SigmaSource, SigmaTable
from sigmax.train.training import StepReport, Training

__all__ = [
    "Batch",
    "ConstantSigma",
    "Objective",
    "Outcome",
    "Recipe",
    "SigmaRange",
    "SigmaSource",
    "SigmaTable",
    "StepReport",
    "Training",
    "TrainingSummary",
    "make_objective",
    "train",
]
