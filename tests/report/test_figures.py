"""What figures draw, read back from their axes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from made_up_runs import Stripes, make_run, make_series, make_source, make_spec
from sigmax import AscentSearch, GridSearch, HalvingSearch
from sigmax.report.canvas import render
from sigmax.report.entries import entries
from sigmax.report.figures import _bins, draw_accuracy, draw_pictures, draw_sigmas, short_names
from sigmax.report.sections import Section, sections
from sigmax.runs import CertificationSpec, Run
from sigmax.search import FixedSigma

HALVING = HalvingSearch(initial=0.25)


def section_of(*runs: Run) -> Section:
    (section,) = sections(entries(runs))
    return section


def trained(search: AscentSearch | FixedSigma | GridSearch | HalvingSearch, name: str = "cohen") -> CertificationSpec:
    return make_spec(search, trained=name)


def algorithm_1(steps: int) -> AscentSearch:
    return AscentSearch.paper(initial=0.25, steps=steps)


def panels(figure: Figure | SubFigure) -> list[str]:
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert shown[0].get_ylabel() == "certified accuracy"
    return [axes.get_title() for axes in shown]


def test_each_search_has_a_row_beside_the_runs_without_one() -> None:
    runs = [
        make_run("fixed", [0.5, 0.4], trained(FixedSigma(0.25))),
        make_run("k10", [0.6, 0.1], trained(algorithm_1(10))),
        make_run("halving", [0.1, 0.7], trained(HALVING)),
    ]
    figure = draw_accuracy(section_of(*runs))
    assert [part.get_suptitle() for part in figure.subfigs] == ["Algorithm 1", "halving"]
    for part, run in zip(figure.subfigs, runs[1:], strict=True):
        lines = {str(line.get_label()): np.asarray(line.get_xdata()) for line in part.axes[0].get_lines()}
        assert set(lines) == {"cohen", "cohen-ds"}
        assert float(lines["cohen-ds"][-1]) == pytest.approx(float(run.table.radius.max()), abs=0.01)


def test_a_sigma0_that_only_other_searches_have_is_left_out() -> None:
    runs = [make_run(f"fixed-{sigma}", [sigma], trained(FixedSigma(sigma))) for sigma in (0.12, 0.25, 0.5)]
    runs.append(make_run("k10", [0.6], trained(algorithm_1(10))))
    assert len(panels(draw_accuracy(section_of(*runs)))) == 4
    runs.append(make_run("halving", [0.7], trained(HalvingSearch(initial=0.5))))
    assert [panels(row) for row in draw_accuracy(section_of(*runs)).subfigs] == [
        [r"$\sigma_0 = 0.12$", r"$\sigma_0 = 0.25$", "best at each radius"],  # no search has 0.12: one sigma is shown
        [r"$\sigma_0 = 0.12$", r"$\sigma_0 = 0.5$", "best at each radius"],
    ]


def test_logs_without_sigma_are_single_runs() -> None:
    logs = [make_run("log-0", [0.5, 0.2]), make_run("log-1", [0.6, 0.2], sigma=[0.1, 0.2])]
    single, best = draw_accuracy(section_of(*logs)).axes
    assert (single.get_title(), best.get_title()) == ("single runs", "best at each radius")
    for axes in (single, best):
        lines = axes.get_lines()
        assert len({(line.get_color(), str(line.get_linestyle())) for line in lines}) == len(lines) == 2
    assert [line.get_label() for line in single.get_lines()] == ["0", "1"]
    assert draw_accuracy(section_of(logs[0])).axes[0].get_title() == "single runs"


def test_names_that_only_look_like_the_paper_s_have_lines_of_their_own() -> None:
    names = ("resnet", "resnet-ds-a", "resnet-ds-b", "cohen", "cohen-ds")
    runs = [make_run(name, [0.5], trained(FixedSigma(0.25), name)) for name in names]
    lines = draw_accuracy(section_of(*runs)).axes[0].get_lines()
    assert len({(line.get_color(), str(line.get_linestyle())) for line in lines}) == len(names)


def test_names_are_drawn_as_they_are() -> None:
    names = ("bad $x_{$ name", "_hidden", "half $")
    figure = draw_accuracy(section_of(*(make_run(name, [0.5], trained(FixedSigma(0.25), name)) for name in names)))
    assert len(render(figure)["png"]) > 1_000
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} == {r"bad \$x_{\$ name", " _hidden", r"half \$"}
    words = entries([make_run(name, [0.5]) for name in ("net-a-fixed", "net-b-fixed")])
    assert short_names(words) == ["a-fixed", "b-fixed"]


def test_sigmas_name_their_search_and_say_where_there_is_no_baseline() -> None:
    runs = [
        make_run("own", [0.6], trained(algorithm_1(1000)), sigma=0.3),
        make_run("halving", [0.7], trained(HalvingSearch(initial=0.5)), sigma=0.3),
    ]
    figure = draw_sigmas(entries(runs), [])
    assert [axes.get_title() for axes in figure.axes] == [
        "cohen-ds, Algorithm 1\n$\\sigma_0 = 0.25$, $K$ = 1,000",
        "cohen-ds, halving\n$\\sigma_0 = 0.5$",
    ]
    assert figure.axes[0].get_legend_handles_labels()[1] == ["no baseline (1)"]


@given(
    sigmas=st.lists(st.floats(0.01, 2.0), min_size=1, max_size=20),
    initial=st.none() | st.floats(0.01, 2.0),
)
def test_bins_hold_every_sigma_and_have_sigma0_in_the_middle_of_one(sigmas: list[float], initial: float | None) -> None:
    edges = _bins(np.array(sigmas), initial)
    assert np.histogram(sigmas, edges)[0].sum() == len(sigmas)
    if initial is not None and min(sigmas) <= initial <= max(sigmas):
        assert np.abs(edges - initial).min() == pytest.approx((edges[1] - edges[0]) / 2)


def drawn(figure: Figure, levels: int = 3) -> list[list[NDArray[np.float64]]]:
    """The pictures of each column, from clean to the last level of noise."""
    images = [[child for child in axes.get_children() if isinstance(child, AxesImage)] for axes in figure.axes]
    arrays = [np.asarray(found[0].get_array(), dtype=np.float64) for found in images]
    columns = len(figure.axes) // levels
    return [arrays[column::columns] for column in range(columns)]


def test_pictures_are_under_the_noise_of_the_run() -> None:
    """One's own noise too: here a constant, which no other noise is."""
    sigma = [0.2, 0.3]
    run = make_run("own", [0.5, 0.6], make_spec(HALVING, noise=Stripes(height=0.5)), sigma=sigma)
    source = make_source(run, (1, 6, 6))
    (made,) = entries([run])
    for index, (clean, initial, own) in enumerate(drawn(draw_pictures(made, source, None, [0, 1]))):
        assert np.allclose(clean, source.images([index])[0, 0])
        assert np.allclose(initial, (clean + 0.5 * 0.25).clip(0, 1), atol=1e-6)
        assert np.allclose(own, (clean + 0.5 * sigma[index]).clip(0, 1), atol=1e-6)
    log = make_run("log", [0.5, 0.6], sigma=sigma, norm=1)  # whose noise is the usual one of its norm
    (made,) = entries([log])
    columns = drawn(draw_pictures(made, source, None, [0, 1]), levels=2)
    assert all(np.abs(own - clean).max() <= sigma[i] + 1e-6 for i, (clean, own) in enumerate(columns))


def test_figures_are_as_wide_as_a_column_or_both() -> None:
    section = section_of(*make_series())
    figures = draw_accuracy(section), draw_sigmas(section.runs[1:], []), draw_sigmas(section.runs[1:2], [])
    assert [float(figure.get_size_inches()[0]) for figure in figures] == [3.25, 6.75, 3.25]
