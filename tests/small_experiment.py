"""An experiment of seconds, and what its report says."""

from pathlib import Path

EXPERIMENT = """
[report]
title = "A small experiment"
paper = "cifar10"
scaled_down = ["This is a test."]

[data]
name = "digits"
skip = 25
max = 18

[sampling]
n0 = 20
n = 400

[networks.cohen]
sigma = 0.25
epochs = 6

[networks.cohen-ds2]
sigma = 0.25
from = "cohen"
epochs = 2
per_input = true
step_size = 0.01

[[certify]]
networks = ["cohen"]
search = "fixed"

[[certify]]
networks = ["*"]
search = "ascent-paper"
steps = [2, 4]

[[certify]]
networks = ["cohen"]
search = "halving"
"""
RUNS = {
    "cohen-0.25-fixed": "cohen",
    "cohen-0.25-ascent-paper-k2": "cohen-ds",
    "cohen-0.25-ascent-paper-k4": "cohen-ds",
    "cohen-0.25-halving": "cohen-ds",
    "cohen-ds2-0.25-ascent-paper-k2": "cohen-ds2",
    "cohen-ds2-0.25-ascent-paper-k4": "cohen-ds2",
}


def write_experiment(folder: Path, text: str = EXPERIMENT) -> Path:
    path = folder / "small.toml"
    path.write_text(text)
    return path


def tables(out: Path) -> dict[str, bytes]:
    """The tables of the report, but for those of times."""
    paths = sorted((out / "report" / "tables").iterdir())
    return {path.name: path.read_bytes() for path in paths if "runtime" not in path.name}
