"""Nothing phones home: OpenVINO and nncf report their use unless they are kept from it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openvino")
pytest.importorskip("openvino_telemetry")

# In a process of its own: nncf sends nothing while pytest is loaded, and both keep what they found at their import.
CODE = """
import sys

import torch
from openvino_telemetry.backend import backend_ga4

from sigmax.models.backends import accelerate

sent = []
backend_ga4.GA4Backend.send = lambda self, message: sent.append(message)
layers = torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 10)
net = torch.nn.Sequential(*layers).eval()
fast = accelerate(net, sys.argv[1], batch_shape=(2, 3, 8, 8))
fast(torch.zeros(3, 3, 8, 8))  # another shape is built when it is first seen
from openvino_telemetry import Telemetry

Telemetry().sender.executor.shutdown(wait=True)
print(sent)
"""


@pytest.mark.parametrize("backend", ["openvino", pytest.param("openvino-int8", marks=pytest.mark.scale)])
def test_openvino_sends_nothing_home(tmp_path: Path, backend: str) -> None:
    # Without the marks of a CI service, under which it would be silent anyway.
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    command = [sys.executable, "-W", "ignore", "-c", CODE, backend]
    done = subprocess.run(command, env=kept | {"HOME": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert not (tmp_path / "intel").exists()  # no identifier of the user either
