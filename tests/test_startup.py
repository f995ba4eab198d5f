"""What a start loads: a library that takes its time to import waits until it is needed."""

import subprocess
import sys
from pathlib import Path

import pytest

# Each takes a tenth of a second or more to import, or is an extra.
HEAVY = {
    *("torch", "numpy", "scipy", "matplotlib", "sklearn", "PIL", "pandas", "pooch", "sympy"),
    *("lightning_fabric", "tensorboardX", "safetensors", "onnx", "onnxruntime", "openvino", "art"),
}
COMMAND_LINE = {"typer", "rich"}


def loaded_by(code: str, *arguments: object, codes: tuple[int, ...] = (0,)) -> set[str]:
    """The packages that a fresh Python has after this code."""
    code = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {code}"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode in codes, finished.stderr
    return {name.partition(".")[0] for name in finished.stderr.splitlines()[-1].split()}


@pytest.mark.parametrize("command", ["--help", "certify --help"])
def test_help_loads_nothing_heavy(command: str) -> None:
    assert not HEAVY & loaded_by("from sigmax.cli import main; main()", *command.split())


@pytest.mark.parametrize("command", ["reproduce list", "reproduce show:digits", "train --preset list", "models"])
def test_a_list_loads_nothing_heavy(command: str) -> None:
    assert not HEAVY & loaded_by("from sigmax.cli import main; main()", *command.split())


@pytest.mark.parametrize("command", ["train digits --prest list", "certify net.pt --backend fast", "reproduce"])
def test_a_mistyped_option_is_refused_before_anything_heavy_is_loaded(command: str) -> None:
    assert not HEAVY & loaded_by("from sigmax.cli import main; main()", *command.split(), codes=(2,))


def test_the_library_loads_when_a_name_is_used() -> None:
    assert not HEAVY & loaded_by("import sigmax; dir(sigmax); sigmax.__version__; sigmax.SigmaxError")
    core = loaded_by("import sigmax; sigmax.SmoothedClassifier, sigmax.HalvingSearch, sigmax.Gaussian")
    assert (HEAVY | COMMAND_LINE) & core == {"torch", "numpy", "scipy", "safetensors"}


def test_a_log_is_shown_without_torch(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_text("idx\tlabel\tpredict\tradius\n0\t1\t1\t0.5\n")
    shown = loaded_by("from sigmax.cli import main; main()", "show", tmp_path / "log.tsv")
    assert HEAVY & shown == {"numpy"}
