"""Reports on the published logs and on made-up runs: what the files say, recomputed plainly."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from made_up_runs import OneForAll, OwnSearch, Stripes, make_run, make_series, make_source, make_spec
from sigmax import AscentSearch
from sigmax.data import ArraySource
from sigmax.errors import InvalidInputError, RecordError
from sigmax.report.entries import entries
from sigmax.report.report import Report, compose_report
from sigmax.report.results import (
    accuracy_table,
    best_table,
    chosen_table,
    headlines,
    overview_table,
    scope,
    settings_of,
    settings_table,
)
from sigmax.report.sections import Section, sections
from sigmax.report.tables import Cell, ResultTable
from sigmax.runs import Run, read_runs
from sigmax.search import FixedSigma

COHEN = "cifar10-resnet110-cohen-0.50"
QCRS = "cifar10-resnet110-cohen-0.50-qcrs-per-input-sigma"
ASCENT = AscentSearch(initial=0.25, steps=10)


@pytest.fixture
def runs() -> list[Run]:
    return make_series()


def section_of(*runs: Run) -> Section:
    (section,) = sections(entries(runs))
    return section


def table_of(report: Report, name: str) -> ResultTable:
    return next(table for table in report.tables if table.name == name)


def column(table: ResultTable, name: str) -> list[str]:
    return [row[table.header.index(name)] for row in table.rows]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_report_on_the_published_logs_says_what_plain_code_finds(published_logs: Path, tmp_path: Path) -> None:
    found = list(read_runs([published_logs / f"{name}.tsv" for name in (COHEN, QCRS)]).values())
    report = compose_report(found, title="Logs", notes=["A note."], radii=[0, 0.5, 1], baseline=found[0])
    assert report.write(tmp_path) == tmp_path / "index.html"
    plain = {}
    for run in found:
        with (published_logs / f"{run.name}.tsv").open() as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        right = np.array([row["label"] == row["predict"] for row in rows])
        plain[run.name] = right, np.array([float(row["radius"]) for row in rows])
    for row in read_csv(tmp_path / "tables" / "accuracy.csv"):
        right, radius = plain[row["run"]]
        assert [float(row[r]) for r in ("0", "0.5", "1")] == [(right & (radius >= r)).mean() for r in (0, 0.5, 1)]
        assert float(row["ACR"]) == pytest.approx((right * radius).mean(), rel=1e-12)
    (row,) = read_csv(tmp_path / "tables" / "comparison.csv")
    gain = np.prod(plain[QCRS], axis=0) - np.prod(plain[COHEN], axis=0)
    assert (row["run"], row["baseline"], row["inputs"]) == (QCRS, COHEN, "10000")
    assert (int(row["gained"]), int(row["lost"])) == ((gain > 0).sum(), (gain < 0).sum())
    assert float(row["mean gain"]) == pytest.approx(gain.mean(), rel=1e-9)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# Logs\n\nA note.\n")
    assert "| per-input sigma | 1 | **0.685** | **0.540** | **0.310** | **0.656** |" in text
    for link in re.findall(r"\]\((.*)\)", text):
        assert (tmp_path / link).exists()
    drawn = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"accuracy", "sigma", "gain", "runtime"}
    for name in drawn:
        with Image.open(tmp_path / "figures" / f"{name}.png") as picture:
            assert picture.width >= 700
        pdf = (tmp_path / "figures" / f"{name}.pdf").read_bytes()
        assert b"/FontFile2" in pdf  # TrueType outlines, embedded
        assert b"/Type3" not in pdf


def test_the_best_of_a_method_is_cross_validated_and_its_run_is_named(runs: list[Run]) -> None:
    section = section_of(*runs)
    table = best_table(section, [0.0, 0.6, 0.75, 0.9])
    method = "per-input sigma, bounded ascent"
    assert table.rows[1] == (method, "2", "1.000", "0.750", "0.250", "0.250", "0.650")
    chosen = [cell.more["run"] for cell in table.rows[1] if isinstance(cell, Cell)]
    assert chosen == ["k90", "k10", "k90", "k90", "k10"]
    assert {(1, 6), (0, 2), (1, 2)} <= table.best  # both are the best at 0
    assert (0, 6) not in table.best
    assert chosen_table(section, [0.0, 0.6, 0.75, 0.9]).rows == (
        *(("fixed sigma", "fixed", "0, ACR"), (method, "k90", "0, 0.75, 0.9"), (method, "k10", "0.6, ACR")),
    )
    assert accuracy_table(section, [0.75]).rows == (
        *(("fixed", "0.000", "0.500"), ("k90", "0.250", "0.600"), ("k10", "0.250", "0.650")),
    )


def test_inner_acr_and_intervals_of_the_overview(runs: list[Run]) -> None:
    inner = dict(zip(("fixed", "k90", "k10"), column(overview_table(section_of(*runs)), "inner ACR"), strict=True))
    assert (inner["fixed"], inner["k90"]) == ("-", "0.667 (1)")  # one sigma is 0.5 = 2 sigma0
    alike = overview_table(section_of(make_run("one", [0.6], make_spec(ASCENT), sigma=0.5)))
    assert column(alike, "ACR") == ["0.600"]  # of inputs that are all alike no interval is known
    assert column(alike, "inner ACR") == ["- (1)"]


def test_gains_at_a_radius_and_where_neither_reaches_it() -> None:
    runs = [make_run("one", [0.5, 0.4], make_spec()), make_run("own", [0.6, 0.4], make_spec(ASCENT))]
    gain = table_of(compose_report(runs, radii=[0.25, 0.55, 0.7]), "gain")
    assert gain.rows == (("own", "one", "0.000 (1.000)", "+0.500 (1.000)", "-"),)
    cell = gain.rows[0][3]
    assert isinstance(cell, Cell)
    assert (cell.more["accuracy"], cell.more["baseline_accuracy"]) == (0.5, 0.0)


def test_settings_and_captions_say_how_each_run_was_sampled() -> None:
    specs = [
        make_spec(),
        make_spec(n_wrong=100),
        make_spec(radii=(0.25, 0.5)),
        make_spec(tolerance=0.01),
        make_spec(alpha=0.5),
    ]
    runs = entries([make_run(f"{i}", [0.5], spec) for i, spec in enumerate(specs)])
    samples = column(settings_table(runs), "n")
    assert len(set(samples)) == 4  # the last has only another alpha
    for number, said in zip(("100", "0.25, 0.5", "1 %"), samples[1:], strict=False):
        assert number in said
        assert said in scope(runs)
    assert "alpha = 0.01 or 0.5" in scope(runs)
    assert scope(runs[:1]) == "1 inputs of toy, n = 500, alpha = 0.01, float noise, point certificates"


def test_the_report_begins_with_what_per_input_sigma_gains() -> None:
    runs = [make_run("one", [0.5, 0.4, 0.3], make_spec()), make_run("own", [0.6, 0.5, 0.2], make_spec(ASCENT))]
    report = compose_report(runs)
    (point,) = headlines(sections(report.runs)[0], report.pairs)
    for said in ("ACR 0.400 → 0.433", "2 of 3 gained", "1 lost", "p = 1.000"):
        assert said in point
    assert report.text.index(point) < report.text.index("|")
    page = report.page.decode()
    assert "ACR 0.400\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}0.433" in page  # in one line, also on a telephone
    assert page.index("ACR 0.400") < page.index("data-chart") < page.index('id="each"') < page.index('id="runs"')


def test_the_facts_that_all_tables_share_are_said_once(runs: list[Run]) -> None:
    assert compose_report(runs).text.count("n = 500") == 1


def test_the_acr_of_a_run_at_some_radii_is_marked_wherever_it_stands() -> None:
    specs = [make_spec(radii=(0.25, 0.5)), make_spec(ASCENT, radii=(0.25, 0.5)), make_spec(ASCENT, tolerance=0.1)]
    runs = [make_run(name, [0.5, 0.25], spec) for name, spec in zip(("one", "at", "rest"), specs, strict=True)]
    report = compose_report(runs)
    assert [said.partition(" ")[0] for said in column(table_of(report, "overview"), "ACR")] == [
        *("0.375*", "0.375*", "0.375")
    ]
    assert column(table_of(report, "accuracy"), "ACR") == ["0.375*", "0.375*", "0.375"]
    assert sum(said.endswith("*") for said in column(table_of(report, "best"), "ACR")) == 2
    assert "ACR 0.375* → 0.375*" in report.text.replace("\\", "")


def test_captions_of_comparisons_speak_of_both_sides(runs: list[Run]) -> None:
    ours = table_of(compose_report(runs), "gain").scope
    assert "settled against point certificates" in ours
    logs = [make_run("one", [0.5, 0.4], sigma=0.25), make_run("own", [0.6, 0.4], sigma=[0.2, 0.3])]
    said = "taken to be of one"  # network, which logs do not name
    assert said in table_of(compose_report(logs), "gain").scope
    assert said not in ours


def test_one_s_own_search_and_noise_are_in_every_table_and_figure(tmp_path: Path) -> None:
    noise, sigma = Stripes(height=0.5), [0.2, 0.3]
    runs = [
        make_run("one", [0.4, 0.4], make_spec(OneForAll(), noise=noise)),
        make_run("own", [0.5, 0.6], make_spec(OwnSearch(), noise=noise), sigma=sigma),
    ]
    report = compose_report(runs, source=make_source(runs[0], (1, 6, 6)))
    report.write(tmp_path)
    assert [(pair.run.name, pair.baseline.name) for pair in report.pairs] == [("own", "one")]
    assert column(table_of(report, "overview"), "method") == ["fixed sigma", "per-input sigma, my search"]
    assert column(table_of(report, "overview"), "inner ACR") == ["-", "0.500 (1; baseline 0.400)"]
    settings = table_of(report, "settings")
    assert [said.partition(":")[2].partition(":")[0] for said in column(settings, "search")] == [
        "OneForAll",
        "OwnSearch",
    ]
    assert all("Stripes: height 0.5" in said for said in column(settings, "norm"))
    assert {figure.name for figure in report.figures} == {"accuracy", "sigma", "gain", "runtime", "pictures-own"}


def test_runs_over_other_inputs_or_in_another_norm_have_tables_and_figures_of_their_own(runs: list[Run]) -> None:
    report = compose_report([*runs, make_run("fewer", [0.5] * 3, make_spec())])
    assert {"accuracy-toy-l2", "accuracy-toy-l2-2"} <= {figure.name for figure in report.figures}
    assert column(table_of(report, "overview-toy-l2-2"), "run") == ["fewer"]


def test_a_report_on_runs_with_pictures(runs: list[Run], tmp_path: Path) -> None:
    source = make_source(runs[0], (3, 6, 6), names=("cat", "dog"))
    extra = ResultTable(name="paper", caption="Of the paper.", header=("method", "0"), rows=(("cohen", "0.8"),))
    page = compose_report(runs, source=source, tables=[extra]).write(tmp_path)
    assert "data:image/png;base64," in page.read_text()
    assert "Of the paper." in (tmp_path / "report.md").read_text()
    drawn = {path.stem for path in (tmp_path / "figures").glob("*.pdf")}
    assert drawn == {"accuracy", "steps", "sigma", "gain", "runtime", "pictures-k10"}
    chosen = compose_report(runs, source=source, pictured=[3, 0]).figures[-1]
    titles = [axes.get_title().splitlines()[:2] for axes in chosen.figure.axes[:2]]
    assert titles == [["input 3", "dog"], ["input 0", "cat"]]
    for index, pictures in ((4, source), (3, None)):
        with pytest.raises(InvalidInputError, match="got 4" if index == 4 else "--data"):
            compose_report(runs, source=pictures, pictured=[index])
    wrong = ArraySource("wrong", np.zeros((4, 3, 6, 6), np.uint8), np.ones(4, np.int64), ["cat", "dog"], levels=255)
    with pytest.raises(InvalidInputError, match="wrong"):
        compose_report(runs, source=wrong)


@pytest.mark.parametrize("shape", [(3,), (1, 28), (3, 40)])
def test_signals_are_reported_without_pictures(shape: tuple[int, ...], tmp_path: Path) -> None:
    signals = np.random.default_rng(0).random((2, *shape), dtype=np.float32)
    source = ArraySource("signals", signals, np.array([0, 1]), ["a", "b"], levels=None)
    made = compose_report([make_run("own", [0.5, 0.6], make_spec(ASCENT), sigma=[0.2, 0.3])], source=source)
    assert not [drawing for drawing in made.figures if "pictures" in drawing.name]
    made.write(tmp_path)


def test_a_report_is_the_same_every_time(runs: list[Run], tmp_path: Path) -> None:
    for name in ("a", "b"):
        compose_report(runs[:2]).write(tmp_path / name)
    assert len(files(tmp_path / "a")) > 20
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_of_an_earlier_report_nothing_is_left(runs: list[Run], tmp_path: Path) -> None:
    compose_report(runs).write(tmp_path / "report")
    (tmp_path / "report" / "figures" / "mine.png").touch()
    for name in ("report", "fresh"):
        compose_report(runs[:1]).write(tmp_path / name)
    assert files(tmp_path / "report") == files(tmp_path / "fresh") | {"figures/mine.png": b""}


def test_what_cannot_be_reported_leaves_nothing_behind(
    runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInputError, match="empty"):
        compose_report([*runs, make_run("empty", [], make_spec())])
    with pytest.raises(InvalidInputError):
        compose_report([])
    monkeypatch.setattr("sigmax.report.page.PAGE_BYTES", 1_000)
    with pytest.raises(InvalidInputError, match="1000"):
        compose_report(runs)
    monkeypatch.undo()
    (tmp_path / "report").write_text("a file")
    with pytest.raises(RecordError, match="report"):
        compose_report(runs).write(tmp_path / "report")


def test_runs_of_one_name_are_numbered_the_baseline_too() -> None:
    same = [make_run("fixed", [0.5], make_spec(FixedSigma(sigma))) for sigma in (0.25, 0.5)]
    report = compose_report(same, baseline=same[1])
    assert [run.name for run in report.runs] == ["fixed", "fixed (2)"]
    (pair,) = report.pairs
    assert (pair.run.name, pair.baseline.name) == ("fixed", "fixed (2)")


def test_a_heading_never_shows_a_larger_radius_than_was_proved() -> None:
    """0.29999999 is not shown as 0.3, and two radii that differ keep a column each."""
    radii = [0.29999999, 0.3, 1.0]
    specs = [make_spec(radii=tuple(radii)), make_spec(ASCENT, radii=tuple(radii))]
    report = compose_report([make_run(f"{i}", [0.29999999, 1.0], spec) for i, spec in enumerate(specs)], radii=radii)
    for name in ("accuracy", "best", "gain"):
        header = table_of(report, name).header
        assert [float(cell) for cell in header if cell[0].isdigit()] == radii, name
        assert "1" in header
    assert "0.29999999, 0.3, 1" in table_of(report, "overview").scope


def test_captions_never_show_a_smaller_alpha() -> None:
    assert "alpha = 0.00100000001" in scope(entries([make_run("one", [0.5], make_spec(alpha=0.00100000001))]))


def test_captions_say_whether_noise_was_exact() -> None:
    exact, rounded = make_spec(), make_spec()
    assert exact.found is not None
    exact = replace(exact, found=replace(exact.found, levels=255))
    runs = entries([make_run("one", [0.5], exact), make_run("two", [0.5], rounded)])
    assert "exact noise" in scope(runs[:1])
    assert "float noise" in scope(runs[1:])
    assert "exact and float noise" in scope(runs)
    assert [settings_of(run)["certificates"].rpartition(", ")[2] for run in runs] == ["exact", "float"]


def test_a_backend_other_than_pytorch_is_named_wherever_its_numbers_stand() -> None:
    def report_by(*backends: str) -> Report:
        specs = [make_spec(search, backend=each) for each in backends for search in (FixedSigma(0.25), ASCENT)]
        return compose_report([make_run(f"run {i}", [0.5, 0.6], spec) for i, spec in enumerate(specs)])

    integers, plain, both = report_by("int8 1.2"), report_by("torch 2.1"), report_by("int8 1.2", "torch 2.1")

    def captions(report: Report) -> list[str]:
        return [table.scope for table in report.tables[:-1]] + [drawing.scope for drawing in report.figures]

    assert all("run by int8" in said for said in captions(integers))
    assert all("run by" not in said for said in captions(plain))
    # Where not all runs have it, each row of a run says its own.
    assert column(table_of(both, "accuracy"), "run") == ["run 0, int8", "run 1, int8", "run 2", "run 3"]
    assert sum("int8" in cell for cell in column(table_of(both, "best"), "method")) == 2
    drawn = {drawing.name: drawing.figure for drawing in integers.figures}
    legends = [legend for axes in drawn["accuracy"].axes if (legend := axes.get_legend())]
    assert legends
    assert all("int8" in legend.get_title().get_text() for legend in legends)
    assert "int8" in drawn["sigma"].axes[0].get_title()
    assert "int8" in drawn["runtime"].axes[0].get_title()
    assert '"kind":"settled, float, int8"' in integers.page.decode()
