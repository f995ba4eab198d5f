from typing import Any

import pytest
import torch

from sigmax.paper import machine
from sigmax.paper.machine import Machine


@pytest.mark.parametrize(("device", "asked"), [("meta:1", [1]), ("meta", 1), ("cpu:0", 1)])
def test_a_training_runs_on_the_device_that_was_named(device: str, asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an accelerator of a kind that every torch knows, on which nothing is run."""
    wanted: dict[str, Any] = {}
    monkeypatch.setattr(machine, "Fabric", lambda **settings: wanted.update(settings))
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    Machine(device=device).fabric("32-true")
    assert wanted == {"accelerator": device.partition(":")[0], "devices": asked, "precision": "32-true"}
