"""The examples that draw the paper's Figures 1 and 2 show what the figures are about."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from scipy.special import ndtr, ndtri

from sigmax import HalvingSearch, SmoothedClassifier

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_example(name: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def answers(line: str) -> list[tuple[str, float]]:
    """Each (label, radius) that a line tells of."""
    return [(label, float(radius)) for label, radius in re.findall(r"says (\w+),.*?radius ([\d.]+)", line)]


def test_one_sigma_certifies_little_or_loses_confidence_or_errs_and_per_input_sigma_does_not(tmp_path: Path) -> None:
    far, tongue, finger = run_example("why_per_input_sigma.py", "--out", str(tmp_path / "figure.png"))
    for line, truth in ((far, "blue"), (tongue, "orange")):
        (label, radius), (own_label, own_radius) = answers(line)
        assert label == own_label == truth
        assert own_radius > 1.2 * radius
    confidence, own_confidence = (float(p) for p in re.findall(r"p at least ([\d.]+)", tongue))
    assert confidence < 0.8
    assert own_confidence > 0.95
    assert [label for label, _ in answers(finger)] == ["blue", "green"]
    assert imread(tmp_path / "figure.png").shape[1] > 1000


def test_the_three_cases_of_the_memory_come_out(tmp_path: Path) -> None:
    lines = run_example("memory_cases.py", "--out", str(tmp_path / "figure.png"))
    kept, inherited, truncated = (answers(line) for line in lines)
    assert [re.findall("kept|inherited|truncated", line) for line in lines] == [["kept"], ["inherited"], ["truncated"]]
    assert kept[0] == kept[1]
    assert (inherited[0][0], inherited[1][0]) == ("orange", "blue")
    assert (truncated[0][0], truncated[1][0]) == ("orange", "orange")
    # The first ball's true radius, in closed form at the search's upper bound 0.8: it has x1 at -0.5, a band to 0.22.
    first = 0.8 * ndtri(1 - (ndtr(0.72 / 0.8) - ndtr(0.28 / 0.8)))
    assert inherited[1][1] == pytest.approx(first - (0.5**2 + 0.3**2) ** 0.5, abs=0.05)
    assert truncated[1][1] == pytest.approx((0.5**2 + 0.655**2) ** 0.5 - first, abs=0.05)
    assert imread(tmp_path / "figure.png").shape[1] > 1000


def test_what_the_page_says_beside_figure_1() -> None:
    example: dict[str, Any] = runpy.run_path(str(EXAMPLES / "why_per_input_sigma.py"))
    model, inputs = example["Plane"]().eval(), example["INPUTS"]
    own = HalvingSearch(initial=0.1, bounds=(0.05, 1.6))
    _, tongue, finger = SmoothedClassifier(model, num_classes=3, sigma=own).certify(inputs, n=2_000)
    # With much noise both are blue, and those wrong answers have the larger radii.
    _, wrong_tongue, _ = SmoothedClassifier(model, num_classes=3, sigma=1.6).certify(inputs, n=2_000)
    _, _, wrong_finger = SmoothedClassifier(model, num_classes=3, sigma=0.8).certify(inputs, n=2_000)
    assert wrong_tongue.label == wrong_finger.label == example["BLUE"]
    assert wrong_tongue.radius > tongue.radius
    assert wrong_finger.radius > finger.radius
    # A search that starts where the class is wrong keeps to it.
    late = HalvingSearch(initial=0.4, bounds=(0.05, 1.6))
    _, _, started_late = SmoothedClassifier(model, num_classes=3, sigma=late).certify(inputs, n=2_000)
    assert started_late.label == example["BLUE"]
