"""A real browser for the pages."""

import shutil
from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from servers import missing


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        missing("chromium with chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # Tests may run as root, in a container with a small /dev/shm; scrolling smoothly they would wait for it.
    for switch in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        "disable-gpu",
        "force-prefers-reduced-motion",
    ):
        options.add_argument(f"--{switch}")
    options.add_argument("--window-size=1280,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    session = webdriver.Chrome(options=options, service=Service(executable_path=driver))
    yield session
    session.quit()
