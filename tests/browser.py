"""A headless Chromium for tests of the page, and the pictures of pages in docs/images.

python tests/browser.py PAGE.html PICTURE.png [--width 1280] [--height N] [--dark] [--phone]
"""

import argparse
import base64
import io
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver  # pyright: ignore[reportMissingImports]
from selenium.webdriver.chrome.options import Options  # pyright: ignore[reportMissingImports]
from selenium.webdriver.chrome.service import Service  # pyright: ignore[reportMissingImports]

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--disable-dev-shm-usage"),
)


@contextmanager
def browser(width: int = 1280, height: int = 900, *, dark: bool = False, phone: bool = False) -> Iterator[Any]:
    """Yield a browser with a profile of its own; `phone` emulates a screen of this width that is touched."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        raise RuntimeError("needs Chromium and its driver (Debian: apt-get install chromium chromium-driver)")
    options = Options()
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        if phone:
            metrics = {"width": width, "height": height, "pixelRatio": 1.0, "touch": True}
            options.add_experimental_option("mobileEmulation", {"deviceMetrics": metrics})
        found = webdriver.Chrome(options=options, service=Service(driver))
        try:
            set_dark(found, dark)
            yield found
        finally:
            found.quit()


def set_dark(found: Any, dark: bool) -> None:
    """Have the browser prefer dark colours, or light ones."""
    feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    found.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def open_page(found: Any, page: Path, patience: float = 20) -> float:
    """Open a page and return the seconds it took to be drawn, as the page itself measured them."""
    found.get(page.resolve().as_uri())
    end = time.monotonic() + patience
    while (drawn := found.execute_script("return document.documentElement.dataset.drawn")) is None:
        if time.monotonic() > end:
            raise AssertionError(f"the page was not drawn: {errors(found)}")
        time.sleep(0.05)  # the driver may come back before a new process has the page
    return float(drawn) / 1000


def next_frame(found: Any) -> None:
    """Wait until what is under way has been drawn."""
    found.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def errors(found: Any) -> list[str]:
    """Return what the console holds since it was asked last."""
    return [line["message"] for line in found.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]


def picture(found: Any, target: Path, width: int, height: int | None = None) -> None:
    """Save a picture of the whole page, or of its top."""
    whole = found.execute_script("return document.documentElement.scrollHeight")
    size = {"width": width, "height": height or whole, "deviceScaleFactor": 1, "mobile": False}
    found.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    time.sleep(0.5)  # charts are drawn again at the new size
    taken = io.BytesIO(base64.b64decode(found.execute_cdp_cmd("Page.captureScreenshot", {})["data"]))
    Image.open(taken).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(target, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--phone", action="store_true")
    asked = parser.parse_args()
    with browser(asked.width, 900, dark=asked.dark, phone=asked.phone) as found:
        open_page(found, asked.page)
        picture(found, asked.picture, asked.width, asked.height)


if __name__ == "__main__":
    main()
