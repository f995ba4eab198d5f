"""Replay: a record is repeated, and every row that does not come out the same is told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sigmax import AscentSearch, FixedSigma, Uniform
from sigmax.budget import Budget
from sigmax.engine import certify, replay
from sigmax.errors import InvalidInputError, RecordError
from sigmax.runs import CertificationSpec
from sigmax.runs.table import COLUMNS
from toy import Brighter, Doubled, Wide, quietly, toy_spec


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


def edit(out: Path, row: int, column: str, text: str) -> None:
    """Write something else into a cell of a record."""
    table = out / "certificates.tsv"
    lines = [line.split("\t") for line in table.read_text().splitlines()]
    lines[1 + row][lines[0].index(column)] = text
    table.write_text("".join("\t".join(line) + "\n" for line in lines))


CHANGES: dict[str, dict[str, Any]] = {
    "fixed": {"search": FixedSigma(0.25)},
    "halving": {},
    "algorithm-1": {"search": AscentSearch.paper(initial=0.25, steps=5, samples=2)},
    "own-search": {"search": Brighter(initial=0.25, factor=3.0)},
    "own-search-one-sigma": {"search": Doubled(initial=0.25)},
    "own-noise": {"noise": Wide(3.0)},
    "uniform": {"noise": Uniform()},
    "tolerance": {"budget": Budget(n=3_000, tolerance=0.1, n_wrong=1_000, seed=5)},
    "no-module": {"model": "toy:Threshold"},
    "noise-aware": {"model": "toy:level"},
    "skipped": {"inputs": 9},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_fresh_run_is_repeated_row_by_row(tmp_path: Path, out: Path, name: str) -> None:
    spec = toy_spec(tmp_path, **CHANGES[name])
    if name == "skipped":
        spec = replace(spec, data=replace(spec.data, skip=4))
    certify(spec, out, track=quietly)
    torch.manual_seed(12345)  # what else this process draws has no part in it
    found = replay(out, track=quietly)
    assert (found.rows, found.differing, found.is_settled) == (3, (), True)


@pytest.mark.parametrize(
    ("column", "text"),
    [("radius", "0.1"), ("predict", "-1"), ("p_lower", "0.75"), ("sigma", "0.3"), ("rule", "truncated"), ("n", "201")],
)
def test_a_changed_cell_is_found(tmp_path: Path, out: Path, column: str, text: str) -> None:
    certify(toy_spec(tmp_path), out, track=quietly)
    edit(out, 1, column, text)
    found = replay(out, track=quietly)
    ((old, new),) = found.differing
    assert text in old.split("\t")
    assert old != new
    assert replay(out, track=quietly, most=1).differing == ()  # the first row is as it was


def test_the_last_digit_of_a_radius_counts(tmp_path: Path, out: Path) -> None:
    table = certify(toy_spec(tmp_path), out, track=quietly)
    radius = repr(float(table.radius[0]))
    edit(out, 0, "radius", radius[:-1] + ("1" if radius[-1] != "1" else "2"))
    assert len(replay(out, track=quietly).differing) == 1


def test_times_do_not_count(tmp_path: Path, out: Path) -> None:
    certify(toy_spec(tmp_path), out, track=quietly)
    edit(out, 0, "time", "9:00:00")
    assert replay(out, track=quietly).differing == ()


def test_as_many_rows_as_asked_and_data_from_another_place(tmp_path: Path, out: Path) -> None:
    spec = toy_spec(tmp_path, inputs=12)
    certify(spec, out, track=quietly)
    moved = tmp_path / "moved.npz"
    (tmp_path / "toy-12.npz").rename(moved)
    assert replay(out, track=quietly, most=5, data=f"arrays:{moved}").rows == 5
    toy_spec(tmp_path, inputs=13)
    with pytest.raises(RecordError, match=r"found\.data"):
        replay(out, track=quietly, data=f"arrays:{tmp_path}/toy-13.npz")


def test_a_shared_memory_leaves_the_point_certificates_to_compare(tmp_path: Path, out: Path) -> None:
    spec = toy_spec(tmp_path, memory=str(tmp_path / "shared.db"))
    certify(replace(spec, search=FixedSigma(0.5)), tmp_path / "before", track=quietly)
    certify(spec, out, track=quietly)
    shared = (tmp_path / "shared.db").read_bytes()
    found = replay(out, track=quietly)
    assert (found.rows, found.differing, found.is_settled) == (3, (), False)
    assert (tmp_path / "shared.db").read_bytes() == shared
    edit(out, 0, "point_radius", "0.1")
    assert len(replay(out, track=quietly).differing) == 1


def test_a_run_under_way_is_compared_as_far_as_it_is(tmp_path: Path, out: Path) -> None:
    certify(toy_spec(tmp_path), out, track=quietly)
    table = out / "certificates.tsv"
    table.write_bytes(table.read_bytes()[:-5])
    assert (replay(out, track=quietly).rows, replay(out, track=quietly).differing) == (2, ())


def test_a_row_too_many_is_told(tmp_path: Path, out: Path) -> None:
    certify(toy_spec(tmp_path), out, track=quietly)
    table = out / "certificates.tsv"
    table.write_text(table.read_text() + table.read_text().splitlines(keepends=True)[-1])
    found = replay(out, track=quietly)
    assert (found.rows, len(found.differing)) == (4, 1)


def test_other_weights_are_told_before_any_work(tmp_path: Path, out: Path) -> None:
    certify(toy_spec(tmp_path), out, track=quietly)
    config = out / "config.json"
    config.write_text(config.read_text().replace("toy:half_space", "toy:sharper_half_space"))
    with pytest.raises(RecordError, match="fingerprint"):
        replay(out, track=quietly)


def test_what_is_no_record_is_refused(tmp_path: Path, out: Path) -> None:
    spec: CertificationSpec = toy_spec(tmp_path)
    with pytest.raises(RecordError, match=r"config\.json"):
        replay(out, track=quietly)
    out.mkdir()
    (out / "config.json").write_text(spec.to_json())  # asked for, never executed
    with pytest.raises(RecordError, match="run"):
        replay(out, track=quietly)
    certify(spec, out, track=quietly)
    for most in (0, -1):
        with pytest.raises(InvalidInputError, match=str(most)):
            replay(out, track=quietly, most=most)
    table = out / "certificates.tsv"
    table.write_text(table.read_text().splitlines()[0] + "\n")
    with pytest.raises(RecordError, match=r"certificates\.tsv"):
        replay(out, track=quietly)


def test_a_part_of_a_table_is_repeated_with_its_share_of_alpha(tmp_path: Path, out: Path) -> None:
    certify(toy_spec(tmp_path, inputs=4, family_alpha=0.01), out, track=quietly)
    alpha = COLUMNS.index("point_alpha")
    assert [line.split("\t")[alpha] for line in (out / "certificates.tsv").read_text().splitlines()[1:]] == [
        str(0.0025 * (1 - 2.0**-50))
    ] * 4
    found = replay(out, track=quietly, most=2)
    assert (found.rows, found.differing) == (2, ())
