"""The page of the service in a real browser: drop an image, watch its radius grow, stop early, look in the memory."""

import json
import time
from base64 import b64encode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from sigmax import CertificateMemory
from sigmax.rounding import format_down
from trial import Served, image, make_service, png, serving

TOKEN = "token-of-the-test-page"

DROP = """const transfer = new DataTransfer();
for (const [name, content] of arguments[0]) {
    const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
    transfer.items.add(new File([bytes], name, { type: "image/png" }));
}
const event = new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true });
(arguments[1] ?? document.getElementById("drop")).dispatchEvent(event);
return event.defaultPrevented;"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    service = make_service(tmp_path_factory.mktemp("page"), seconds=0.004, tokens=f"settle {TOKEN}")
    with serving(service) as started:
        yield started


@pytest.fixture
def page(browser: webdriver.Chrome, served: Served) -> webdriver.Chrome:
    """The page of somebody whose token it has taken."""
    browser.get(served.address)
    if not browser.execute_script("return sessionStorage.getItem('sigmax-token')"):
        wait(browser, lambda: "asks for a token" in find(browser, "#service").text)
        find(browser, "[name=token]").send_keys(TOKEN, Keys.ENTER)
    wait(browser, lambda: find(browser, "#asking").is_displayed())
    return browser


def find(page: webdriver.Chrome, selector: str) -> WebElement:
    return page.find_element(By.CSS_SELECTOR, selector)


def wait(page: webdriver.Chrome, until: Any) -> None:
    WebDriverWait(page, 60, poll_frequency=0.05).until(lambda _: until())


def drop(page: webdriver.Chrome, *, on: WebElement | None = None, **files: bytes) -> None:
    """Drop files in the box, or elsewhere; the page takes them, else the browser would open them instead."""
    given = [(f"{name}.png", b64encode(content).decode()) for name, content in files.items()]
    assert page.execute_script(DROP, given, on) is True


def set_samples(page: webdriver.Chrome, n: int) -> None:
    page.execute_script("document.querySelector('[name=n]').value = arguments[0]", n)


def said(page: webdriver.Chrome) -> dict[str, str]:
    """The facts of the newest answer."""
    script = """return Object.fromEntries([...document.querySelector(".question").querySelectorAll("dt")]
        .map((name) => [name.textContent, name.nextSibling.textContent]))"""
    return dict(page.execute_script(script))


def test_a_dropped_image_shows_its_radius_grow_until_it_is_stopped(page: webdriver.Chrome, served: Served) -> None:
    pixels = image(0.75, seed=1)
    set_samples(page, 100_000)
    drop(page, grey=png(pixels))
    seen: list[str] = []

    def has_grown() -> bool:
        shown = page.find_elements(By.CSS_SELECTOR, ".question .radius output")
        if shown and (not seen or shown[0].text != seen[-1]):
            seen.append(shown[0].text)
        return len(seen) > 4

    wait(page, has_grown)
    assert [float(text) for text in seen] == sorted(float(text) for text in seen)
    assert "of 100,000 samples" in find(page, ".running").text
    stop = find(page, ".running button")
    assert stop.accessible_name == "Stop early: grey.png"
    stop.send_keys(Keys.ENTER)
    wait(page, lambda: not find(page, ".running").is_displayed())
    (stored,) = served.stored(pixels[None])
    assert find(page, ".radius output").text == format_down(stored.radius)
    assert find(page, ".radius strong").text == "bright"
    facts = said(page)
    assert facts["rule"].startswith(stored.rule)
    assert facts["samples"] == f"{stored.proof.n:,}"
    assert stored.proof.n < 100_000
    assert float(seen[-1]) <= stored.radius
    assert f"certified radius {format_down(stored.radius)}" in str(find(page, "#said").get_attribute("textContent"))
    drop(page, again=png(pixels))
    wait(page, lambda: "memory, without sampling" in said(page).get("from", ""))
    assert find(page, ".radius output").text == format_down(stored.radius)


def test_a_batch_shows_its_progress_and_other_sizes_are_resized(page: webdriver.Chrome, served: Served) -> None:
    before = len(served.service.memory)
    set_samples(page, 300)
    large = BytesIO()
    Image.fromarray(np.full((30, 40, 3), 220, np.uint8)).save(large, format="PNG")
    drop(page, one=png(image(0.2, seed=3)), two=png(image(0.8, seed=4)), large=large.getvalue(), broken=b"no image")
    wait(page, lambda: find(page, "#progress-text").text == "3 of 3 answered")
    assert len(served.service.memory) == before + 3
    wait(page, lambda: f"memory of {before + 3} answers" in find(page, "#service").text)
    text = find(page, "#answers").text
    assert "resized from 40 \N{MULTIPLICATION SIGN} 30" in text
    assert "broken.png is not an image" in text
    assert float(find(page, "#progress").get_attribute("value") or 0) == 1.0
    assert len(page.find_elements(By.CSS_SELECTOR, ".question canvas")) == 6


def test_a_file_beside_the_box_is_taken_and_a_small_radius_can_be_read(page: webdriver.Chrome) -> None:
    set_samples(page, 3_000)
    drop(page, on=find(page, "h1"), near=png(image(0.515, seed=6)))
    wait(page, lambda: "rule" in said(page))
    assert 0 < float(find(page, ".radius output").text) < 0.2
    ticks = page.find_elements(By.CSS_SELECTOR, ".question .plot text[text-anchor=end]")
    assert len({tick.get_attribute("textContent") for tick in ticks}) >= 3


def test_the_page_of_a_frozen_memory_does_not_claim_to_store(browser: webdriver.Chrome, tmp_path: Path) -> None:
    make_service(tmp_path).close()
    with CertificateMemory.existing(tmp_path / "memory.db") as memory:
        digest = memory.freeze(sigma=0.25).digest
    with serving(make_service(tmp_path, is_frozen=True)) as frozen:
        browser.get(frozen.address)
        wait(browser, lambda: find(browser, "#asking").is_displayed())
        assert digest[:12] in find(browser, "#service").text
        drop(browser, one=png(image(0.8, seed=2)))
        wait(browser, lambda: "rule" in said(browser))
        assert "stores nothing" in said(browser)["from"]


def test_nothing_is_asked_of_the_network_and_nothing_goes_wrong(page: webdriver.Chrome, served: Served) -> None:
    page.get_log("browser")  # type: ignore[no-untyped-call]
    page.get_log("performance")  # type: ignore[no-untyped-call]
    page.refresh()
    wait(page, lambda: find(page, "#asking").is_displayed())
    drop(page, one=png(image(0.9, seed=9)))
    wait(page, lambda: "rule" in said(page))
    messages = [json.loads(line["message"])["message"] for line in page.get_log("performance")]  # type: ignore[no-untyped-call]
    asked = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert all(url.startswith((served.address, "data:", "blob:")) for url in asked)
    assert page.get_log("browser") == []  # type: ignore[no-untyped-call]


def test_it_fits_a_phone_in_both_colours_and_is_usable_by_keyboard(page: webdriver.Chrome, tmp_path: Path) -> None:
    drop(page, one=png(image(0.85, seed=11)))
    wait(page, lambda: "rule" in said(page))
    size = {"width": 400, "height": 1_000, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        paper = set()
        for _ in range(2):
            find(page, "#theme").send_keys(Keys.ENTER)
            time.sleep(0.1)
            assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
            paper.add(page.execute_script("return getComputedStyle(document.documentElement).backgroundColor"))
        assert len(paper) == 2
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.execute_script("document.activeElement.blur()")
    reached = set()
    for _ in range(10):
        ActionChains(page).send_keys(Keys.TAB).perform()
        focused = page.switch_to.active_element
        reached.add(focused.get_attribute("id") or focused.get_attribute("name"))
    assert {"theme", "files", "n", "deadline"} <= reached
    unnamed = page.execute_script(
        "return [...document.querySelectorAll('input, button')].filter((e) => e.checkVisibility()).length"
    )
    named = [e for e in page.find_elements(By.CSS_SELECTOR, "input, button") if e.accessible_name]
    assert len(named) >= unnamed
