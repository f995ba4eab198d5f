"""The results in the documentation are those of the records that are kept beside them."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import binomtest

import off_the_shelf
from results import DOCS, EXPERIMENTS, RESULTS, compose
from sigmax.metrics import average_certified_radius, certified_accuracy
from sigmax.paper.experiment import load_experiment
from sigmax.rounding import format_duration
from sigmax.runs import Run, read_run, read_table

RUNS = sorted(path.parent for name in EXPERIMENTS for path in (RESULTS / name / "runs").glob("*/certificates.tsv"))
SEARCHES = {
    "one sigma": "fixed",
    "halving": "halving",
    "grid": "grid-k100",
    "grid, 200 evaluations": "grid-k100",
    "K = 100": "ascent-paper-k100",
    "K = 400": "ascent-paper-k400",
    "K = 900": "ascent-paper-k900",
    "8 draws, K = 100": "ascent-paper-k100-n8",
    "K = 100, 8 draws": "ascent-paper-k100-n8",
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_page_of_results_is_what_its_records_give(name: str) -> None:
    assert (RESULTS / name / "report.md").read_text() == compose(name).text
    for figure in (RESULTS / name / "figures").iterdir():
        assert f"(figures/{figure.name})" in compose(name).text


def tables(page: Path) -> list[list[dict[str, str]]]:
    """The tables of a page, each row by the names of its columns."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split(" |")] for line in table.splitlines())
        found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found


def number(cell: str) -> float:
    """The first number of a cell, without bold and without its interval."""
    return float(cell.split()[0].strip("*"))


def record(network: str, sigma: str, search: str) -> Path:
    """The run of a row of a page, by the page's words."""
    method = network.lower().replace("^", "")
    return RESULTS / "cifar10-cpu" / "runs" / f"{method}-{sigma}-{SEARCHES[search.removeprefix('Algorithm 1, ')]}"


@pytest.mark.parametrize("page", ["results.md", "results/searches.md", "results/steps.md"])
def test_the_first_table_of_a_page_has_the_acr_of_the_records(page: str) -> None:
    rows = [row for row in tables(DOCS / page)[0] if row["sigma0"][0].isdigit()]
    assert [row["sigma0"] for row in rows] == ["0.12", "0.25", "0.50"]
    for row in rows:
        for search in set(row) - {"sigma0"}:
            acr = average_certified_radius(read_table(record("cohen", row["sigma0"], search)))
            assert number(row[search]) == pytest.approx(acr, abs=0.0005001), f"{search} at {row['sigma0']}"


@pytest.mark.parametrize(("page", "rows"), [("searches", 12), ("steps", 9), ("training", 11)])
def test_certified_accuracies_of_a_page_are_those_of_the_records(page: str, rows: int) -> None:
    (table,) = (table for table in tables(RESULTS / f"{page}.md") if {"sigma0", "search", "ACR"} <= set(table[0]))
    assert len(table) == rows
    for row in table:
        found = read_table(record(row.get("network", "cohen"), row["sigma0"], row["search"]))
        assert number(row["ACR"]) == pytest.approx(average_certified_radius(found), abs=0.0005001)
        for radius in filter(is_radius, row):
            assert number(row[radius]) == pytest.approx(certified_accuracy(found, float(radius)), abs=1e-9)


def test_our_gains_beside_those_of_the_paper_are_those_of_the_records() -> None:
    network, checked = "", 0
    for row in tables(RESULTS / "paper.md")[0]:
        network = row["network"] or network
        whose, _, search = row["whose"].partition(", ")
        if whose == "paper":
            continue
        method, _, sigma = network.partition(" ")
        ours = read_table(record(method, sigma, search))
        one_sigma = read_table(record(method.removesuffix("-DS^2"), sigma, "one sigma"))
        for radius in filter(is_radius, row):
            gain = certified_accuracy(ours, float(radius)) - certified_accuracy(one_sigma, float(radius))
            assert number(row[radius]) == pytest.approx(100 * gain, abs=1e-9), f"{network}, {search} at {radius}"
        checked += 1
    assert checked == 12


def is_radius(column: str) -> bool:
    return re.fullmatch(r"[\d.]+", column) is not None


def test_the_first_table_of_performance_repeats_the_last_run() -> None:
    first, *others = tables(DOCS / "performance.md")
    (peers,) = (table for table in others if "usual loop / it" in table[0])
    last_run = {row["who"]: row for row in peers if (row["network"], row["n"]) == ("patch-resnet10", "100,000")}
    columns = ("who", "seconds", "usual loop / it", "ART / it", "peak MB")
    assert [list(row.values()) for row in first] == [[row[name] for name in columns] for row in last_run.values()]


@pytest.fixture(params=RUNS, ids=[folder.name for folder in RUNS])
def run(request: pytest.FixtureRequest) -> Run:
    return read_run(request.param)


def test_a_record_is_of_the_experiment_it_is_kept_for(run: Run) -> None:
    (folder,) = (path for path in RUNS if path.name == run.name)
    experiment = load_experiment(folder.parents[1].name)
    asked = experiment.certifications[run.name].spec
    assert run.spec is not None
    assert (run.spec.search, run.spec.noise, run.spec.budget) == (asked.search, asked.noise, asked.budget)
    assert run.table.idx.tolist() == experiment.data.indices(10_000)
    assert "/" not in run.spec.data.name + run.spec.model.name  # no place of a machine


def test_radii_of_a_record_follow_from_its_bounds(run: Run) -> None:
    """Recomputed plainly: the point certificates of Cohen et al., and answers that contradict none of them."""
    (folder,) = (path for path in RUNS if path.name == run.name)
    lines = [line.split("\t") for line in (folder / "certificates.tsv").read_text().splitlines()]
    columns: dict[str, list[str]] = dict(zip(lines[0], map(list, zip(*lines[1:], strict=True)), strict=True))

    def numbers(name: str) -> NDArray[np.float64]:
        return np.array(columns[name], dtype=np.float64)

    is_answered = numbers("point_predict") >= 0
    expected = numbers("point_sigma") * ndtri(numbers("p_lower").clip(0.5))
    radius = numbers("point_radius")
    assert (numbers("p_lower")[is_answered] > 0.5).all()
    np.testing.assert_allclose(radius[is_answered], expected[is_answered], rtol=1e-9)
    assert not radius[~is_answered].any()
    is_kept = np.isin(columns["rule"], ["kept", "point"])
    np.testing.assert_array_equal(numbers("radius")[is_kept], radius[is_kept])


def test_the_page_of_networks_off_the_shelf_is_what_its_records_give() -> None:
    """Recomputed plainly, from the columns of the records."""
    assert off_the_shelf.PAGE.read_text() == off_the_shelf.compose()
    rows = {(row["network"], row["data"], row["sigma"]): row for row in tables(off_the_shelf.PAGE)[0]}
    seconds = json.loads(off_the_shelf.TIMES.read_text())
    for name, request in off_the_shelf.requests().items():
        network, _, kind = name.partition("-")[2].partition("-")
        data = name.partition("-")[0]
        inputs = {"cifar10": 100, "imagenet": 50}[data]
        sigma = {"fixed": "0.25", "per-input": "per input"}[kind]
        row = rows.pop((off_the_shelf.NAMES[network], off_the_shelf.NAMES[data], sigma), None)
        record = off_the_shelf.RUNS / name
        if row is None:  # only where its run is not finished
            assert not record.exists() or len(read_table(record)) < inputs
            continue
        found = read_run(record)
        assert found.spec is not None
        asked = replace(request.data, preprocess={"cifar10": None, "imagenet": "imagenet"}[data])  # as the model says
        assert replace(found.spec, found=None) == replace(request, data=asked)
        assert found.spec.data.name in ("cifar10", "imagenet:imagenet-val50")  # no place of a machine
        assert len(found.table) == int(row["inputs"]) == inputs
        assert found.table.is_settled
        samples = request.budget.n0 + request.search.cost() + float(found.table.samples.mean())
        assert row["time per input"] == format_duration(samples * seconds[f"{data}-{network}"])
        is_right = found.table.predict == found.table.label
        for radius in ("0", "0.25", "0.5", "0.75"):
            hits = int((is_right & (found.table.radius >= float(radius))).sum())
            interval = binomtest(hits, inputs).proportion_ci(0.95, method="exact")
            share, low, high = map(float, re.findall(r"[\d.]+", row[f"at {radius}"]))
            assert share == pytest.approx(hits / inputs, abs=0.0005001)
            assert (low, high) == pytest.approx((interval.low, interval.high), abs=0.005001)
    assert not rows
