"""`sigmax reproduce` on a small experiment, from nothing to the report."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from commands import Run
from sigmax.cli.reproduce import UNFINISHED
from sigmax.data import cifar10
from sigmax.records import read_run
from small_experiment import EXPERIMENT, RUNS, tables, write_experiment


@dataclass(frozen=True)
class Stage:
    """What one of several commands on the same folder answered and left there."""

    code: int
    said: str
    log: str
    files: frozenset[str]  # relative to the folder
    report: str

    @classmethod
    def of(cls, answer: tuple[int, str, str], out: Path) -> Self:
        report = out / "report" / "report.md"
        files = frozenset(str(path.relative_to(out)) for path in out.rglob("*"))
        return cls(*answer, files, report.read_text() if report.exists() else "")


@dataclass(frozen=True)
class Made:
    """An experiment that was stopped at once, then done in part, then as a whole."""

    toml: Path
    out: Path
    stopped: Stage
    part: Stage
    whole: Stage


@pytest.fixture(scope="module")
def made(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("experiment")
    toml, out = write_experiment(folder), folder / "run"
    command = ("reproduce", toml, "--out", out)
    stopped = Stage.of(run(*command, "--max-hours", 0), out)
    part = Stage.of(run(*command, "--only", "cohen-0.25-fixed"), out)
    (out / "report" / "figures" / "of-before.png").touch()
    (out / "runs" / "cohen-0.25-halving").mkdir()  # as a kill before its first line leaves it
    assert run(*command, "--only", "cohen-0.25-fixed")[0] == 0
    return Made(toml, out, stopped, part, whole=Stage.of(run(*command), out))


def test_max_hours_0_stops_at_once_and_says_how_to_go_on(made: Made) -> None:
    assert made.stopped.code == UNFINISHED == 3
    assert f"Continue with the same command with --out {made.out}" in made.stopped.log
    assert re.search(r"certify\s+cohen-ds2-0.25-ascent-paper-k4\s+to do", made.stopped.said)
    assert "report" not in made.stopped.said
    assert "networks" not in made.stopped.files


def test_only_does_what_it_names_and_marks_the_report(run: Run, made: Made) -> None:
    assert made.part.code == 0, made.part.log
    assert [name for name in made.part.files if re.fullmatch("runs/[^/]*", name)] == ["runs/cohen-0.25-fixed"]
    assert "A small experiment (partial)" in made.part.report
    assert "1 of 6 certifications are complete" in made.part.report
    assert run("reproduce", made.toml, "--out", made.out, "--only", "macer*")[0] == 2


def test_the_rest_is_done_and_reported(made: Made) -> None:
    assert made.whole.code == 0, made.whole.log
    assert re.search(r"certify\s+cohen-0.25-fixed\s+done", made.whole.said)
    assert f"report: {made.out / 'report'}" in made.whole.said
    assert "partial" not in made.whole.report.lower()
    assert "This is a test." in made.whole.report
    assert "report/figures/of-before.png" not in made.whole.files
    runs = {path.name: read_run(path) for path in (made.out / "runs").iterdir()}
    assert {name: found.note("method") for name, found in runs.items()} == RUNS
    assert {found.note("data") for found in runs.values()} == {"digits"}
    assert {found.note("model") for found in runs.values()} == {"cohen-0.25", "cohen-ds2-0.25"}
    assert all(found.table.idx.tolist() == [25 * i for i in range(18)] for found in runs.values())
    assert all(found.table.is_settled == (name != "cohen-0.25-fixed") for name, found in runs.items())
    assert (made.out / "experiment.toml").read_text() == EXPERIMENT
    assert {"paper-settings.csv", "paper-best-l2.csv", "paper-gain-l2.csv"} <= set(tables(made.out))


def test_again_changes_nothing(run: Run, made: Made) -> None:
    before = tables(made.out)
    code, said, _ = run("reproduce", made.toml, "--out", made.out, "--json")
    assert code == 0
    answer = json.loads(said)
    assert answer["finished"]
    assert {step["state"] for step in answer["steps"]} == {"done"}
    assert sum(step["passes"] for step in answer["steps"]) == 0
    assert tables(made.out) == before


def test_a_changed_experiment_is_refused_with_what_differs(run: Run, made: Made, tmp_path: Path) -> None:
    changed = EXPERIMENT.replace("n = 400", "n = 500").replace("epochs = 6", "epochs = 7").replace("25\nmax", "20\nmax")
    for more in ((), ("--plan",)):
        code, _, log = run("reproduce", write_experiment(tmp_path, changed), "--out", made.out, *more)
        assert code == 2
        assert "network cohen-0.25.epochs=7 (was 6)" in log
        assert "certification cohen-0.25-ascent-paper-k2.n=500 (was 400)" in log
        assert "choose another folder" in log
        assert len(log.splitlines()) == 1


def test_an_experiment_may_grow_and_be_told_otherwise(run: Run, made: Made, tmp_path: Path) -> None:
    grown = EXPERIMENT.replace("steps = [2, 4]", "steps = [2, 4, 6]").replace("This is a test.", "Still a test.")
    code, said, log = run("reproduce", write_experiment(tmp_path, grown), "--out", made.out, "--plan", "--json")
    assert code == 0, log
    states = {step["name"]: step["state"] for step in json.loads(said) if step["kind"] == "certify"}
    new = ("cohen-0.25-ascent-paper-k6", "cohen-ds2-0.25-ascent-paper-k6")
    assert states == dict.fromkeys(RUNS, "done") | dict.fromkeys(new, "to do")


def test_a_plan_costs_what_was_measured_before(run: Run, made: Made, tmp_path: Path) -> None:
    table = made.out / "runs" / "cohen-0.25-halving" / "certificates.tsv"
    whole = table.read_bytes()
    seconds = read_run(table.parent).table.seconds
    try:
        table.write_bytes(b"".join(whole.splitlines(keepends=True)[:10]))
        code, said, _ = run("reproduce", made.toml, "--out", made.out, "--plan", "--json")
    finally:
        table.write_bytes(whole)
    assert code == 0
    (step,) = [step for step in json.loads(said) if step["name"] == "cohen-0.25-halving"]
    assert (step["state"], step["done"], step["total"]) == ("partly, 9 of 18", 9, 18)
    assert step["passes"] == 9 * (20 + 400 + 944)  # n0, n, and what halving costs
    assert step["seconds"] == pytest.approx(seconds[:9].sum(), abs=0.06)


def test_help_has_an_example(run: Run) -> None:
    code, said, _ = run("reproduce", "--help")
    assert code == 0
    assert "sigmax reproduce digits --out runs/digits" in " ".join(said.split())


def test_presets_can_be_listed_and_copied(run: Run, tmp_path: Path) -> None:
    code, said, _ = run("reproduce", "list")
    assert code == 0
    assert "digits " in said
    assert "paper-imagenet " in said
    code, said, _ = run("reproduce", "show:digits")
    assert code == 0
    (tmp_path / "mine.toml").write_text(said)
    assert run("reproduce", tmp_path / "mine.toml", "--plan", "--json", "--out", tmp_path)[0] == 0


def test_missing_data_is_fetched_only_for_work_and_when_allowed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[Path] = []
    monkeypatch.setattr(cifar10, "_fetch", fetched.append)
    command = ("reproduce", "cifar10-cpu", "--data", f"cifar10:{tmp_path}", "--out", tmp_path / "run")
    code, _, log = run(*command)
    assert (code, fetched) == (2, [])
    assert "or let sigmax certify, train or reproduce fetch it with --download" in log
    assert run(*command, "--only", "cohen-0.25-fixed", "--plan", "--download")[0] == 0
    assert fetched == []
    assert run(*command, "--download")[0] == 2  # what was fetched here is nothing
    assert fetched == [tmp_path]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--max-hours -1", "--max-hours >= 0"),
        ("--batch 0", "--batch >= 1"),
        ("--batch -64 --plan", "--batch >= 1"),
        ("--device abacus", "a device that is here"),
        ("--data cifar10:/nonexistent", "unpack the official archive"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(run: Run, tmp_path: Path, flags: str, says: str) -> None:
    code, _, log = run("reproduce", write_experiment(tmp_path), "--out", tmp_path / "run", *flags.split())
    assert code == 2
    assert says in log
    assert len(log.strip().splitlines()) == 1
    assert not (tmp_path / "run" / "experiment.json").exists()
