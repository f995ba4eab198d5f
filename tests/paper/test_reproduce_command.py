"""`sigmax reproduce` on a small experiment, from nothing to the report."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from commands import Run
from sigmax.cli.reproduce import UNFINISHED
from sigmax.data import cifar10
from sigmax.plain import to_plain
from sigmax.runs import read_run
from sigmax.search import HalvingSearch
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
    listed = set((made.out / "report" / "files.txt").read_text().split())
    assert {
        name.removeprefix("report/") for name in made.whole.files if re.match("report/(tables|figures)/", name)
    } == listed
    runs = {path.name: read_run(path) for path in (made.out / "runs").iterdir()}
    specs = {name: found.spec for name, found in runs.items() if found.spec}
    assert {name: spec.method for name, spec in specs.items()} == RUNS
    assert {spec.data.name for spec in specs.values()} == {"digits"}
    assert {Path(spec.model.name).name for spec in specs.values()} == {"cohen-0.25", "cohen-ds2-0.25"}
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


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("epochs = 6", "epochs = 7", "networks.cohen-0.25.recipe.epochs=7 (was 6)"),
        ("n = 400", "n = 500", "certifications.cohen-0.25-ascent-paper-k2.budget.n=500 (was 400)"),
        ("25\nmax", "20\nmax", "data.skip=20 (was 25)"),
    ],
)
def test_a_changed_experiment_is_refused_with_what_differs(
    run: Run, made: Made, tmp_path: Path, old: str, new: str, said: str
) -> None:
    for more in ((), ("--plan",)):
        code, _, log = run(
            "reproduce", write_experiment(tmp_path, EXPERIMENT.replace(old, new)), "--out", made.out, *more
        )
        assert code == 2
        assert said in log
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
    assert "--download" in log
    assert run(*command, "--only", "cohen-0.25-fixed", "--plan", "--download")[0] == 0
    assert fetched == []
    assert run(*command, "--download")[0] == 2  # what was fetched here is nothing
    assert fetched == [tmp_path]


@pytest.mark.parametrize(
    "flags",
    [
        "--max-hours -1",
        "--batch 0",
        "--batch -64 --plan",
        "--device abacus",
        "--data cifar10:/nonexistent",
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(run: Run, tmp_path: Path, flags: str) -> None:
    code, _, log = run("reproduce", write_experiment(tmp_path), "--out", tmp_path / "run", *flags.split())
    assert code == 2
    assert flags.split()[1].partition(":")[2] in log
    assert len(log.strip().splitlines()) == 1
    assert not (tmp_path / "run" / "experiment.json").exists()


OWN = """
from dataclasses import dataclass
from sigmax import SigmaSearch, SmoothingDistribution
from sigmax.noise import Gaussian
from sigmax.search import Choice

@dataclass(frozen=True, kw_only=True)
class Scaled(SigmaSearch):
    initial: float
    factor: float = 1.0
    fixes_class: bool = False
    is_per_input = False

    def find(self, task):
        return Choice(sigma=task.x.new_full((len(task.x),), self.factor * self.initial))

    def cost(self):
        return 0

class Narrow(SmoothingDistribution):
    name = "narrow"
    norm = 2

    def draw(self, stream, n, shape, *, dtype):
        return Gaussian().draw(stream, n, shape, dtype=dtype)

    def radius(self, p_lower, *, sigma, p_upper=None):
        return Gaussian().radius(p_lower, sigma=sigma, p_upper=p_upper) / 2

    def probability(self, radius, *, sigma):
        return Gaussian().probability(2 * radius, sigma=sigma)

    def soft_radius(self, probs, sigma, *, label=None):
        return Gaussian().soft_radius(probs, sigma, label=label) / 2
"""


def test_a_search_and_a_noise_of_one_s_own(
    run: Run, digits_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    text = EXPERIMENT[: EXPERIMENT.index("[networks")]
    text += f'[networks.own]\nsigma = 0.25\nmodel = "{digits_model}"\n[[certify]]\nnetworks = "own"\n'
    text += 'search = "own_parts:Scaled"\nfactor = 0.5\nnoise = "own_parts:Narrow"\n'
    text += '[[certify]]\nnetworks = "own"\nsearch = "halving"\nbounds = [0.2, 0.3]\ncandidates = 3\n'
    code, _, log = run("reproduce", write_experiment(tmp_path, text), "--out", tmp_path / "run")
    assert code == 0, log
    own, halving = (read_run(tmp_path / "run" / "runs" / f"own-0.25-{name}") for name in ("Scaled-l2", "halving"))
    assert own.spec is not None
    assert halving.spec is not None
    assert to_plain(own.spec.noise)["name"] == "own_parts:Narrow"
    assert to_plain(own.spec.search)["factor"] == 0.5
    assert set(own.table.sigma.tolist()) == {0.125}
    assert not own.spec.is_per_input
    assert isinstance(halving.spec.search, HalvingSearch)
    assert (halving.spec.search.bounds, halving.spec.search.candidates) == ((0.2, 0.3), 3)
    assert "own_parts:Narrow" in (tmp_path / "run" / "report" / "report.md").read_text()


def test_the_file_may_say_how_a_network_was_trained(run: Run, tmp_path: Path, digits_model: Path) -> None:
    text = EXPERIMENT[: EXPERIMENT.index("[networks")]
    text += f'[networks.own]\nsigma = 0.25\nmodel = "{digits_model}"\nmethod = "macer"\n'
    text += '[[certify]]\nnetworks = "own"\nsearch = "fixed"\n'
    assert run("reproduce", write_experiment(tmp_path, text), "--out", tmp_path / "run")[0] == 0
    best = (tmp_path / "run" / "report" / "tables" / "paper-best-l2.csv").read_text()
    assert [line.split(",")[0] for line in best.splitlines()] == ["method", "macer", "macer"]


def test_presets_are_listed_without_torch() -> None:
    code = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    code += "from sigmax.cli import main; main()"
    for command in ("list", "show:digits"):
        said = subprocess.run(
            [sys.executable, "-c", code, "reproduce", command], capture_output=True, text=True, check=True
        )
        assert said.stdout.splitlines()[-1] == "False"
