"""What a terminal shows: questions before long work, and tables that fit."""

import io
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console

from sigmax.cli import console
from sigmax.cli.console import confirm_long, print_runs
from sigmax.runs import read_runs

RUNS = Path(__file__).parents[2] / "docs" / "results" / "cifar10-cpu" / "runs"


class Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("seconds", "yes", "is_asked"), [(7200, False, True), (7200, True, False), (60, False, False)])
def test_more_than_an_hour_is_asked_for_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, seconds: float, yes: bool, is_asked: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", Keyboard("n\n"))
    confirm_long(7200, yes=False)  # nobody sees a question that goes to a file
    monkeypatch.setattr(console, "log_console", Console(force_terminal=True, file=io.StringIO()))
    if is_asked:
        with pytest.raises(typer.Abort):
            confirm_long(seconds, yes=yes)
    else:
        confirm_long(seconds, yes=yes)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_table_fits_the_terminal_and_has_no_column_of_zeros(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(console, "out_console", Console(force_terminal=True, color_system=None, width=width))
    names = ("cohen-0.25-fixed", "cohen-0.25-halving", "cohen-0.25-ascent-paper-k900")
    runs = read_runs([RUNS / name for name in names])
    print_runs([(run.name, run) for run in runs.values()], radii=None, as_json=False)
    table = capsys.readouterr().out.splitlines()[:5]
    assert max(map(len, table)) <= width
    assert "0.760" in table[2]
    headings = table[1].split()
    for place, heading in enumerate(headings):
        if heading[0].isdigit():  # a radius
            assert any(line.split()[place - len(headings)] != "0.000" for line in table[2:5]), heading
