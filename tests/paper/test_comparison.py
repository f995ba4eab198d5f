"""The paper's numbers beside ours: both recomputed here from the records and the paper's files."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sigmax.paper import published as of_paper
from sigmax.paper.comparison import compare_with_paper
from sigmax.paper.experiment import Certification, Experiment, load_experiment
from sigmax.report.tables import ResultTable
from sigmax.runs import CertificateTable, CertificationSpec, Found, Run
from small_experiment import EXPERIMENT, write_experiment

L1 = """
[networks.yang]
sigma = [0.25, 0.5, 1.0]
noise = "l1"

[[certify]]
networks = ["yang"]
search = "fixed"

[[certify]]
networks = ["yang"]
search = "halving"
"""
RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return load_experiment(
        str(write_experiment(tmp_path, at_all_sigmas(EXPERIMENT).replace("[2, 4]", "[100, 900]") + L1))
    )


def at_all_sigmas(text: str) -> str:
    """The network that others are tuned from at all sigmas of the paper."""
    return text.replace("sigma = 0.25", "sigma = [0.12, 0.25, 0.50]", 1)


def record(run: Certification, *, backend: str = "torch", fingerprint: str | None = None) -> Run:
    """A made-up record of this certification."""
    random, network, noise = np.random.default_rng(len(run.name)), run.network, run.spec.noise
    label = random.integers(0, 10, size=200)
    predict = np.where(random.random(200) < 0.8, label, -1)
    table = CertificateTable(
        name=run.name,
        idx=np.arange(200),
        label=label,
        predict=predict,
        radius=random.gamma(2.0, 0.3, size=200),
        seconds=np.zeros(200),
        sigma=np.full(200, 0.25),
        point_predict=predict,
        point_radius=np.zeros(200),
        rule=("kept",) * 200,
        samples=np.full(200, 400),
        norm=noise.norm,
    )
    found = Found(
        fingerprint=fingerprint or network.name,
        data="digits",
        device="cpu",
        backend=backend,
        trained=network.trained,
        trained_noise=network.noise.name,
        arch=network.arch,
    )
    return Run(table=table, spec=replace(run.spec, found=found))


def compare(experiment: Experiment, only: Sequence[str] | None = None) -> tuple[dict[str, ResultTable], dict[str, Run]]:
    names = experiment.certifications if only is None else only
    records = {name: record(experiment.certifications[name]) for name in names}
    tables = compare_with_paper(experiment, list(records.values()))
    return {table.name: table for table in tables}, records


def accuracy(run: Run, radius: float) -> float:
    table = run.table
    return 100 * float(
        np.mean([p == y and r >= radius for p, y, r in zip(table.predict, table.label, table.radius, strict=True)])
    )


def published(file: str, **wanted: str) -> dict[float, float]:
    with (Path(of_paper.__file__).parent / "tables" / file).open(newline="") as opened:
        rows = [row for row in csv.DictReader(opened, delimiter="\t") if all(row[k] == v for k, v in wanted.items())]
    return {float(row["radius"]): float(row["accuracy"]) for row in rows}


def numbers(table: ResultTable, *head: str) -> dict[float, float]:
    """The numbers of the row that begins so, by radius."""
    (row,) = [row for row in table.rows if row[: len(head)] == head]
    cells = dict(zip(table.header[len(head) :], row[len(head) :], strict=True))
    return {float(radius): float(cell) for radius, cell in cells.items() if radius not in ("ACR", "sigma0")}


def test_the_best_of_ours_and_of_the_paper(experiment: Experiment) -> None:
    found, records = compare(experiment)
    best = found["paper-best-l2"]
    ours = [records[f"cohen-{sigma}-ascent-paper-k{k}"] for sigma in ("0.12", "0.25", "0.50") for k in (100, 900)]
    expected = {r: max(accuracy(run, r) for run in ours) for r in RADII}
    assert numbers(best, "cohen-ds", "ours", "Algorithm 1, K = 100, 900") == pytest.approx(expected, abs=0.0501)
    of_paper = published("best.tsv", data="cifar10", norm="l2", method="cohen-ds2")
    assert numbers(best, "cohen-ds2", "paper", "Algorithm 1") == pytest.approx(of_paper, abs=0.0501)
    acr = max(float(np.mean(run.table.radius * run.table.is_correct)) for run in ours)
    (row,) = [row for row in best.rows if row[:3] == ("cohen-ds", "ours", "Algorithm 1, K = 100, 900")]
    assert float(row[-1]) == pytest.approx(acr, abs=5.01e-4)
    for i, j in best.best:
        column = [float(row[j]) for row in best.rows if row[1] == "ours"]
        assert best.rows[i][1] == "ours"
        assert float(best.rows[i][j]) == max(column)


def test_the_gain_of_ours_and_of_the_paper(experiment: Experiment) -> None:
    found, records = compare(experiment)
    gain = found["paper-gain-l2"]
    for level, sigmas in (("best", ("0.12", "0.25", "0.50")), ("0.25", ("0.25",))):
        fixed, halving = ([records[f"cohen-{s}-{kind}"] for s in sigmas] for kind in ("fixed", "halving"))
        best = {r: [max(accuracy(run, r) for run in runs) for runs in (halving, fixed)] for r in RADII}
        expected = {r: own - one for r, (own, one) in best.items()}
        assert numbers(gain, "cohen-ds over cohen", level, "ours", "halving") == pytest.approx(expected, abs=0.0501)
    better, worse = (published("best.tsv", data="cifar10", method=name) for name in ("cohen-ds", "cohen"))
    shown = numbers(gain, "cohen-ds over cohen", "best", "paper", "Algorithm 1")
    assert shown == pytest.approx({r: better[r] - worse[r] for r in RADII}, abs=0.0501)
    assert shown[0.5] == pytest.approx(7.7)  # as its text says
    at = [
        published("per_sigma.tsv", data="cifar10", method="cohen-ds", sigma="0.25", steps=str(100 * k))
        for k in range(1, 10)
    ]
    base = published("per_sigma.tsv", data="cifar10", method="cohen", sigma="0.25")
    shown = numbers(gain, "cohen-ds over cohen", "0.25", "paper", "Algorithm 1")
    assert shown == pytest.approx({r: max(curve[r] for curve in at) - base[r] for r in RADII}, abs=0.0501)


def test_the_best_of_more_steps_is_not_compared_with_the_best_of_fewer(experiment: Experiment) -> None:
    """Beside ours at K = 100 and 900 stands the paper's best of these two, whatever it has at other K."""
    found, records = compare(experiment)
    for level, sigmas in (("best", ("0.12", "0.25", "0.50")), ("0.12", ("0.12",))):
        alike = {"data": "cifar10", "method": "cohen-ds"}
        at = [published("per_sigma.tsv", **alike, sigma=s, steps=k) for s in sigmas for k in ("100", "900")]
        fixed = [published("per_sigma.tsv", data="cifar10", method="cohen", sigma=s) for s in sigmas]
        expected = {r: max(curve[r] for curve in at) - max(curve[r] for curve in fixed) for r in RADII}
        head = ("cohen-ds over cohen", level, "paper", "Algorithm 1, K = 100, 900")
        assert numbers(found["paper-gain-l2"], *head) == pytest.approx(expected, abs=0.0501)
        own = [records[f"cohen-{s}-ascent-paper-k{k}"] for s in sigmas for k in (100, 900)]
        one = [records[f"cohen-{s}-fixed"] for s in sigmas]
        gained = {r: max(accuracy(run, r) for run in own) - max(accuracy(run, r) for run in one) for r in RADII}
        assert numbers(found["paper-gain-l2"], *head[:2], "ours", head[3]) == pytest.approx(gained, abs=0.0501)
    some = [name for name in experiment.certifications if not name.endswith("k900")]
    heads = [row[:4] for row in compare(experiment, some)[0]["paper-gain-l2"].rows]
    assert ("cohen-ds over cohen", "0.12", "paper", "Algorithm 1, K = 100") in heads


def test_the_best_of_more_sigmas_is_not_compared_with_the_best_of_fewer(tmp_path: Path) -> None:
    whole = load_experiment(str(write_experiment(tmp_path, at_all_sigmas(EXPERIMENT))))
    found, _ = compare(whole)
    heads = [row[:4] for row in found["paper-gain-l2"].rows]
    assert ("cohen-ds over cohen", "best", "ours", "halving") in heads
    assert ("cohen-ds2 over cohen", "0.25", "ours", "Algorithm 1, K = 2, 4") in heads
    assert ("cohen-ds2 over cohen", "0.25", "paper", "Algorithm 1, K = 2, 4") not in heads  # it has none of these
    assert not [head for head in heads if head[:2] == ("cohen-ds2 over cohen", "best")]
    levels = {row[:3]: row[3] for row in found["paper-best-l2"].rows}
    assert levels["cohen-ds", "ours", "halving"] == levels["cohen-ds", "paper", "Algorithm 1"] == "0.12, 0.25, 0.50"
    assert levels["cohen-ds2", "ours", "Algorithm 1, K = 2, 4"] == "0.25"
    some = [name for name in whole.certifications if name != "cohen-0.12-halving"]
    heads = [row[:4] for row in compare(whole, some)[0]["paper-gain-l2"].rows]
    assert ("cohen-ds over cohen", "best", "ours", "halving") not in heads
    assert ("cohen-ds over cohen", "best", "ours", "Algorithm 1, K = 2, 4") in heads
    # Ours at some of the paper's sigmas are set beside the paper's at each of these, not beside its best of all.
    few = [name for name in whole.certifications if "0.50" not in name]
    heads = [row[:4] for row in compare(whole, few)[0]["paper-gain-l2"].rows]
    assert {head[1] for head in heads} == {"0.12", "0.25"}
    assert ("cohen-ds over cohen", "0.12", "paper", "Algorithm 1") in heads


def test_gains_are_over_the_same_network_by_the_same_backend(experiment: Experiment) -> None:
    def gains(**of_fixed: str) -> set[str]:
        runs = [run for run in experiment.certifications.values() if run.spec.noise.norm == 2]
        made = [record(run) if run.spec.is_per_input else record(run, **of_fixed) for run in runs]
        tables = {table.name: table for table in compare_with_paper(experiment, made)}
        return {row[0] for row in tables["paper-gain-l2"].rows} if "paper-gain-l2" in tables else set()

    assert gains() == {"cohen-ds over cohen", "cohen-ds2 over cohen"}
    assert gains(fingerprint="another") == {"cohen-ds2 over cohen"}
    assert not gains(fingerprint="another", backend="integers")


def test_runs_that_were_sampled_otherwise_are_not_subtracted(tmp_path: Path) -> None:
    text = EXPERIMENT.replace('search = "halving"', 'search = "halving"\nn = 4000\nalpha = 0.2')
    found, _ = compare(load_experiment(str(write_experiment(tmp_path, text))))
    heads = [row[:4] for row in found["paper-gain-l2"].rows]
    assert not [head for head in heads if "halving" in head[3]]
    assert [head for head in heads if head[2:] == ("ours", "Algorithm 1, n = 400, alpha = 0.001, K = 2, 4")]
    ways = [row[2] for row in found["paper-best-l2"].rows if row[1] == "ours"]
    assert "halving, n = 4,000, alpha = 0.2" in ways
    assert "n = 400, alpha = 0.001 or n = 4,000, alpha = 0.2" in found["paper-best-l2"].caption


def test_times_stand_beside_the_paper_s(experiment: Experiment) -> None:
    rows = compare(experiment)[0]["paper-runtime"].rows
    assert ("halving", "ours", "0.00") in rows
    assert rows[-2:] == (("fixed", "paper", "1.6"), ("Algorithm 1, K = 900", "paper", "1.8"))


def test_settings_and_times_are_those_of_the_records(experiment: Experiment) -> None:
    def other(run: Run) -> CertificationSpec:
        assert run.spec is not None
        return replace(run.spec, budget=replace(run.spec.budget, n0=7, alpha=0.05))

    names = {"cohen-0.12-fixed": "one", "cohen-0.25-fixed": "other"}
    made = [record(experiment.certifications[name], backend=backend) for name, backend in names.items()]
    made = [replace(run, spec=other(run)) for run in made]
    tables = {table.name: table for table in compare_with_paper(experiment, made)}
    said = {row[0]: row[1] for row in tables["paper-settings"].rows}
    assert (said["n0"], said["alpha"], said["backend"]) == ("7", "0.05", "one, other")
    assert [row[0] for row in tables["paper-runtime"].rows if row[1] == "ours"] == ["fixed, one", "fixed, other"]
    assert [row[2] for row in tables["paper-best-l2"].rows if row[1] == "ours"] == ["one", "other"]


def test_a_step_size_that_the_paper_does_not_have_is_not_beside_its_own(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("steps = [2, 4]", "steps = 100\nstep_size = 0.001")
    found, _ = compare(load_experiment(str(write_experiment(tmp_path, text))))
    assert {row[0] for row in found["paper-per-sigma-l2"].rows} == {"cohen"}
    assert "Algorithm 1, steps of 0.001, K = 100" in [row[2] for row in found["paper-best-l2"].rows]


def test_runs_of_the_appendix_stand_beside_their_own(experiment: Experiment) -> None:
    found, records = compare(experiment)
    table = found["paper-per-sigma-l2"]
    run = records["cohen-ds2-0.25-ascent-paper-k900"]
    assert numbers(table, "cohen-ds2", "0.25", "900", "ours") == pytest.approx(
        {r: accuracy(run, r) for r in RADII}, abs=0.0501
    )
    of_paper = published("per_sigma.tsv", data="cifar10", method="cohen-ds2", sigma="0.25", steps="900")
    assert numbers(table, "cohen-ds2", "0.25", "900", "paper") == pytest.approx(of_paper, abs=0.0501)
    assert len(table.rows) == 2 * 11  # all but the halving search, which the paper does not have


def test_l1_has_tables_of_its_own(experiment: Experiment) -> None:
    found, records = compare(experiment)
    radii = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
    gain = numbers(found["paper-gain-l1"], "yang-ds over yang", "best", "ours", "halving")
    fixed, halving = ([records[f"yang-{s}-{kind}"] for s in ("0.25", "0.50", "1.00")] for kind in ("fixed", "halving"))
    best = {r: [max(accuracy(run, r) for run in runs) for runs in (halving, fixed)] for r in radii}
    assert gain == pytest.approx({r: own - one for r, (own, one) in best.items()}, abs=0.0501)
    assert numbers(found["paper-gain-l1"], "yang-ds over yang", "best", "paper", "Algorithm 1")[0.5] == 7.0
    assert not any("yang" in cell for row in found["paper-best-l2"].rows for cell in row)


def test_both_settings_are_said(experiment: Experiment) -> None:
    found, _ = compare(experiment)
    said = {row[0]: row[1:] for row in found["paper-settings"].rows}
    assert said["data"] == ("digits", "CIFAR-10")
    assert said["images certified"][0] == "200"
    assert said["images certified"][1].startswith("10,000")
    assert said["network"] == ("digits-cnn", "ResNet-18; l1: not said")
    assert said["sigma0 (l2)"] == ("cohen 0.12, 0.25, 0.50; cohen-ds2 0.25", "0.12, 0.25, 0.50")
    assert said["lambda (l1)"] == ("0.25, 0.50, 1.00", "0.25, 0.50, 1.00")
    assert said["epochs of training"][0] == "cohen 6, cohen-ds2 2, yang 40"
    assert said["epochs of training"][1].startswith("200")
    assert said["n"] == ("400", "100,000")
    assert said["backend"] == ("torch", "not said")
    for table in found.values():
        assert table.name in ("paper-settings", "paper-runtime") or "n = 400" in table.caption
        assert table.name == "paper-settings" or "n = 100,000" in table.caption


def test_what_is_not_complete_is_left_out(experiment: Experiment) -> None:
    found, _ = compare(experiment, ["cohen-0.25-halving"])
    assert set(found) == {"paper-settings", "paper-best-l2", "paper-runtime"}  # without a fixed run there is no gain
    assert {row[0] for row in found["paper-best-l2"].rows} == {"cohen-ds"}
    assert compare(experiment, [])[0] == {}


def test_the_paper_s_macer_is_of_one_training(tmp_path: Path) -> None:
    """Its appendix has MACER-DS^2 with 1 and with 8 draws; a gain must not take the better of two networks."""
    text = EXPERIMENT.replace("cohen", "macer").replace("epochs =", 'method = "macer"\nepochs =')
    found, _ = compare(load_experiment(str(write_experiment(tmp_path, text))))
    shown = numbers(found["paper-gain-l2"], "macer-ds2 over macer", "0.25", "paper", "Algorithm 1, 8 draws")
    base = published("per_sigma.tsv", data="cifar10", method="macer", sigma="0.25")
    at = [
        published("per_sigma.tsv", data="cifar10", method="macer-ds2", sigma="0.25", samples="8", steps=str(100 * k))
        for k in range(1, 16)
    ]
    expected = {r: max(curve[r] for curve in at if curve) - base[r] for r in base}
    assert shown == pytest.approx({r: expected[r] for r in shown}, abs=0.0501)
    assert shown[1.0] == pytest.approx(14.3, abs=0.05)
