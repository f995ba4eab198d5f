"""Base classifiers: architectures, checkpoints, and the promises that certification needs."""

from sigmax.cards import ModelCard
from sigmax.models.architectures import ARCHITECTURES, build_network
from sigmax.models.checkpoint import LoadedModel, load_model, save_model, with_normalisation
from sigmax.models.classifier import BaseClassifier
from sigmax.models.ensemble import Ensemble
from sigmax.models.normalisation import Normalize
from sigmax.models.outputs import Outputs

__all__ = [
    "ARCHITECTURES",
    "BaseClassifier",
    "Ensemble",
    "LoadedModel",
    "ModelCard",
    "Normalize",
    "Outputs",
    "build_network",
    "load_model",
    "save_model",
    "with_normalisation",
]
