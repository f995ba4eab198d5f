"""The report's page in a real browser: one session, few loads, many questions."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from made_up_runs import make_pair, make_run, make_source, write_page
from sigmax.report.metrics import certified_accuracy, counted_radii
from sigmax.report.tables import ResultTable
from sigmax.rounding import format_down, format_nearest
from sigmax.runs import CertificateTable, Run

NASTY = "</script><script>window.owned=1</script><img src=x onerror='window.owned=1'>"
SIZE = 300
MINUS = "\N{MINUS SIGN}"


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return make_pair(SIZE)


@pytest.fixture(scope="module")
def address(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "page.html"
    table = ResultTable(name="t", caption="A table", header=("run", "ACR"), rows=(("fixed", "0.5"),))
    write_page(runs, path, tables=[table], notes=["made up"], source=make_source(runs[0], (3, 32, 32)))
    return path.as_uri()


@pytest.fixture
def page(browser: webdriver.Chrome, address: str) -> webdriver.Chrome:
    """The page as it is first opened; a page already there is only put back."""
    if browser.current_url.split("#")[0] == address:
        browser.execute_script("resetView(); drawAll()")
    else:
        load(browser, address)
    return browser


def load(page: webdriver.Chrome, address: str) -> None:
    page.get(address)
    wait_until_drawn(page)


def wait_until_drawn(page: webdriver.Chrome) -> None:
    """The page draws itself once it knows its width, some time after it is loaded."""
    WebDriverWait(page, 10).until(lambda _: find(page, "#count").text)


def find(page: webdriver.Chrome, selector: str) -> WebElement:
    return page.find_element(By.CSS_SELECTOR, selector)


def choose(page: webdriver.Chrome, **choices: str) -> None:
    """As choosing an option does, without the many questions that Select asks."""
    script = """for (const [name, value] of Object.entries(arguments[0])) {
        const select = document.querySelector(`select[name=${name}]`);
        select.value = value;
        select.dispatchEvent(new Event("change", { bubbles: true }));
    }"""
    page.execute_script(script, choices)


def count(page: webdriver.Chrome) -> int:
    return int(find(page, "#count").text.split()[0].replace(",", ""))


def console(page: webdriver.Chrome) -> list[Any]:
    """What the browser complained about since it was last asked."""
    return list(page.get_log("browser"))  # type: ignore[no-untyped-call]


def hash_of(page: webdriver.Chrome) -> str:
    return str(page.execute_script("return location.hash"))


def cards(page: webdriver.Chrome) -> list[dict[str, str]]:
    """What the gallery says of each input it shows."""
    script = """return [...document.querySelectorAll("#gallery li")].map((card) => Object.fromEntries([
        ["input", card.dataset.input],
        ...[...card.querySelectorAll("dt")].map((name) => [name.textContent, name.nextSibling.textContent])]))"""
    return list(page.execute_script(script))


def press(page: webdriver.Chrome, *keys: str) -> None:
    page.switch_to.active_element.send_keys(*keys)


def counted(table: CertificateTable) -> Any:
    return np.where(table.is_correct, table.radius, 0.0)


def test_it_loads_in_silence_and_asks_nothing_of_the_network(browser: webdriver.Chrome, address: str) -> None:
    load(browser, address)
    assert count(browser) == SIZE
    assert console(browser) == []
    log = browser.get_log("performance")  # type: ignore[no-untyped-call]
    events = [json.loads(entry["message"])["message"] for entry in log]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert {url.split(":")[0] for url in asked} <= {"file", "data"}
    assert [url for url in asked if url.startswith("file")] == [address]
    assert browser.title == "A report"


def test_the_crosshair_reads_every_run(page: webdriver.Chrome, runs: list[Run]) -> None:
    chart = find(page, ".curves .plot")
    box = chart.size
    for share in (0.1, 0.3, 0.6):
        ActionChains(page).move_to_element_with_offset(chart, int((share - 0.5) * box["width"]), 0).perform()
        radius = float(find(page, ".legend output").text)
        shown = [value.text for value in page.find_elements(By.CSS_SELECTOR, ".legend .value")]
        shares = [certified_accuracy(run.table, [radius])[0] for run in runs]
        assert radius > 0
        assert shown == [format_nearest(value) for value in (*shares, max(shares))]
    # The same by keyboard, said to a screen reader.
    chart.send_keys(Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    radius = float(find(page, ".legend output").text)
    assert radius == pytest.approx(float(str(chart.get_attribute("aria-valuenow"))))
    assert f"own {format_nearest(certified_accuracy(runs[1].table, [radius])[0])}" in str(
        chart.get_attribute("aria-valuetext")
    )


def test_the_legend_hides_a_curve_and_the_address_says_so(page: webdriver.Chrome) -> None:
    def visible() -> list[bool]:
        return [path.is_displayed() for path in page.find_elements(By.CSS_SELECTOR, ".curves .plot path.curve")]

    first = find(page, ".legend li button")
    assert visible() == [True] * 3
    first.click()
    assert visible().count(False) == 1
    assert first.get_attribute("aria-pressed") == "false"
    assert hash_of(page) == "#hide=0"
    first.send_keys(Keys.SPACE)
    assert visible() == [True] * 3
    find(page, ".legend .all button:last-child").click()
    assert visible() == [False] * 3
    find(page, ".legend .all button").click()
    assert visible() == [True] * 3
    assert hash_of(page) == ""


def test_filters_count_what_plain_numpy_counts(page: webdriver.Chrome, runs: list[Run]) -> None:
    own, gain = runs[1].table, counted(runs[1].table) - counted(runs[0].table)
    rule = np.array(own.rule)
    wrong = ~own.is_correct & (own.predict >= 0)
    for choices, mask in [
        ({"class": "3"}, own.label == 3),
        ({"result": "correct"}, own.is_correct),
        ({"result": "wrong"}, wrong),
        ({"result": "abstained"}, own.predict < 0),
        ({"change": "1"}, gain > 0),
        ({"change": "-1"}, gain < 0),
        ({"change": "0"}, gain == 0),
        ({"rule": "truncated"}, rule == "truncated"),
        (
            {"class": "5", "result": "correct", "change": "1", "rule": "kept"},
            (own.label == 5) & own.is_correct & (gain > 0) & (rule == "kept"),
        ),
    ]:
        choose(page, **choices)
        assert count(page) == mask.sum() > 0
        assert [int(card["input"]) for card in cards(page)] == np.flatnonzero(mask)[:24].tolist()
        page.execute_script("filters.reset()")
        assert count(page) == SIZE
    find(page, "#filters [type=reset]").send_keys(Keys.ENTER)
    Select(find(page, "select[name=run]")).select_by_index(0)  # as a reader does
    assert not find(page, "#histogram").is_displayed()
    assert not find(page, "#scatter").is_displayed()
    assert not find(page, "select[name=change]").is_enabled()


def test_cards_say_what_the_records_say(page: webdriver.Chrome, runs: list[Run]) -> None:
    own, gain = runs[1].table, counted(runs[1].table) - counted(runs[0].table)
    for card in cards(page):
        row = int(card["input"])
        assert card["label"] == f"class {own.label[row]}"
        assert card["answer"] == ("abstained" if own.predict[row] < 0 else f"class {own.predict[row]}")
        is_other = own.rule[row] == "inherited"
        assert card.get("point answer") == (f"class {own.point_predict[row]}" if is_other else None)
        assert card["radius"] == format_down(own.radius[row])
        assert card["point radius"] == format_down(own.point_radius[row])
        assert card["sigma*"] == format_nearest(own.sigma[row])
        assert card["gain"].replace(MINUS, "-").lstrip("+") == format_down(gain[row])
        assert card["rule"] == own.rule[row]
    assert find(page, "#gallery .picture").size == {"width": 84, "height": 84}
    choose(page, sort="gain")
    assert int(cards(page)[0]["input"]) == gain.argmax()
    find(page, "#pages [name=next]").click()
    assert find(page, "#pages span").text == "page 2 of 13"
    assert len(cards(page)) == 24
    assert hash_of(page) == "#sort=gain&page=2"


def test_bars_and_points_choose_inputs_by_mouse_and_by_keyboard(page: webdriver.Chrome, runs: list[Run]) -> None:
    sigma, gain = runs[1].table.sigma, counted(runs[1].table) - counted(runs[0].table)
    bars = page.find_elements(By.CSS_SELECTOR, "#histogram .bar")
    low, high = (int(edge) / 1e6 for edge in str(bars[3].get_attribute("data-bin")).split(","))
    inside = (sigma >= low) & (sigma < high)
    said = f"sigma* from {low:.3f} to {high:.3f}: {inside.sum()} inputs, {(gain[inside] > 0).sum()} gained"
    assert bars[3].get_attribute("aria-label") == said
    bars[3].click()
    assert count(page) == inside.sum()
    assert all(low <= sigma[int(card["input"])] < high for card in cards(page))
    find(page, "#chips button").click()  # what was chosen can be taken back beside the gallery
    assert count(page) == SIZE
    page.execute_script("document.querySelectorAll('#histogram .bar')[3].focus()")
    for key in (Keys.ENTER, Keys.SPACE):
        press(page, key)
        assert count(page) == (inside.sum() if key == Keys.ENTER else SIZE)
        assert page.switch_to.active_element.get_attribute("data-bin") == bars_at(page, 3)  # focus stays
    plot = find(page, "#scatter .plot")
    plot.send_keys(Keys.END)
    last = int(counted(runs[0].table).argmax())
    assert find(page, "#scatter .reading").text.startswith(f"Input {last}: ")
    plot.send_keys(Keys.ENTER)
    assert [int(card["input"]) for card in cards(page)] == [last]
    x, y = page.execute_script(
        """const spot = scatter.spots.at(-1);
        const box = scatter.place.getBoundingClientRect();
        return [scatter.plot.toX(spot.point[0]) - box.width / 2, scatter.plot.toY(spot.point[1]) - box.height / 2]"""
    )
    find(page, "#chips button").click()
    ActionChains(page).move_to_element_with_offset(plot, round(x), round(y)).click().perform()
    assert [int(card["input"]) for card in cards(page)] == [last]
    assert "point=" in hash_of(page)


def bars_at(page: webdriver.Chrome, place: int) -> str | None:
    return page.find_elements(By.CSS_SELECTOR, "#histogram .bar")[place].get_attribute("data-bin")


def test_each_chart_has_its_table(page: webdriver.Chrome, runs: list[Run]) -> None:
    gain = counted(runs[1].table) - counted(runs[0].table)
    for part, columns in (("#histogram", slice(-2, None)), ("#scatter", slice(-3, None))):
        find(page, f"{part} summary").click()
        lines = find(page, f"{part} tbody").text.splitlines()
        sums = np.array([line.split()[columns] for line in lines], dtype=int).sum(axis=0).tolist()
        gained, lost = int((gain > 0).sum()), int((gain < 0).sum())
        assert sums == ([SIZE, gained] if part == "#histogram" else [gained, lost, SIZE - gained - lost])
    assert f"{gained} gained radius, {lost} lost" in find(page, "#compared").text


def test_the_address_restores_the_view(page: webdriver.Chrome, address: str) -> None:
    choose(page, **{"class": "3", "change": "1", "sort": "radius"})
    page.find_elements(By.CSS_SELECTOR, "#histogram .bar")[2].click()
    find(page, ".legend li button").click()
    shared, seen, shown = page.current_url, count(page), cards(page)
    assert 0 < seen < SIZE
    page.get("about:blank")
    load(page, shared)
    assert (count(page), cards(page), page.current_url) == (seen, shown, shared)
    assert Select(find(page, "select[name=class]")).first_selected_option.text == "class 3"
    assert find(page, ".legend li button").get_attribute("aria-pressed") == "false"
    load(page, f"{address}#run=99&class=77&rule=%3Cb%3E&sigma=x&page=-3&sort=no")  # nothing that this report knows
    page.refresh()
    wait_until_drawn(page)
    assert count(page) == SIZE
    assert console(page) == []


def test_light_and_dark(page: webdriver.Chrome) -> None:
    def background() -> str:
        return find(page, "html").value_of_css_property("background-color")

    button = find(page, "#theme")
    assert (button.get_attribute("aria-pressed"), background()) == ("false", "rgba(255, 255, 255, 1)")
    button.click()
    assert (button.get_attribute("aria-pressed"), background()) == ("true", "rgba(20, 24, 29, 1)")
    button.click()
    prefers = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", prefers)
    # The page is told some time later.
    WebDriverWait(page, 10).until(lambda _: button.get_attribute("aria-pressed") == "true")
    assert background() == "rgba(20, 24, 29, 1)"
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize("width", [360, 1600])
def test_no_width_needs_sideways_scrolling(page: webdriver.Chrome, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wide = """return [document.documentElement.scrollWidth, ...[...document.querySelectorAll(".plot svg")]
        .map((plot) => Math.ceil(plot.getBoundingClientRect().right))]"""
    assert max(page.execute_script(wide)) <= width
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_strings_that_are_markup_stay_strings(browser: webdriver.Chrome, tmp_path: Path) -> None:
    runs = make_pair(30, classes=2, names=(f"{NASTY}1", f"{NASTY}2"))
    source = make_source(runs[0], (1, 8, 8), names=(NASTY, NASTY))
    table = ResultTable(name=NASTY, caption=NASTY, header=(NASTY,), rows=((NASTY,),))
    write_page(runs, tmp_path / "page.html", title=NASTY, tables=[table], notes=[NASTY], source=source)
    load(browser, (tmp_path / "page.html").as_uri())
    find(browser, "#histogram .bar").click()
    assert browser.execute_script("return window.owned") is None
    assert browser.title == find(browser, "h1").text == cards(browser)[0]["label"] == NASTY
    assert console(browser) == []


def test_logs_without_sigma_or_pictures_have_a_gallery_too(browser: webdriver.Chrome, tmp_path: Path) -> None:
    write_page([make_run("log", np.full(50, 0.48))], tmp_path / "page.html")
    load(browser, (tmp_path / "page.html").as_uri())
    assert (count(browser), cards(browser)[0]["radius"], cards(browser)[0]["sigma"]) == (50, "0.479", "not said")
    assert browser.find_elements(By.CSS_SELECTOR, ".picture") == []
    assert not find(browser, "#histogram").is_displayed()
    assert console(browser) == []


def test_ten_thousand_inputs_are_quick(browser: webdriver.Chrome, tmp_path: Path) -> None:
    write_page(make_pair(10_000), tmp_path / "page.html")
    load(browser, (tmp_path / "page.html").as_uri())
    assert count(browser) == 10_000
    assert browser.execute_script("return document.querySelectorAll('*').length") < 2_000
    began = time.perf_counter()
    choose(browser, change="1")
    # A busy machine is several times slower than a reader's; drawing a node for each input would take longer still.
    assert time.perf_counter() - began < 3
    assert 0 < count(browser) < 10_000


def test_a_run_that_only_abstains_is_drawn_too(browser: webdriver.Chrome, tmp_path: Path) -> None:
    run = make_run("hopeless", np.zeros(20), predict=-1)
    write_page([run], tmp_path / "page.html")
    load(browser, (tmp_path / "page.html").as_uri())
    assert count(browser) == 20
    assert console(browser) == []  # neither NaN in a path nor anything else


def test_many_runs_are_found_by_words_of_their_names(browser: webdriver.Chrome, tmp_path: Path) -> None:
    names = [
        f"{method}-{sigma}" for method in ("cohen", "Macer", "smoothadv") for sigma in ("0.12", "0.25", "0.5", "1")
    ]
    made = [make_run(name, np.linspace(0, 1, 20)) for name in names]

    def shown(asked: str) -> list[str]:
        words.clear()
        words.send_keys(asked)
        pressed = browser.find_elements(By.CSS_SELECTOR, '.legend li button[aria-pressed="true"] .name')
        return [name.text.split()[0] for name in pressed]

    write_page(made, tmp_path / "page.html")
    load(browser, (tmp_path / "page.html").as_uri())
    words = find(browser, ".legend input")
    assert shown("macer") == names[4:8]
    assert hash_of(browser).count(",") == len(names) - 4  # the other eight runs and the envelope are hidden
    assert shown(" 0.25  COHEN") == ["cohen-0.25"]
    assert shown("nothing like it") == []
    assert shown(" ") == [*names, "envelope"]
    shown("macer")
    find(browser, ".legend .all button").click()
    assert words.get_attribute("value") == ""
    assert hash_of(browser) == ""
    write_page(made[:4], tmp_path / "few.html")
    load(browser, (tmp_path / "few.html").as_uri())
    assert browser.find_elements(By.CSS_SELECTOR, ".legend input") == []
    assert console(browser) == []


def test_the_gallery_shows_noise_at_both_sigmas_and_says_where_nothing_is_left(page: webdriver.Chrome) -> None:
    first = "document.querySelectorAll('#gallery li:first-child canvas')"
    pixels = f"return [...{first}].map((c) => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data])"
    at_sigma0, at_chosen = page.execute_script(pixels)
    assert len(set(at_sigma0)) > 10  # it was drawn
    assert at_sigma0 != at_chosen
    page.execute_script("change({ sigma: [-2, -1] })")  # no input has such a sigma
    assert find(page, "#gallery .empty").text
    assert console(page) == []


def test_texts_name_the_baseline_whatever_it_is(browser: webdriver.Chrome, runs: list[Run], tmp_path: Path) -> None:
    """With --baseline a run of one sigma may be compared with a per-input run."""
    log = make_run("log", runs[0].table.radius, label=runs[0].table.label, predict=runs[0].table.predict)
    page = tmp_path / "page.html"
    write_page([*runs, log], page, baseline=1)
    load(browser, page.as_uri())
    assert console(browser) == []
    choose(browser, run="0")
    assert find(browser, "#compared").text.startswith("fixed (point, float) against own (settled, float)")
    best = int(np.argmax(counted_radii(runs[0].table)))
    browser.execute_script(f"choosePoint(scatter.spots.findIndex((spot) => spot.rows.includes({best})))")
    said = find(browser, "#scatter .reading").text
    theirs, ours = (format_down(float(counted_radii(run.table)[best])) for run in (runs[1], runs[0]))
    assert f"{theirs} in the baseline, {ours} in this run" in said
    assert "under one sigma" not in browser.find_element(By.TAG_NAME, "main").text
    assert "log (point, sigma not said)" in [option.text for option in Select(find(browser, "[name=run]")).options]


@pytest.mark.parametrize("address_of", ["run=length", "point=5,5", "sort=gain&run=0"])
def test_an_address_of_nothing_is_as_good_as_none(browser: webdriver.Chrome, address: str, address_of: str) -> None:
    browser.get("about:blank")
    load(browser, f"{address}#{address_of}")
    assert console(browser) == []
    assert count(browser) == SIZE
    assert Select(find(browser, "[name=sort]")).first_selected_option.get_attribute("value") == ""


def test_sigmas_that_are_all_alike_make_one_bar_that_the_address_restores(
    browser: webdriver.Chrome, runs: list[Run], tmp_path: Path
) -> None:
    table = runs[1].table
    alike = make_run("alike", table.radius, runs[1].spec, label=table.label, predict=table.predict)
    page = tmp_path / "page.html"
    write_page([alike], page)
    load(browser, page.as_uri())
    (bar,) = browser.find_elements(By.CSS_SELECTOR, "#histogram .bar")
    bar.send_keys(Keys.ENTER)
    assert hash_of(browser) == "#sigma=250000,251000"
    browser.refresh()
    wait_until_drawn(browser)
    assert count(browser) == SIZE
    assert len(browser.find_elements(By.CSS_SELECTOR, "#chips button")) == 1
    find(browser, "#chips button").send_keys(Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "count"
