"""The gift finder: "I'll come back next week", and by then the session has expired."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from restart.child import finished
from scenarios.gift_finder import MUM, Shop, come_back, converse, tidy_up
from servers import execute

if TYPE_CHECKING:
    from pathlib import Path

MINUTE: Final = 60
DAY: Final = 24 * 60 * MINUTE
TEA: Final = ["tea"]
GIFTS: Final = {
    "g1": {"name": "a cast-iron teapot", "tags": TEA, "price": 39, "count": 2},
    "g2": {"name": "a year of Darjeeling", "tags": TEA, "price": 45, "count": 9},
    "g3": {"name": "a samovar", "tags": TEA, "price": 480, "count": 1},
    "g4": {"name": "a garden gnome", "tags": ["garden"], "price": 20, "count": 7},
}
A_WEEK_LATER: Final = {
    **GIFTS,
    "g1": {**GIFTS["g1"], "count": 0},  # sold
    "g2": {**GIFTS["g2"], "price": 42},
    "g4": {**GIFTS["g4"], "tags": TEA, "price": 1},  # nobody has looked for candidates again
}
WISH: Final = "A gift for Mum, up to 50 euros. She loves tea, please remember that."


def test_a_gift_is_found_a_week_after_the_session_has_expired(tmp_path: Path) -> None:
    """The latest checkpoint restores, candidates are read afresh, and the profile is still there.

    Each step is a process of its own that knows what is stored and nothing else.
    """
    url, shop, begin = f"sqlite+aiosqlite:///{tmp_path}/sessions.db", Shop(tmp_path), time.time()
    shop.stock(**GIFTS)
    answers, steps = finished(converse, url, tmp_path, WISH, "I'll come back next week.")
    assert answers == ["I would take a cast-iron teapot for 39 euros.", "See you then."]
    assert steps == ["offer", "filtered", "profile_collected"]

    assert finished(tidy_up, url, begin + 29 * MINUTE) == [(1, 3)]
    assert finished(tidy_up, url, time.time() + 31 * MINUTE) == [(0, 3)]
    assert finished(tidy_up, url, begin + 7 * DAY) == [(0, 3)]
    shop.stock(**A_WEEK_LATER)

    restored, answer, system, contents, state = finished(
        come_back, url, tmp_path, "ann", "I am back. Which one?"
    )

    assert (restored.state_only, restored.checkpoint.step) == (True, "offer")
    assert contents == [{"role": "user", "parts": [{"text": "I am back. Which one?"}]}]
    assert "Candidates: ['g1', 'g2']. Choice: g1." in system
    assert '"count": 0' in system
    assert answer == "I would take a year of Darjeeling for 42 euros."
    assert state == {
        "step": "finalizing",
        "draft": {"about": MUM, "likes": TEA, "budget_euros": 50},
        "candidate_ids": ["g1", "g2"],
        "choice": "g2",
        "locale": "de",
    }


def test_after_its_own_time_the_checkpoint_is_gone_too(tmp_path: Path) -> None:
    """Somebody who comes back after two months begins anew."""
    url, shop = f"sqlite+aiosqlite:///{tmp_path}/sessions.db", Shop(tmp_path)
    shop.stock(**GIFTS)
    finished(converse, url, tmp_path, WISH)
    assert finished(tidy_up, url, time.time() + 60 * DAY) == [(0, 0)]
    assert finished(come_back, url, tmp_path, "ann", "I am back.") == [None]


def test_what_is_known_of_the_recipient_outlives_the_session(tmp_path: Path) -> None:
    """It is recalled through the tool in the new process; somebody else finds nothing at all."""
    url, shop = f"sqlite+aiosqlite:///{tmp_path}/sessions.db", Shop(tmp_path)
    shop.stock(**GIFTS)
    finished(converse, url, tmp_path, WISH)
    finished(tidy_up, url, time.time() + 31 * MINUTE)
    assert finished(come_back, url, tmp_path, "bob", "I am back.") == [None]
    finished(come_back, url, tmp_path, "ann", "I am back.")
    answers = execute(url, "SELECT event_data FROM events WHERE session_id = 'birthday'")
    recalled = [text for (text,) in answers if '"recall_profile"' in text and '"response"' in text]
    assert len(recalled) == 1
    assert MUM in recalled[0]
    assert "tea" in recalled[0]


def test_its_checkpoints_hold_ids_and_nothing_that_was_said(tmp_path: Path) -> None:
    """Names and prices are the shop's, words are the conversation's: no checkpoint has them."""
    url, shop = f"sqlite+aiosqlite:///{tmp_path}/sessions.db", Shop(tmp_path)
    shop.stock(**GIFTS)
    finished(converse, url, tmp_path, WISH)
    held = "".join(
        str(execute(url, f"SELECT * FROM memext_checkpoint{table}"))  # noqa: S608
        for table in ("s", "_lines", "_values")
    )
    assert "candidate_ids" in held
    for text in ("teapot", "Darjeeling", '"price"', "remember", "I would take"):
        assert text not in held
