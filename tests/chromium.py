"""Headless Chromium for tests, kept from every network but loopback and from every other folder."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FLAGS: Final = (
    "--headless",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",  # containers give /dev/shm 64 MB
    "--window-size=1400,1000",
    # Nothing but loopback has an address: a page must do without fonts and scripts of others.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def missing_programs() -> list[str]:
    """Returns which of the programs that `chromium` starts are not on this machine."""
    return [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]


@contextmanager
def chromium(folder: Path) -> Iterator[Chrome]:
    """Yields a browser with a new profile; everything that it writes lies in `folder`."""
    options = ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*_FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    for name in ("home", "tmp"):
        (folder / name).mkdir(parents=True)
    temporary = os.open(folder / "tmp", os.O_RDONLY)
    try:
        service = Service(
            # With a path given, selenium looks for no driver and downloads none.
            executable_path=shutil.which("chromedriver"),
            log_output=str(folder / "chromedriver.log"),
            env={
                "PATH": os.environ["PATH"],
                "LANG": "C.UTF-8",
                "HOME": str(folder / "home"),
                # Chromium puts a socket there, whose path must be under 108 bytes.
                "TMPDIR": f"/proc/{os.getpid()}/fd/{temporary}",
            },
        )
        driver = Chrome(options=options, service=service)
        try:
            yield driver
        finally:
            driver.quit()
    finally:
        os.close(temporary)
