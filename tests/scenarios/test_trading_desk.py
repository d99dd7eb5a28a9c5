"""The trading desk after a crash: the log is verified, and what is true now is read afresh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from restart.child import finished, killed
from scenarios.trading_desk import HELD_FOR, Broker, look, trade
from servers import execute

if TYPE_CHECKING:
    from pathlib import Path

NOON: Final = 1_800_000_000.0
BEGUN: Final = ("Buy for 5,000.", "No, for 3,000.", "Reserve it.", "Buy now.")
SOON: Final = NOON + 60
LATER: Final = NOON + HELD_FOR.total_seconds() + 1
GO_ON: Final = ("Go on.",)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a desk whose process was killed while it bought."""
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    heard = killed(trade, url, Broker(tmp_path, NOON), BEGUN, True, True)
    assert heard == ["set_goal: 5000", "set_goal: 3000", "reserve: r1"]
    return url


def test_the_last_consistent_checkpoint_is_found_and_the_log_says_everything(url: str) -> None:
    """Both amounts are in the log; the checkpoint is that of the reservation, by its id."""
    checkpoint, said = finished(look, url)
    assert checkpoint == ("reserved", {"reservation": "r1"})
    assert [one for one in said if one in BEGUN] == list(BEGUN)


def test_a_reservation_that_expired_meanwhile_is_not_acted_on(url: str, tmp_path: Path) -> None:
    """Working state comes back with the id, the broker says that it is void: nothing is tried."""
    broker = Broker(tmp_path, LATER)
    answer, contents, state = finished(trade, url, broker, GO_ON)
    assert answer == "Nothing is reserved any more, and nothing was bought."
    assert (broker.known()["orders"], broker.known()["attempts"]) == ({}, 0)
    assert state == {"locale": "de", "goal": 3000, "reservation_id": "r1"}
    assert "Buy now." not in str(contents)
    assert "No, for 3,000." in str(contents)


def test_without_the_hooks_it_would_have_been(url: str, tmp_path: Path) -> None:
    """From memory alone the desk tries the reservation that is void by then."""
    broker = Broker(tmp_path, LATER)
    finished(trade, url, broker, GO_ON, False)
    assert broker.known()["attempts"] == 1


def test_a_reservation_that_still_holds_is_bought_once(url: str, tmp_path: Path) -> None:
    """For the corrected goal; asked again, in one more process, the desk knows that it is done."""
    broker = Broker(tmp_path, SOON)
    assert finished(trade, url, broker, GO_ON)[0] == "place_order: bought"
    assert list(broker.known()["orders"].values()) == [3000]
    finished(trade, url, broker, GO_ON)
    assert list(broker.known()["orders"].values()) == [3000]


def test_a_permission_that_was_taken_meanwhile_is_noticed(url: str, tmp_path: Path) -> None:
    """Nothing that the desk remembers grants what compliance has taken away."""
    broker = Broker(tmp_path, SOON)
    broker.permit(permitted=False)
    answer = finished(trade, url, broker, GO_ON)[0]
    assert answer == "You may not trade at present; nothing was bought."
    assert broker.known()["attempts"] == 0


def test_behind_a_log_that_was_changed_the_desk_goes_back_further(url: str, tmp_path: Path) -> None:
    """The checkpoint of the reservation is passed over, and with it the reservation's id."""
    changed = 'replace(event_data, \'"outcome": "r1"\', \'"outcome": "r9"\')'
    execute(url, f"UPDATE events SET event_data = {changed}")  # noqa: S608
    assert finished(look, url)[0] == ("goal", {})
    broker = Broker(tmp_path, SOON)
    answer, contents, state = finished(trade, url, broker, GO_ON)
    assert answer == "Nothing is reserved any more, and nothing was bought."
    assert state == {"locale": "de", "goal": 3000}
    assert "Reserve it." not in str(contents)
