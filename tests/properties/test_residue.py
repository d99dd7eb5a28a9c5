"""Pieces of values in bytes that belong to nothing: found wherever they stand, and nothing else."""

from __future__ import annotations

import json
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from adk_memory_ext.erasure import residue
from backends import count

_ALPHABET: Final = st.sampled_from('abcd 01"\\\n\té燈😀')
_VALUES: Final = st.lists(
    st.text(_ALPHABET, min_size=8, max_size=40).filter(residue.is_searchable),
    min_size=1,
    max_size=6,
)
_FILLER: Final = st.binary(max_size=24) | st.lists(st.sampled_from([0, 97, 98])).map(bytes)


def _written(value: str) -> list[bytes]:
    texts = (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    encodings = ("utf-8", "utf-16-le", "utf-16-be")
    return [text.encode(encoding) for text in texts for encoding in encodings]


def _holds(region: bytes, value: str) -> bool:
    """Whether 12 bytes of a value, or all of a shorter form, stand in a region: byte by byte.

    Around a region there are zeros, which are half of a character in UTF-16.
    """
    region = bytes(8) + region + bytes(8)
    for form in _written(value):
        length = min(residue.PIECE, len(form))
        if length >= residue.SHORTEST and any(
            form[at : at + length] in region for at in range(len(form) - length + 1)
        ):
            return True
    return False


@st.composite
def _regions(draw: st.DrawFn, values: list[str]) -> list[bytes]:
    """Returns regions, some of which hold parts of values between other bytes."""
    regions = []
    for _ in range(draw(st.integers(1, 8))):
        region = draw(_FILLER)
        if draw(st.booleans()):
            form = draw(st.sampled_from(_written(draw(st.sampled_from(values)))))
            begin = draw(st.integers(0, len(form)))
            region += form[begin : begin + draw(st.integers(6, 40))] + draw(_FILLER)
        regions.append(region)
    return regions


@settings(max_examples=count(400, 5_000), deadline=None)
@given(st.data())
def test_the_search_finds_what_a_look_at_every_byte_finds(data: st.DataObject) -> None:
    """A value is found of which a piece is left, in any form and place, and no other."""
    values = data.draw(_VALUES)
    regions = data.draw(_regions(values))
    left = {value for value in values if any(_holds(region, value) for region in regions)}
    for value in values:
        alone = residue.ResidueSearch([value], lambda _piece: False)
        alone.run(regions)
        assert bool(alone.residue) == (value in left)
    together = residue.ResidueSearch(values, lambda _piece: False)
    together.run(regions)
    # Of values that share a piece, one is enough to have it removed.
    assert bool(together.residue) == bool(left)
    assert {values[place] for place in together.residue} <= left
