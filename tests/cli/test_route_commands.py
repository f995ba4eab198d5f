"""Routing on the command line: asked, recorded without a memory, replayed, sharded and reported."""

from pathlib import Path

import numpy as np
import pytest

from commands import Run, call
from sigmax import Experts, SmoothedClassifier
from sigmax.data import load_source
from sigmax.data.source import SubsetSource
from sigmax.models import load_model
from sigmax.report.entries import Entry
from sigmax.routing import Route
from sigmax.runs import MEMORY, read_run, read_spec, read_table
from sigmax.runs.table import COLUMNS, TABLE, without_time
from sigmax.train import Recipe, train
from sigmax.train.router import route_examples

SAMPLING = ("--n", "300", "--max", "20", "--batch", "64")


@pytest.fixture(scope="module")
def asked(digits_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The command of a routed run, all but its folder."""
    router, network = tmp_path_factory.mktemp("router"), load_model(str(digits_model)).model
    experts = SmoothedClassifier(Experts([network, network]), num_classes=10, levels=16, sigma=0.25)
    few = SubsetSource(load_source("digits", split="test"), np.arange(100, 164))
    examples = route_examples(experts, [Route(sigma=0.1), Route(sigma=0.4, expert=1)], few, samples=16)
    train(Recipe(arch="digits-cnn", sigma=0.25, epochs=2, batch=32), examples, router)
    return ("certify", str(digits_model), "--expert", f"{digits_model}@0.4", "--route", f"{router}@0.3", *SAMPLING)


@pytest.fixture(scope="module")
def routed(asked: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("routed") / "run"
    code, _, stderr = call(*asked, "--out", str(out))
    assert code == 0, stderr
    return out


def rows(run: Path) -> list[list[str]]:
    return [without_time(line) for line in (run / TABLE).read_text().splitlines()]


def test_the_record_has_both_radii_and_no_memory(routed: Path) -> None:
    found = read_run(routed)
    assert found.spec is not None
    assert found.spec.route is not None
    assert (found.spec.route.sigma, len(found.spec.route.routes)) == (0.3, 2)
    assert (found.spec.is_per_input, found.spec.needs_memory) == (True, False)
    assert not (routed / MEMORY).exists()
    table = found.table
    assert set(table.rule) == {"point"}
    assert table.expert is not None
    assert set(zip(table.expert.tolist(), table.sigma.round(6).tolist(), strict=True)) <= {(0, 0.1), (1, 0.4)}
    assert table.route_radius is not None
    assert table.expert_radius is not None
    both = np.minimum(table.route_radius, table.expert_radius)
    is_answer = table.predict != -1
    assert is_answer.any()
    assert (table.radius[is_answer] == both[is_answer]).all()
    assert (table.radius[~is_answer] == 0).all()
    assert table.alpha == 0.001


def test_it_replays_and_resumes_to_the_same_bytes(
    routed: Path, asked: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    code, stdout, stderr = run("replay", str(routed))
    assert (code, "20 of 20 rows" in stdout) == (0, True), stderr
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.json").write_text((routed / "config.json").read_text())
    lines = (routed / TABLE).read_text().splitlines(keepends=True)
    (begun / TABLE).write_text("".join(lines[:8]))
    assert run(*asked, "--out", str(begun), "--resume")[0] == 0
    assert rows(begun) == rows(routed)


def test_shards_merge_to_the_same_run(routed: Path, asked: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    parts = [str(tmp_path / str(number)) for number in (1, 2)]
    for number, part in enumerate(parts, start=1):
        assert run(*asked, "--shard", f"{number}/2", "--out", part)[0] == 0
    merged = tmp_path / "merged"
    code, _, stderr = run("merge", *parts, "--out", str(merged))
    assert code == 0, stderr
    assert not (merged / MEMORY).exists()
    assert rows(merged) == rows(routed)


def test_a_request_is_the_same_from_its_file(routed: Path, asked: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(run(*asked, "--print-spec")[1])
    assert len(read_spec(tmp_path / "spec.json").experts) == 1
    assert run("certify", "--spec", str(tmp_path / "spec.json"), "--out", str(tmp_path / "again"))[0] == 0
    assert rows(tmp_path / "again") == rows(routed)


def test_the_fingerprint_is_that_of_router_routes_and_networks(routed: Path, asked: tuple[str, ...], run: Run) -> None:
    """Another noise level of the router is another classifier, so such a run is not continued."""
    other = [part.replace("@0.3", "@0.2") for part in asked]
    code, _, stderr = run(*other, "--out", str(routed), "--resume")
    assert (code, "route" in stderr) == (2, True), stderr


def test_reports_say_routed(routed: Path, run: Run, tmp_path: Path) -> None:
    code, _, stderr = run("report", str(routed), "--out", str(tmp_path / "report"))
    assert code == 0, stderr
    assert "routed" in (tmp_path / "report" / "report.md").read_text()
    assert Entry("run", read_run(routed)).family == "routed"


def test_an_older_table_is_read(routed: Path, tmp_path: Path) -> None:
    kept = [line.split("\t")[: COLUMNS.index("expert_radius")] for line in (routed / TABLE).read_text().splitlines()]
    (tmp_path / "old.tsv").write_text("".join("\t".join(row) + "\n" for row in kept))
    table = read_table(tmp_path / "old.tsv")
    assert (table.route_radius, table.expert_radius, table.is_routed) == (None, None, False)


def test_mistakes_are_told(asked: tuple[str, ...], run: Run, digits_model: Path, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "run"))
    for more, says in (
        (("--per-input",), "router alone"),
        (("--memory", str(tmp_path / "memory.db")), "router alone"),
        (("--at", "0.25"), "--at"),
        (("--route", str(digits_model)), "classes are routes"),
        (("--route", "toy:small_network"), "card names its routes"),
    ):
        code, _, stderr = run(*asked, *out, *more)
        assert (code, says in stderr) == (2, True), stderr
    one_network = tuple(part for part in asked if part != "--expert" and not part.endswith("@0.4"))
    code, _, stderr = run(*one_network, *out)
    assert (code, "one of 1 experts" in stderr) == (2, True), stderr
