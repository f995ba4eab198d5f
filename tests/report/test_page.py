import base64
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import sigmax.report.page
from made_up_runs import make_pair, make_run, make_source, make_spec, write_page
from sigmax import AscentSearch
from sigmax.errors import InvalidInputError
from sigmax.look import whole_style
from sigmax.metrics import average_certified_radius, certified_accuracy
from sigmax.noise import Gaussian, Uniform
from sigmax.report.canvas import COLOURS
from sigmax.report.tables import ResultTable
from sigmax.rounding import format_down, format_nearest
from sigmax.runs import Run, read_run

NASTY = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&{{ 7*7 }}"


class Reader(HTMLParser):
    """What a browser would see: tags, attributes, texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


def written(path: Path, runs: list[Run], **options: Any) -> str:
    write_page(runs, path / "page.html", **options)
    assert [file.name for file in path.iterdir()] == ["page.html"]
    return (path / "page.html").read_text()


def test_curves_and_columns_say_what_the_metrics_say(tmp_path: Path) -> None:
    runs = make_pair(400)
    page = written(tmp_path, runs)
    data = data_of(page)
    (chart,) = data["charts"]
    radii = np.array(chart["radii"]) / 1000
    assert radii[-1] > max(run.table.radius.max() for run in runs)
    for run, counts, columns in zip(runs, chart["counts"], data["runs"], strict=True):
        assert np.array_equal(np.array(counts) / 400, certified_accuracy(run.table, radii))
        assert [f"{whole / 1000:.3f}" for whole in columns["radius"]] == [format_down(r) for r in run.table.radius]
        assert format_nearest(average_certified_radius(run.table)) in Reader(page).texts
    gain = np.subtract(*[np.where(run.table.is_correct, run.table.radius, 0) for run in reversed(runs)])
    own = data["runs"][1]
    assert own["change"] == np.sign(gain).tolist()
    assert own["gain"] == [int(format_down(value).replace(".", "")) for value in gain]
    assert own["compared"] == {
        "gained": (gain > 0).sum(),
        "lost": (gain < 0).sum(),
        "mean": "+" + format_nearest(gain.mean()),
    }
    assert (own["fixed"], data["runs"][0]["fixed"]) == (0, None)
    assert len(data["inputs"]) == 1  # told once for both runs


@given(st.lists(st.floats(-10, 10), max_size=20))
def test_numbers_travel_rounded_down(values: list[float]) -> None:
    whole = sigmax.report.page._thousandths(np.array(values, dtype=np.float64))
    assert [int(format_down(value).replace(".", "")) for value in values] == whole


def test_settings_tables_and_notes_are_there(tmp_path: Path) -> None:
    table = ResultTable(
        name="results",
        caption="the caption",
        header=("run", "0.5"),
        rows=(("one", "0.612"), ("two", "0.7")),
        best=frozenset({(1, 1)}),
    )
    page = written(tmp_path, make_pair(50), tables=[table], notes=["only 50 inputs"])
    texts = Reader(page).texts
    for said in ("only 50 inputs", "the caption", "0.612", "fixed", "own"):
        assert said in texts
    (words,) = (said for said in texts if "sigma by ascent (steps 900" in said)
    for said in ("Settled certificates of 50 inputs of toy", "net.pt", "l2", "n = 500", "alpha = 0.01", "seed 7"):
        assert said in words
    assert "_" not in words.replace("net.pt", "")  # words, not names of settings in code
    assert texts.index("only 50 inputs") < texts.index("the caption") < texts.index(words)  # the settings come last
    assert "<strong>0.7</strong>" in page


def test_nothing_of_the_user_becomes_markup(tmp_path: Path) -> None:
    plain, nasty = tmp_path / "plain", tmp_path / "nasty"
    tags = {}
    for folder, said in ((plain, "plain"), (nasty, NASTY)):
        folder.mkdir()
        runs = make_pair(30, classes=2, names=(f"{said} 1", f"{said} 2"))
        spec = make_spec(AscentSearch(initial=0.25), model=said, data=said, backend=said)
        runs[1] = Run(table=replace(runs[1].table, rule=(said,) * 30), spec=spec)
        source = make_source(runs[0], (1, 4, 4), names=(said, "b"))
        table = ResultTable(name=said, caption=said, header=("run", said), rows=((said, said),))
        page = written(folder, runs, title=said, notes=[said], tables=[table], source=source)
        tags[said] = Reader(page).tags
        data = data_of(page)
        assert (data["runs"][0]["name"], data["inputs"][0]["classes"][0]) == (f"{said} 1", said)
    assert tags["plain"] == tags[NASTY]
    assert tags["plain"]["script"] == 2


def test_a_page_asks_nothing_of_the_network(tmp_path: Path) -> None:
    runs = make_pair(20)
    page = written(tmp_path, runs, source=make_source(runs[0], (3, 8, 8)))
    addresses = [value or "" for name, value in Reader(page).attributes if name in ("src", "href", "action", "data")]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r"url\(\"?(.{5})", page) == ["data:"]


def test_pictures_are_the_images(tmp_path: Path) -> None:
    runs = make_pair(30)
    source = make_source(runs[0], (3, 32, 32))
    page = written(tmp_path, runs, source=source)
    sprite = data_of(page)["sprite"]
    (content,) = re.findall(r"data:image/png;base64,([^\"]+)", page)
    grid = np.asarray(Image.open(BytesIO(base64.b64decode(content))))
    for place, index in enumerate(sprite["inputs"]):
        row, column = divmod(place, sprite["columns"])
        cell = grid[32 * row : 32 * (row + 1), 32 * column : 32 * (column + 1)]
        assert np.array_equal(cell, np.rint(255 * source.images([index])[0]).transpose(1, 2, 0))


@pytest.mark.parametrize(("size", "shape"), [(500, (3, 32, 32)), (10_000, (3, 32, 32)), (400, (3, 128, 128))])
def test_a_page_stays_small(tmp_path: Path, size: int, shape: tuple[int, int, int]) -> None:
    runs = make_pair(size)
    page = written(tmp_path, runs, source=make_source(runs[0], shape))
    assert len(page.encode()) < 5_000_000
    data = data_of(page)
    assert len(data["runs"][0]["radius"]) == size  # every row is there
    pictures = len(data["sprite"]["inputs"])
    assert pictures >= min(size, 300)
    assert (f"{pictures:,} of {size:,} inputs have a picture" in page) == (pictures < size)


def test_too_many_rows_are_thinned_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sigmax.report.page, "PAGE_BYTES", 100_000)
    runs = make_pair(3_000)
    page = written(tmp_path, runs)
    assert len(page.encode()) <= 100_000
    data = data_of(page)
    step = int(re.findall(r"one input in (\d+)", page)[0])
    assert data["inputs"][0]["idx"] == list(range(0, 3_000, step))
    assert data["charts"][0]["counts"][0][0] == runs[0].table.is_correct.sum()  # curves are of all
    monkeypatch.setattr(sigmax.report.page, "PAGE_BYTES", 1_000)
    with pytest.raises(InvalidInputError, match="1000"):
        written(tmp_path, runs)


def test_others_logs_have_a_page(tmp_path: Path, published_logs: Path) -> None:
    fixed = read_run(published_logs / "cifar10-resnet110-cohen-0.50.tsv")
    own = read_run(published_logs / "cifar10-resnet110-cohen-0.50-qcrs-per-input-sigma.tsv")
    others = [read_run(path) for path in sorted(published_logs.glob("imagenet*.tsv"))]
    page = written(tmp_path, [fixed, own, *others])
    data = data_of(page)
    assert [run["fixed"] for run in data["runs"]] == [None, 0, None, None, None]
    assert data["runs"][0]["sigma"] is None
    assert data["sprite"] is None
    assert data["charts"][0]["runs"] == [0, 1]  # other inputs, another chart
    assert " from " not in re.findall(r"certificates of 10,000 inputs[^<]*", page)[0]  # no model is made up


def test_runs_that_cannot_be_compared_have_charts_of_their_own(tmp_path: Path) -> None:
    noises = (Uniform(), Gaussian(), Uniform())
    runs = [make_run(f"run {i}", [0.5] * 5, make_spec(noise=noise)) for i, noise in enumerate(noises)]
    assert [chart["runs"] for chart in data_of(written(tmp_path, runs))["charts"]] == [[0, 2], [1]]


def test_a_log_does_not_join_runs_on_different_data(tmp_path: Path) -> None:
    specs = [None, *(make_spec(digest=digest) for digest in ("a", "b", "a"))]
    runs = [make_run(f"run {i}", [0.5] * 5, spec) for i, spec in enumerate(specs)]
    assert [chart["runs"] for chart in data_of(written(tmp_path, runs))["charts"]] == [[0], [1, 3], [2]]


def test_a_run_without_rows_has_a_page(tmp_path: Path) -> None:
    assert data_of(written(tmp_path, [make_run("empty", [])]))["runs"][0]["radius"] == []


def test_the_same_report_is_the_same_bytes(tmp_path: Path) -> None:
    runs = make_pair(40)
    assert written(tmp_path, runs) == written(tmp_path, runs)


def test_inputs_of_other_data_have_no_pictures(tmp_path: Path) -> None:
    page = written(tmp_path, make_pair(100), source=make_source(make_pair(100, seed=1)[0], (1, 8, 8)))
    assert data_of(page)["sprite"] is None


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_the_contrast_of_wcag_aa(scheme: int) -> None:
    style = whole_style("")
    colours = {name: pair[scheme] for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)}
    backgrounds = [colours["paper"], colours["raised"]]
    assert len([name for name in colours if name.startswith("line-")]) == len(COLOURS)
    if scheme == 0:  # the page and the figures have the same
        assert [colours[f"line-{i}"].upper() for i in range(len(COLOURS))] == list(COLOURS)
    for name, colour in colours.items():
        least = 4.5 if name in ("ink", "soft", "focus") else 3.0 if name.startswith(("line-", "rest")) else 0.0
        for background in backgrounds[: 2 if least == 4.5 else 1]:
            light, dark = sorted((luminance(colour), luminance(background)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= least, name
