"""Reports on the published logs and on made-up runs: what the files say, recomputed plainly."""

import csv
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure, SubFigure
from PIL import Image

from sigmax import AscentSearch, HalvingSearch, PointCertificate, SettledCertificate
from sigmax.data import ArraySource
from sigmax.errors import InvalidInputError, RecordError
from sigmax.records import Run, RunFolder, format_row, read_run
from sigmax.report.canvas import render
from sigmax.report.figures import _bins, draw_accuracy, draw_sigmas, short_names
from sigmax.report.grouping import (
    by_steps,
    initial_sigma,
    is_per_input,
    method_of,
    pairs,
    read_runs,
    search_name,
    sections,
    upper_bound,
    with_distinct_names,
)
from sigmax.report.metrics import compare_tables, gain_interval
from sigmax.report.report import compose_report, write_report
from sigmax.report.results import accuracy_table, best_table, chosen_table, overview_table, scope, settings_table
from sigmax.report.tables import ResultTable, to_csv, to_latex, to_markdown

COHEN = "cifar10-resnet110-cohen-0.50"
QCRS = "cifar10-resnet110-cohen-0.50-qcrs-per-input-sigma"


def make_run(
    folder: Path,
    radii: list[float],
    *,
    search: dict[str, Any],
    norm: int = 2,
    sigmas: list[float] | None = None,
    fingerprint: str = "net",
    n: int = 500,
    n_wrong: int | None = None,
    more: dict[str, Any] | None = None,
    **notes: str,
) -> Run:
    """A run of made-up answers, all of them right, to inputs 0, 1, … with labels 0, 1, 0, …"""
    config = {"search": search, "n0": 10, "n": n, "n_wrong": n_wrong, "alpha": 0.01, "seed": 7, **(more or {})}
    is_settled = search["kind"] != "FixedSigma"
    with RunFolder(folder, {**config, "fingerprint": fingerprint, "notes": notes}) as run:
        for i, radius in enumerate(radii):
            sigma = sigmas[i] if sigmas else search["initial"]
            point = PointCertificate(label=i % 2, radius=radius, sigma=sigma, p_lower=0.9, n=n, alpha=0.01, norm=norm)
            settled = SettledCertificate(label=i % 2, radius=radius, sigma=sigma, point=point, rule="kept")
            run.append(format_row(i, i % 2, point, settled if is_settled else None, 0.5))
    return read_run(folder)


def fixed(sigma: float) -> dict[str, Any]:
    return {"kind": "FixedSigma", "initial": sigma, "fixes_class": False}


def ascent(sigma: float, steps: int, bounds: tuple[float, float] | None = None) -> dict[str, Any]:
    return {"kind": "AscentSearch", "initial": sigma, "steps": steps, "bounds": bounds, "fixes_class": True}


def algorithm_1(sigma: float, steps: int) -> dict[str, Any]:
    return ascent(sigma, steps, (-math.inf, math.inf)) | {"fixes_class": False}


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    """One model at sigma 0.25: fixed, and with K = 10 and K = 90."""
    sigmas = [0.2, 0.3, 0.5, 0.4]
    return [
        make_run(tmp_path / "fixed", [0.5, 0.5, 0.5, 0.5], search=fixed(0.25), data="toy"),
        make_run(tmp_path / "k90", [0.6, 0.9, 0.4, 0.5], search=ascent(0.25, 90), sigmas=sigmas, data="toy"),
        make_run(tmp_path / "k10", [0.6, 0.7, 0.8, 0.5], search=ascent(0.25, 10), sigmas=sigmas, data="toy"),
    ]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def check_latex(text: str, *, rows: int) -> None:
    """Balanced, with the three rules of booktabs and the same number of cells in every row."""
    opened = re.findall(r"\\begin\{(\w+)\}", text)
    assert opened == ["table", "tabular"]
    assert re.findall(r"\\end\{(\w+)\}", text) == opened[::-1]
    unescaped = re.sub(r"\\[{}$&_%#]", "", text)
    assert unescaped.count("{") == unescaped.count("}")
    assert unescaped.count("$") % 2 == 0
    assert [text.count(rf"\{rule}rule") for rule in ("top", "mid", "bottom")] == [1, 1, 1]
    match = re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)
    assert match
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(lines) == rows + 1
    assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines} == {len(match[1])}


def test_the_report_on_the_published_logs_says_what_plain_code_finds(published_logs: Path, tmp_path: Path) -> None:
    found = list(read_runs([published_logs / f"{name}.tsv" for name in (COHEN, QCRS)]).values())
    opened = write_report(
        found, tmp_path, title="Logs", notes=["All of the test set."], radii=[0, 0.5, 1], baseline=found[0]
    )
    plain = {}
    for run in found:
        with (published_logs / f"{run.name}.tsv").open() as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        right = np.array([row["label"] == row["predict"] for row in rows])
        plain[run.name] = right, np.array([float(row["radius"]) for row in rows])
    for row in read_csv(tmp_path / "tables" / "accuracy.csv"):
        right, radius = plain[row["run"]]
        assert [float(row[r]) for r in ("0", "0.5", "1")] == [(right & (radius >= r)).mean() for r in (0, 0.5, 1)]
        assert float(row["acr"]) == pytest.approx((right * radius).mean(), rel=1e-12)
    (row,) = read_csv(tmp_path / "tables" / "comparison.csv")
    gain = np.prod(plain[QCRS], axis=0) - np.prod(plain[COHEN], axis=0)
    assert (row["run"], row["baseline"], row["inputs"]) == (QCRS, COHEN, "10000")
    assert (int(row["gained"]), int(row["lost"])) == ((gain > 0).sum(), (gain < 0).sum())
    assert float(row["mean_gain"]) == pytest.approx(gain.mean(), rel=1e-9)
    assert opened == tmp_path / "index.html"
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# Logs\n\nAll of the test set.\n")
    assert "10,000 inputs, n = not recorded, point certificates" in text
    assert "| per-input sigma | 1 | **0.685** | **0.540** | **0.310** | **0.656** |" in text
    for link in re.findall(r"\]\((.*)\)", text):
        assert (tmp_path / link).exists()
    for path in (tmp_path / "tables").glob("*.tex"):
        check_latex(path.read_text(), rows=len(path.with_suffix(".md").read_text().splitlines()) - 2)
    drawn = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"accuracy", "sigma", "gain", "runtime"}
    for name in drawn:
        with Image.open(tmp_path / "figures" / f"{name}.png") as picture:
            assert picture.width >= 700
        pdf = (tmp_path / "figures" / f"{name}.pdf").read_bytes()
        assert b"/FontFile2" in pdf  # TrueType outlines, embedded
        assert b"/Type3" not in pdf


def test_runs_are_paired_grouped_and_ordered_by_their_records(runs: list[Run], tmp_path: Path) -> None:
    assert [(pair.run.name, pair.baseline.name) for pair in pairs(runs)] == [("k90", "fixed"), ("k10", "fixed")]
    assert [[run.name for run in series] for series in by_steps(runs)] == [["k10", "k90"]]
    ascended = "per-input sigma, bounded ascent"
    assert [method_of(run) for run in runs] == ["fixed sigma", ascended, ascended]
    other_model = make_run(tmp_path / "other", [0.5], search=ascent(0.25, 10), fingerprint="another")
    other_sigma = make_run(tmp_path / "sigma", [0.5], search=ascent(0.5, 10))
    other_n = make_run(tmp_path / "n", [0.5], search=ascent(0.25, 10), n=9)
    other_wrong = make_run(tmp_path / "n_wrong", [0.5], search=ascent(0.25, 10), n_wrong=9)
    assert len(pairs([*runs, other_model, other_sigma, other_n, other_wrong])) == 2
    assert len(pairs([*runs, other_model], named=runs[0])) == 3
    other_fixed = make_run(tmp_path / "half", [0.5], search=fixed(0.5))
    against = pairs([*runs, other_fixed], named=runs[1])
    assert [(pair.run.name, pair.baseline.name) for pair in against] == [
        ("fixed", "k90"),
        ("k10", "k90"),
        ("half", "k90"),
    ]
    named = make_run(tmp_path / "named", [0.5], search=fixed(0.25), method="cohen")
    assert method_of(named) == "cohen"


def test_a_run_is_compared_with_the_baseline_that_shares_most_of_its_inputs(tmp_path: Path) -> None:
    stopped = make_run(tmp_path / "a", [0.5], search=fixed(0.25))
    whole = make_run(tmp_path / "b", [0.5, 0.5, 0.5], search=fixed(0.25))
    reseeded = make_run(tmp_path / "c", [0.5, 0.5, 0.5], search=fixed(0.25), more={"seed": 8})
    own = make_run(tmp_path / "own", [0.6, 0.6, 0.6], search=ascent(0.25, 10))
    assert [pair.baseline.name for pair in pairs([stopped, reseeded, whole, own])] == ["b"]


def test_a_search_is_called_what_it_is(tmp_path: Path) -> None:
    searches = {
        "Algorithm 1": AscentSearch.paper(initial=0.25),
        "bounded ascent": AscentSearch(initial=0.25),
        "bounded ascent, class free": AscentSearch(initial=0.25, fixes_class=False, pilot=0),
        "unbounded ascent": AscentSearch(initial=0.25, bounds=(-math.inf, math.inf)),
    }
    for i, (name, search) in enumerate(searches.items()):
        assert search_name(make_run(tmp_path / str(i), [0.5], search=search.settings())) == name


def test_the_best_of_two_seeds_selections_or_searches_is_neither(tmp_path: Path) -> None:
    def families(*runs: Run) -> list[str]:
        (section,) = sections(runs)
        return list(section.families.values())

    one, other, *_ = (
        make_run(tmp_path / f"seed {seed}", [0.5], search=fixed(0.25), more={"seed": seed}) for seed in (1, 2)
    )
    assert families(one, other) == ["fixed sigma, n0 = 10, seed 1", "fixed sigma, n0 = 10, seed 2"]
    few, many = (HalvingSearch(initial=0.25, samples=samples).settings() for samples in (16, 64))
    runs = [make_run(tmp_path / str(i), [0.5], search=search) for i, search in enumerate((few, many))]
    assert [name.rpartition(", ")[2] for name in families(*runs)] == ["samples 16", "samples 64"]


def test_per_input_runs_without_others_of_their_training_are_drawn(tmp_path: Path) -> None:
    alone = make_run(tmp_path / "alone", [0.5, 0.7], search=ascent(0.25, 10), method="cohen-ds")
    partly = make_run(tmp_path / "partly", [0.5], search=fixed(0.25), method="cohen")
    write_report([alone, partly], tmp_path / "report")  # a run that was interrupted has inputs of its own
    assert len(list((tmp_path / "report" / "figures").glob("accuracy*.png"))) == 2


def test_captions_say_how_each_run_was_sampled(tmp_path: Path) -> None:
    plain = make_run(tmp_path / "plain", [0.5], search=fixed(0.25), n=1_000)
    fewer = make_run(tmp_path / "fewer", [0.5], search=fixed(0.25), n=1_000, n_wrong=100)
    said = "1 inputs, n = 1,000 or 1,000 (100 where the selected class is wrong), alpha = 0.01, point certificates"
    assert scope([plain, fewer, plain]) == said
    settings = settings_table([plain, fewer])
    column = settings.header.index("n")
    assert [row[column] for row in settings.rows] == ["1,000", "1,000 (100 where the selected class is wrong)"]


def test_bounds_of_every_search(tmp_path: Path) -> None:
    searches = {
        "default": (ascent(0.25, 10), 0.5),
        "own": (ascent(0.25, 10, (0.1, 0.3)), 0.3),
        "paper": (algorithm_1(0.25, 10), None),
        "grid": ({"kind": "GridSearch", "initial": 0.25, "upper": 1.0}, 1.0),
        "fixed": (fixed(0.25), None),
    }
    for name, (search, upper) in searches.items():
        run = make_run(tmp_path / name, [0.5], search=search)
        assert (upper_bound(run), initial_sigma(run)) == (upper, 0.25)
    log = tmp_path / "log.tsv"
    log.write_text("idx\tlabel\tpredict\tradius\n0\t1\t1\t0.5\n")
    assert (upper_bound(read_run(log)), initial_sigma(read_run(log))) == (None, None)


def test_runs_over_other_inputs_or_in_another_norm_have_tables_of_their_own(runs: list[Run], tmp_path: Path) -> None:
    l1 = make_run(tmp_path / "l1", [0.5] * 4, search=fixed(0.25), norm=1, data="toy")
    fewer = make_run(tmp_path / "fewer", [0.5] * 3, search=fixed(0.25), data="toy")
    parts = sections([*runs, l1, fewer])
    assert [(part.name, len(part.runs)) for part in parts] == [("toy-l2", 3), ("toy-l1", 1), ("toy-l2-2", 1)]
    report = compose_report([*runs, l1, fewer])
    assert {"accuracy-toy-l2", "accuracy-toy-l1", "accuracy-toy-l2-2"} <= {figure.name for figure in report.figures}
    labels = {figure.name: figure.figure.axes[0].get_xlabel() for figure in report.figures}
    assert r"\ell_1" in labels["accuracy-toy-l1"]
    assert r"\ell_2" in labels["accuracy-toy-l2"]


def test_the_best_of_a_method_is_cross_validated_and_its_run_is_named(runs: list[Run]) -> None:
    (section,) = sections(runs)
    table = best_table(section, [0.0, 0.6, 0.75, 0.9])
    method = "per-input sigma, bounded ascent"
    assert table.rows[1] == (method, "2", "1.000", "0.750", "0.250", "0.250", "0.650")
    chosen = {(row["radius"], row["run"]) for row in table.records if row["method"] == method}
    assert chosen == {(0.0, "k90"), (0.6, "k10"), (0.75, "k90"), (0.9, "k90"), (None, "k10")}
    assert (1, 6) in table.best
    assert (0, 6) not in table.best
    assert (0, 2) in table.best  # both are the best at 0
    assert accuracy_table(section, [0.75]).rows == (
        *(("fixed", "0.000", "0.500"), ("k90", "0.250", "0.600"), ("k10", "0.250", "0.650")),
    )


def test_a_report_on_runs_with_pictures(runs: list[Run], tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (4, 3, 6, 6), dtype=np.uint8)
    source = ArraySource("toy", images, np.array([0, 1, 0, 1]), ["cat", "dog"], levels=255)
    extra = ResultTable(name="paper", caption="Of the paper.", header=("method", "0"), rows=(("cohen", "0.8"),))
    out = tmp_path / "report"
    page = write_report(runs, out, source=source, tables=[extra])
    assert "data:image/png;base64," in page.read_text()
    text = (out / "report.md").read_text()
    assert "## Further tables\n\nOf the paper." in text
    search = "AscentSearch: bounds sigma0 / 4 to 2 sigma0, fixes_class True, steps 90"
    settings = f"toy | 4 | l2 | 0.25 | {search} | 10 | 500 | 0.01 | 7 |"
    assert f"| k90 | settled | - | - | {settings}" in text
    assert "4 inputs of toy, n = 500, alpha = 0.01, point and settled certificates" in text
    drawn = {path.stem for path in (out / "figures").glob("*.pdf")}
    assert drawn == {"accuracy", "steps", "sigma", "gain", "runtime", "pictures-k10"}
    (row,) = [row for row in read_csv(out / "tables" / "overview.csv") if row["run"] == "k90"]
    assert row["at_bound"] == "1"  # 0.5 = 2 sigma0
    assert float(row["acr_inside"]) == pytest.approx(2 / 3)
    chosen = compose_report(runs, source=source, pictured=[3, 0]).figures[-1]
    titles = [axes.get_title().splitlines()[:2] for axes in chosen.figure.axes[:2]]
    assert titles == [["input 3", "dog"], ["input 0", "cat"]]
    for index, pictures in ((4, source), (3, None)):
        with pytest.raises(InvalidInputError, match="got 4" if index == 4 else "name it by --data"):
            compose_report(runs, source=pictures, pictured=[index])
    wrong = ArraySource("wrong", images, np.array([1, 1, 1, 1]), ["cat", "dog"], levels=255)
    with pytest.raises(InvalidInputError, match="data set of the runs, got wrong"):
        compose_report(runs, source=wrong)


def test_a_report_is_the_same_every_time(runs: list[Run], tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(runs[:2], tmp_path / name)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) > 20
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)


def test_what_cannot_be_reported_leaves_nothing_behind(runs: list[Run], tmp_path: Path) -> None:
    out = tmp_path / "report"
    empty = make_run(tmp_path / "empty", [], search=fixed(0.25))
    with pytest.raises(InvalidInputError, match="empty table empty"):
        write_report([*runs, empty], out)
    with pytest.raises(InvalidInputError, match="at least one run"):
        write_report([], out)
    assert not out.exists()
    out.write_text("a file")
    with pytest.raises(RecordError, match="expected to write the report"):
        write_report(runs, out)


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for sigma in (0.25, 0.5):
        make_run(tmp_path / "runs" / f"{sigma}" / "fixed", [0.5], search=fixed(sigma))
    found = list(read_runs([tmp_path / "runs"]).values())
    assert [run.name for run in found] == ["0.25/fixed", "0.5/fixed"]
    unnamed = [read_run(tmp_path / "runs" / f"{sigma}" / "fixed") for sigma in (0.25, 0.5)]
    assert [run.name for run in compose_report(unnamed).runs] == ["fixed", "fixed (2)"]
    assert short_names(found) == ["0.25/fixed", "0.5/fixed"]
    (pair,) = compose_report(unnamed, baseline=unnamed[1]).pairs
    assert (pair.run.name, pair.baseline.name) == ("fixed", "fixed (2)")


def test_of_an_earlier_report_nothing_is_left(runs: list[Run], tmp_path: Path) -> None:
    def files(folder: Path) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob("*.*")}

    write_report(runs, tmp_path / "report")
    (tmp_path / "report" / "figures" / "mine.png").touch()
    write_report(runs[:1], tmp_path / "report")
    write_report(runs[:1], tmp_path / "fresh")
    assert files(tmp_path / "report") == files(tmp_path / "fresh") | {"figures/mine.png"}


def test_logs_that_do_not_say_their_sigma_are_not_taken_for_one_sigma(tmp_path: Path) -> None:
    rows = "idx label predict radius correct\n0 1 1 0.5 1\n1 0 0 0.25 1\n"
    logs = {}
    for name in ("macer", "qcrs"):
        (tmp_path / f"{name}.tsv").write_text(rows.replace(" ", "\t"))
        logs[name] = read_run(tmp_path / f"{name}.tsv")
    (tmp_path / "own.tsv").write_text(
        "idx\tlabel\tpredict\tradius\tcorrect\tsigma\n0\t1\t1\t0.6\t1\t0.2\n1\t0\t0\t0.3\t1\t0.3\n"
    )
    own = read_run(tmp_path / "own.tsv")
    assert is_per_input(own)
    assert [is_per_input(run) for run in logs.values()] == [None, None]
    (section,) = sections(list(logs.values()))
    assert list(section.methods) == ["macer", "qcrs"]
    assert [pair.baseline.name for pair in pairs([own, logs["qcrs"]])] == ["qcrs"]  # the only one there is
    assert pairs([own, *logs.values()]) == []
    assert pairs([logs["macer"], logs["qcrs"]], named=logs["macer"])


def test_captions_of_comparisons_speak_of_both_sides(runs: list[Run]) -> None:
    tables = {table.name: table for table in compose_report(runs).tables}
    assert "settled certificates; baselines: " in tables["comparison"].caption
    assert "point certificates" in tables["gain"].caption
    assert "not corrected for the number of tests" in tables["gain"].caption
    assert "taken to be of one" not in tables["gain"].caption


def test_logs_that_are_compared_are_said_to_be_taken_for_logs_of_one_network(tmp_path: Path) -> None:
    for name, sigmas in (("one", (0.25, 0.25)), ("own", (0.2, 0.3))):
        rows = [f"{i}\t1\t1\t0.{5 + i}\t{sigma}" for i, sigma in enumerate(sigmas)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["idx\tlabel\tpredict\tradius\tsigma", *rows, ""]))
    tables = {t.name: t for t in compose_report([read_run(tmp_path / f"{n}.tsv") for n in ("one", "own")]).tables}
    for name in ("comparison", "gain"):
        assert "logs that do not say their network are taken to be of one" in tables[name].caption


def test_the_mean_gain_has_an_interval_of_its_own(tmp_path: Path) -> None:
    """Many small losses and a few large gains: the sign test and the mean say different things."""
    one = make_run(tmp_path / "one", [0.5] * 40, search=fixed(0.25))
    own = make_run(tmp_path / "own", [0.49] * 30 + [1.5] * 10, search=ascent(0.25, 10), sigmas=[0.3] * 40)
    found = compare_tables(own.table, one.table)
    gains = np.array([-0.01] * 30 + [1.0] * 10)
    draw = np.random.default_rng(1)
    means = draw.choice(gains, size=(20_000, 40)).mean(axis=1)
    assert found.mean_gain == pytest.approx(gains.mean())
    low, high = gain_interval(own.table, one.table)
    assert low == pytest.approx(np.quantile(means, 0.025), abs=0.0253)  # one input
    assert high == pytest.approx(np.quantile(means, 0.975), abs=0.0253)
    assert low > 0
    assert (found.gained, found.lost) == (10, 30)
    comparison = next(table for table in compose_report([one, own]).tables if table.name == "comparison")
    assert comparison.rows[0][6].startswith("+0.24")


def test_a_run_that_the_named_baseline_does_not_fit_is_in_no_pair(runs: list[Run], tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", [0.5] * 4, search=fixed(0.25), norm=1)
    assert pairs([*runs, other], named=other) == []
    assert len(pairs([*runs, other])) == 2


def test_a_run_that_certifies_nothing_at_a_radius_is_not_called_its_best(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(s), [0.1 + s], search=fixed(s)) for s in (0.25, 0.5)]
    rows = chosen_table(sections(runs)[0], [0.0, 0.5, 2.0]).rows
    assert rows == (("fixed sigma", "0.25", "0"), ("fixed sigma", "0.5", "0.5, ACR"))


def test_a_search_of_one_s_own_may_call_its_settings_as_it_likes(tmp_path: Path) -> None:
    odd = {"kind": "MySearch", "initial": 0.25, "bounds": "wide", "steps": "many", "samples": "some", "upper": None}
    runs = [make_run(tmp_path / "own", [0.5, 0.6], search=odd, sigmas=[0.2, 0.3])]
    write_report(runs, tmp_path / "report")
    assert "MySearch: bounds wide, samples some, steps many" in (tmp_path / "report" / "report.md").read_text()


def test_names_that_only_look_like_the_paper_s_have_lines_of_their_own(tmp_path: Path) -> None:
    names = ("resnet", "resnet-ds-a", "resnet-ds-b", "cohen", "cohen-ds")
    runs = [make_run(tmp_path / name, [0.5], search=fixed(0.25), method=name) for name in names]
    lines = draw_accuracy(sections(runs)[0]).axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(names)
    colour = {line.get_label(): line.get_color() for line in lines}
    assert colour["cohen"] == colour["cohen-ds"]


def test_tables_in_every_format_survive_awkward_cells() -> None:
    table = ResultTable(
        name="odd",
        caption="50 % of a_b & {c} at sigma0, sigma* and l2, n = 5",
        header=("run", "p"),
        rows=(
            *(("a|b_c*", "<0.001"), ("l2-sigma-l1", "0.1"), ("x & y", "-0.5 (<0.001)"), ("#1 ~ ^ \\", "-")),
            *(("[5pt] a", "0.1 [0.0, 0.2]"), ("_b_ <i>\n[c](d)", "1")),
        ),
        best=frozenset({(2, 1)}),
    )
    check_latex(to_latex(table), rows=6)
    assert "    {}[5pt] a & 0.1 [0.0, 0.2]" in to_latex(table)  # else an option of the rule or line above
    assert "| [5pt] a | 0.1 [0.0, 0.2] |" in to_markdown(table)
    assert r"| \_b\_ \<i> [c\](d) | 1 |" in to_markdown(table)
    latex = to_latex(table)
    assert r"50 \% of a\_b \& \{c\} at $\sigma_0$, $\sigma^*$ and $\ell_2$, $n$ = 5" in latex
    assert "    l2-sigma-l1 & 0.1" in latex  # a name stays as it is
    assert r"\textbf{$-$0.5 ($<$0.001)}" in latex
    assert r"a\|b_c\* | <0.001 |" in to_markdown(table)
    assert "**-0.5 (<0.001)**" in to_markdown(table)
    assert list(csv.reader(to_csv(table).splitlines(keepends=True))) == [list(table.header), *map(list, table.rows)]
    exact = ResultTable(name="t", caption="", header=("a",), rows=(("0.333",),), records=({"a": 1 / 3, "b": None},))
    assert to_csv(exact) == f"a,b\n{1 / 3!r},\n"


def test_the_figures_are_sized_for_two_columns(runs: list[Run]) -> None:
    figures = compose_report(runs).figures
    assert {figure.figure.get_size_inches()[0] for figure in figures} <= {3.25, 6.75}
    assert set(render(figures[0].figure)) == {"png", "pdf"}


def test_runs_on_other_data_are_never_compared(tmp_path: Path) -> None:
    """The same places and labels, but corrupted images, say."""
    plain = make_run(tmp_path / "plain", [0.5, 0.4], search=fixed(0.25), more={"data": "clean"})
    own = make_run(tmp_path / "own", [0.6, 0.5], search=ascent(0.25, 10), more={"data": "corrupted"})
    assert pairs([plain, own]) == pairs([plain, own], named=plain) == []
    page = write_report([plain, own], tmp_path / "report").read_text()
    assert page.count('class="curves"') == 2


def test_the_best_of_two_searches_is_neither(tmp_path: Path) -> None:
    halving = {"kind": "HalvingSearch", "initial": 0.25, "bounds": None}
    runs = [
        make_run(tmp_path / "fixed", [0.5, 0.4], search=fixed(0.25), method="cohen"),
        make_run(tmp_path / "k10", [0.6, 0.1], search=algorithm_1(0.25, 10), method="cohen-ds"),
        make_run(tmp_path / "halving", [0.1, 0.6], search=halving, method="cohen-ds"),
    ]
    (section,) = sections(runs)
    assert [row[:2] for row in best_table(section, [0.5]).rows] == [
        ("cohen", "1"),
        ("cohen-ds, Algorithm 1", "1"),
        ("cohen-ds, halving", "1"),
    ]
    figure = draw_accuracy(section)
    assert [part.get_suptitle() for part in figure.subfigs] == ["Algorithm 1", "halving"]
    for part, run in zip(figure.subfigs, runs[1:], strict=True):
        lines = {line.get_label(): line for line in part.axes[0].get_lines()}
        assert set(lines) == {"cohen", "cohen-ds"}
        (end,) = {float(lines["cohen-ds"].get_xdata()[-1])}  # type: ignore[index, arg-type]
        assert end == pytest.approx(float(run.table.radius.max()), abs=0.01)


def test_a_radius_that_neither_reaches_has_no_gain_and_no_p(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "one", [0.5, 0.4], search=fixed(0.25), method="cohen"),
        make_run(tmp_path / "own", [0.6, 0.4], search=algorithm_1(0.25, 10), method="cohen-ds"),
    ]
    gain = next(table for table in compose_report(runs, radii=[0.25, 0.55, 0.7]).tables if table.name == "gain")
    assert gain.rows[0][2:] == ("0.000 (1.000)", "+0.500 (1.000)", "-")


@given(
    sigmas=st.lists(st.floats(0.01, 2.0), min_size=1, max_size=20),
    initial=st.none() | st.floats(0.01, 2.0),
)
def test_bins_hold_every_sigma_and_have_sigma0_in_the_middle_of_one(sigmas: list[float], initial: float | None) -> None:
    edges = _bins(np.array(sigmas), initial)
    assert np.histogram(sigmas, edges)[0].sum() == len(sigmas)
    if initial is not None and min(sigmas) <= initial <= max(sigmas):
        assert np.abs(edges - initial).min() == pytest.approx((edges[1] - edges[0]) / 2)


def test_only_bounds_that_are_known_are_said(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / kind, [0.6], search={"kind": kind, "initial": 0.25, "bounds": None})
        for kind in ("HalvingSearch", "OwnSearch")
    ]
    column = settings_table(runs).header.index("search")
    assert [row[column] for row in settings_table(runs).rows] == [
        "HalvingSearch: bounds sigma0 / 4 to 2 sigma0",
        "OwnSearch",
    ]


def test_the_steps_of_an_ascent_are_in_its_titles(tmp_path: Path) -> None:
    halving = {"kind": "HalvingSearch", "initial": 0.5, "bounds": None}
    runs = [
        make_run(tmp_path / "own", [0.6], search=algorithm_1(0.25, 1000), method="cohen-ds", sigmas=[0.3]),
        make_run(tmp_path / "halving", [0.7], search=halving, method="cohen-ds", sigmas=[0.3]),
    ]
    assert [axes.get_title() for axes in draw_sigmas(runs, []).axes] == [
        "cohen-ds, Algorithm 1\n$\\sigma_0 = 0.25$, $K$ = 1,000",
        "cohen-ds, halving\n$\\sigma_0 = 0.5$",
    ]


def test_a_panel_that_only_other_searches_have_a_run_for_is_left_out(tmp_path: Path) -> None:
    halving = {"kind": "HalvingSearch", "initial": 0.5, "bounds": None}
    runs = [make_run(tmp_path / f"fixed-{sigma}", [sigma], search=fixed(sigma)) for sigma in (0.12, 0.25, 0.5)]
    runs.append(make_run(tmp_path / "k10", [0.6], search=algorithm_1(0.25, 10), method="cohen-ds"))
    runs.append(make_run(tmp_path / "halving", [0.7], search=halving, method="cohen-ds"))

    def panels(figure: Figure | SubFigure) -> list[str]:
        shown = [axes for axes in figure.axes if axes.get_visible()]
        assert shown[0].get_ylabel() == "certified accuracy"
        return [axes.get_title() for axes in shown]

    (section,) = sections(runs)
    assert [panels(row) for row in draw_accuracy(section).subfigs] == [
        [r"$\sigma_0 = 0.12$", r"$\sigma_0 = 0.25$", "best at each radius"],  # no search has 0.12: one sigma is shown
        [r"$\sigma_0 = 0.12$", r"$\sigma_0 = 0.5$", "best at each radius"],
    ]
    (section,) = sections(runs[:4])
    assert len(panels(draw_accuracy(section))) == 4


def test_the_best_of_two_networks_engines_or_samplings_is_neither(tmp_path: Path) -> None:
    def methods(*runs: Run) -> list[str]:
        (section,) = sections(runs)
        labels = {line.get_label() for line in draw_accuracy(section).axes[0].get_lines()}
        assert labels == {name.removesuffix(", grid") for name in section.methods}
        return list(section.methods)

    one = make_run(tmp_path / "one", [0.5], search=fixed(0.25), model="a.pt")
    assert methods(one, make_run(tmp_path / "other", [0.4], search=fixed(0.25), model="b.pt")) == [
        "fixed sigma, a.pt",
        "fixed sigma, b.pt",
    ]
    higher = make_run(tmp_path / "higher", [0.4], search=fixed(0.5), model="b.pt")
    (section,) = sections([one, higher])
    assert list(section.methods) == ["fixed sigma"]  # as the paper, which has a network for each sigma
    assert methods(one, make_run(tmp_path / "loose", [0.9], search=fixed(0.25), more={"alpha": 0.5}, model="a.pt")) == [
        "fixed sigma, n = 500, alpha = 0.01",
        "fixed sigma, n = 500, alpha = 0.5",
    ]
    assert "alpha = 0.01 or 0.5" in scope([one, read_run(tmp_path / "loose")])
    engines = [
        make_run(tmp_path / name, [0.5], search=fixed(0.25), model="a.pt", engine=name)
        for name in ("torch", "integers")
    ]
    engines.append(make_run(tmp_path / "more", [0.5], search=fixed(0.5), model="c.pt", engine="integers"))
    assert methods(*engines) == ["fixed sigma, torch", "fixed sigma, integers"]
    (section,) = sections(engines[::2])
    assert list(section.methods) == ["fixed sigma, torch", "fixed sigma, integers"]  # also at different sigma0
    column = settings_table(engines).header.index("engine")
    assert [row[column] for row in settings_table(engines).rows] == ["torch", "integers", "integers"]


def test_searches_with_other_draws_are_other_searches(tmp_path: Path) -> None:
    def grid(draws: int) -> dict[str, Any]:
        return {"kind": "GridSearch", "initial": 0.25, "upper": 1.0, "samples": draws}

    runs = [make_run(tmp_path / f"n{n}", [0.1 * n], search=grid(n), method="cohen-ds") for n in (1, 2, 4)]
    (section,) = sections(runs)
    assert list(section.methods) == ["cohen-ds, grid", "cohen-ds, grid, 2 draws", "cohen-ds, grid, 4 draws"]
    assert [part.get_suptitle() for part in draw_accuracy(section).subfigs] == [
        "grid",
        "grid, 2 draws",
        "grid, 4 draws",
    ]


def test_an_ascent_with_other_steps_is_another_search(tmp_path: Path) -> None:
    runs = [
        make_run(
            tmp_path / f"step-{step}", [0.5], search=algorithm_1(0.25, 10) | {"step_size": step}, method="cohen-ds"
        )
        for step in (1e-4, 1e-3)
    ]
    (section,) = sections(runs)
    assert list(section.methods) == ["cohen-ds, Algorithm 1", "cohen-ds, Algorithm 1, steps of 0.001"]


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, [0.5, 0.4], search=fixed(0.25), method=name)
        for name in ("bad $x_{$ name", "_hidden", "half $")
    ]
    figure = draw_accuracy(sections(runs)[0])
    assert len(render(figure)["png"]) > 1_000
    legend = figure.axes[0].get_legend()
    assert legend is not None
    shown = {text.get_text() for text in legend.get_texts()}
    assert shown == {r"bad \$x_{\$ name", " _hidden", r"half \$"}


def test_signals_are_reported_without_pictures(tmp_path: Path) -> None:
    for shape in ((3,), (1, 28), (3, 40)):
        signals = np.random.default_rng(0).random((2, *shape), dtype=np.float32)
        source = ArraySource("signals", signals, np.array([0, 1]), ["a", "b"], levels=None)
        name = f"own-{len(shape)}-{shape[0]}"
        run = make_run(tmp_path / name, [0.5, 0.6], search=ascent(0.25, 10), sigmas=[0.2, 0.3])
        made = compose_report([run], source=source)
        assert not [drawing for drawing in made.figures if "pictures" in drawing.name]
        made.write(tmp_path / f"report-{name}")


def test_a_page_that_cannot_be_made_leaves_the_report_before(
    runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(runs[:1], tmp_path / "report")
    before = {path: path.read_bytes() for path in (tmp_path / "report").rglob("*") if path.is_file()}
    monkeypatch.setattr("sigmax.report.page.PAGE_BYTES", 1_000)
    with pytest.raises(InvalidInputError, match="expected a page of at most"):
        write_report(runs, tmp_path / "report")
    assert {path: path.read_bytes() for path in (tmp_path / "report").rglob("*") if path.is_file()} == before


def test_names_that_files_cannot_tell_apart_are_numbered(tmp_path: Path) -> None:
    runs = [
        replace(read, table=replace(read.table, name=name))
        for name, read in (
            ("a/b", make_run(tmp_path / "1", [0.5], search=fixed(0.25))),
            ("a b", make_run(tmp_path / "2", [0.5], search=fixed(0.25))),
        )
    ]
    assert [run.name for run in compose_report(runs).runs] == ["a/b", "a b (2)"]
    taken = [replace(run, table=replace(run.table, name=name)) for run in runs for name in ("a", "a (2)")]
    assert [run.name for run in with_distinct_names(taken)] == ["a", "a (2)", "a (3)", "a (2) (2)"]


def test_of_inputs_that_are_all_alike_no_interval_is_printed(tmp_path: Path) -> None:
    search = ascent(0.25, 10)
    made = make_run(tmp_path / "one", [0.6], search=search, sigmas=[0.5])
    (row,) = overview_table(sections([made])[0]).rows
    assert row[5:7] == ("0.600", "- (1)")  # ACR; and inner ACR, of no input


def test_the_table_of_gains_names_the_baseline_and_its_accuracy(runs: list[Run], tmp_path: Path) -> None:
    write_report(runs, tmp_path / "report", radii=[0.5])
    rows = read_csv(tmp_path / "report" / "tables" / "gain.csv")
    assert {row["baseline"] for row in rows} == {"fixed"}
    assert {float(row["baseline_accuracy"]) for row in rows} == {float((runs[0].table.radius >= 0.5).mean())}


def test_what_decides_radii_is_said_beside_n(tmp_path: Path) -> None:
    asked = make_run(tmp_path / "asked", [0.5], search=fixed(0.25), more={"radii": [0.25, 0.5]})
    stopped = make_run(tmp_path / "stopped", [0.5], search=fixed(0.25), more={"tolerance": 0.01, "runner_up": True})
    assert "n = 500 (at most, asked only at 0.25, 0.5: radii are rounded down to these)" in scope([asked])
    assert "500 (at most, stopping where going on would gain less than 1 %; with the runner-up bounded)" in scope(
        [stopped]
    )


def test_sigmas_without_a_baseline_are_not_called_without_gain(tmp_path: Path) -> None:
    alone = make_run(tmp_path / "alone", [0.5, 0.7], search=ascent(0.25, 10), sigmas=[0.2, 0.3])
    (axes,) = draw_sigmas([alone], []).axes
    assert axes.get_legend_handles_labels()[1] == ["no baseline (2)"]


def test_a_wide_table_is_shrunk_to_the_line() -> None:
    wide = ResultTable(name="wide", caption="", header=("a", "b"), rows=(("x" * 90, "y" * 30),))
    assert r"\resizebox{\linewidth}{!}{%" in to_latex(wide)
    assert to_latex(wide).count("{") == to_latex(wide).count("}")
    narrow = ResultTable(name="narrow", caption="", header=("a", "b"), rows=(("x", "y"),))
    assert "resizebox" not in to_latex(narrow)
