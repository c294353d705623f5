"""Picture the first screenful of a report page: `python docs/screenshot.py REPORT.html PICTURE.png`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def screenshot(page_path: Path, picture: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("no chromium here; install it with: apt-get install chromium")
    picture.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1120, "height": 900}, color_scheme="light")
        page.goto(page_path.resolve().as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached")
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    screenshot(Path(sys.argv[1]), Path(sys.argv[2]))
