"""The results in the documentation are those of the records that are kept beside them."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

from results import RESULTS, compose
from sigmax.records import Run, read_run
from sigmax.reproduce import load_experiment

NAMES = sorted(folder.name for folder in RESULTS.iterdir())
RUNS = sorted(path.parent for path in RESULTS.glob("*/runs/*/certificates.tsv"))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_results_is_what_its_records_give(name: str) -> None:
    assert (RESULTS / name / "report.md").read_text() == compose(name).text
    for figure in (RESULTS / name / "figures").iterdir():
        assert f"(figures/{figure.name})" in compose(name).text


@pytest.fixture(params=RUNS, ids=[folder.name for folder in RUNS])
def run(request: pytest.FixtureRequest) -> Run:
    return read_run(request.param)


def test_a_record_is_of_the_experiment_it_is_kept_for(run: Run) -> None:
    (folder,) = (path for path in RUNS if path.name == run.name)
    (asked,) = (made for made in load_experiment(folder.parents[1].name).certifications if made.name == run.name)
    assert run.config["search"] == read_back(asked.search.settings())
    assert (run.config["n0"], run.config["n"], run.config["n_wrong"]) == (100, asked.budget.n, asked.budget.n_wrong)
    assert run.table.idx.tolist() == load_experiment(folder.parents[1].name).indices(10_000)
    assert "/" not in (run.note("data") or "/")  # no place of a machine


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


def read_back(settings: dict[str, object]) -> dict[str, object]:
    """As a record has them: a tuple as a list."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
