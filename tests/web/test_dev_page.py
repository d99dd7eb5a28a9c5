"""ADK's dev page in a real browser, over a server that is killed while the page is open."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from adk_server import COACH
from chromium import chromium, missing_programs
from resume_coach.scenario import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webdriver import WebDriver

    from adk_server import Serve

_HANG_SECONDS: Final = 120
_BUBBLES: Final = """
    return Array.from(document.querySelectorAll("app-event-row"), (row) => [
        row.classList.contains("user") ? "user" : "model",
        row.querySelector("markdown")?.innerText.trim(),
    ]).filter(([who, text]) => text).map(([who, text]) => `${who}: ${text}`);
"""


@pytest.fixture
def browser(tmp_path: Path, record_property: Callable[[str, object], None]) -> Iterator[Chrome]:
    """A browser, where there is one; a CI machine must have it.

    What it showed last is kept as `dev-page.png` in the test's folder.
    """
    if missing := missing_programs():
        absent = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        absent(f"{missing[0]} not found (Debian: apt-get install chromium chromium-driver)")
    screenshot = tmp_path / "dev-page.png"
    record_property("screenshot", str(screenshot))
    with chromium(tmp_path / "browser") as driver:
        yield driver
        driver.save_screenshot(str(screenshot))


class DevPage:
    """The dev page as a person sees it."""

    def __init__(self, driver: Chrome) -> None:
        self._driver = driver
        # A dialog that fades out is in the way for a moment.
        self._wait = WebDriverWait(driver, _HANG_SECONDS, ignored_exceptions=[WebDriverException])

    def open(self, url: str, app: str) -> None:
        """Opens the page of an app and declines ADK's question about telemetry."""
        self._driver.get(f"{url}/dev-ui/?app={app}")
        self._click("//button[contains(., 'No Thanks')]")

    def say(self, text: str) -> None:
        """Pastes a message, as a person would a résumé, and sends it with the Enter key."""
        self._click("//textarea")
        self._driver.execute_cdp_cmd("Input.insertText", {"text": text})
        self._driver.switch_to.active_element.send_keys(Keys.ENTER)

    def reload(self) -> None:
        """Reloads the page at the address that the browser shows."""
        self._driver.refresh()

    def conversation(self, last: str) -> list[str]:
        """Returns the bubbles with text in them once the last one says `last`."""
        return self._wait.until(lambda _driver: self._bubbles(last))

    def _bubbles(self, last: str) -> list[str] | Literal[False]:
        texts: list[str] = self._driver.execute_script(_BUBBLES)
        return texts if texts and last in texts[-1] else False

    def _click(self, path: str) -> None:
        def click(driver: WebDriver) -> bool:
            driver.find_element(By.XPATH, path).click()
            return True

        self._wait.until(click)


def test_page_shows_the_conversation_after_the_server_was_killed(
    serve: Serve, browser: Chrome
) -> None:
    """A person asks, the server is killed and started, the reloaded page goes on from there."""
    question, answer, _ = messages("en")
    server = serve("memext+sqlite+aiosqlite:///.sessions/sessions.db")
    page = DevPage(browser)
    page.open(server.url, COACH)
    page.say(question)
    said = page.conversation(last="How many hours a week do you have")
    assert [text.split(":")[0] for text in said] == ["user", "model"]
    server.kill()

    server.start()
    page.reload()
    assert page.conversation(last="How many hours a week do you have") == said
    page.say(answer)
    assert page.conversation(last="Plan for 3 weeks, 18 hours")[:2] == said
