"""How far the estimate of tokens is off: measured, and said in the how-to."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from adk_memory_ext.history.tokens import text_tokens
from benchmarks.token_estimates import Sample, count, report, samples

HOW_TO: Final = Path(__file__).parent.parent / "docs/how-to/keep-a-long-conversation-cheap.md"


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.kind)
def test_the_estimate_is_seldom_low_and_never_far_off(sample: Sample) -> None:
    """For prose, code, data and every script: an eighth too low at most, half too high at most."""
    assert -1 / 8 <= sample.error <= 1 / 2


def test_the_how_to_says_what_was_measured() -> None:
    """Its table is what `python -m benchmarks.token_estimates` prints."""
    assert report() in HOW_TO.read_text(encoding="utf-8")


def test_the_recorded_counts_are_those_of_the_reference() -> None:
    """Where the tokenizer is installed, it counts what stands in the file."""
    pytest.importorskip("mistral_common", reason="only `make bench` installs the reference")
    assert {one.kind: count(one.text) for one in samples()} == {
        one.kind: one.tokens for one in samples()
    }


def test_any_text_is_at_least_a_token() -> None:
    """Also one of control characters, and one that UTF-8 cannot say."""
    assert text_tokens("") == 0
    for text in ("a", "\x7f", "\x00", "\ud800", "\u0301"):
        assert text_tokens(text) == 1
    assert text_tokens("a b" * 1_000 + "學" * 1_000) == 750 + 1_000
