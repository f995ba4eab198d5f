"""Experiments from a TOML file to a report: train what is missing, certify what is missing, set the paper beside it."""

from sigmax.reproduce.experiment import Experiment, load_experiment, presets
from sigmax.reproduce.machine import Machine
from sigmax.reproduce.plan import Step, make_plan
from sigmax.reproduce.run import Reproduction

__all__ = ["Experiment", "Machine", "Reproduction", "Step", "load_experiment", "make_plan", "presets"]
