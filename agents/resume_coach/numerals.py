"""Numbers, hours and week numbers as people write them, in English and in Chinese."""

import re

# fmt: off
_ENGLISH = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen", "twenty",
]
_ORDINALS = [
    "zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth",
    "ninth", "tenth",
]
# fmt: on
_CHINESE = {char: value for value, char in enumerate("零一二三四五六七八九")} | {"兩": 2, "两": 2}

_CHINESE_NUMBER = "[零一二兩两三四五六七八九十]+"
NUMBER = rf"(?:\d+(?:\.\d+)?|{_CHINESE_NUMBER}|\b(?:{'|'.join(reversed(_ENGLISH))})\b)"
"""Pattern of a number; `value_of` reads what it matches."""

_HOUR = r"(?:hours?|hrs?\b|h\b|個?小時|个?小时|個?鐘頭)"
HOURS = (
    rf"(?:(?P<whole>{NUMBER})(?P<half>\s*(?:and\s+a\s+half|個?半|个?半))?[\s-]*{_HOUR}(?P<half_after>半)?"
    rf"|(?P<half_only>half\s+an\s+hour|半\s*{_HOUR}))"
)
"""Pattern of a length of time in hours; `hours_of` reads its groups. For one use in a pattern."""

_WEEK = "(?:週|周|個?星期|个?星期|個?禮拜|个?礼拜)"
_AND = r"(?:\s*(?:,|、|，|&|\band\b|和|與|跟|及)\s*(?:and\s+)?)"
# "two hours in week two, and week three unchanged" gives hours to one week only.
_NOT_A_MEMBER = rf"(?!\s*(?:{_HOUR}|unchanged|stays?\b|as\s|不變|照舊|維持|一樣))"
_ORDINAL_WORD = rf"(?:{'|'.join(_ORDINALS[1:])}|\d+(?:st|nd|rd|th))"
WEEK_REFERENCE = (
    rf"(?:\bweeks?\s*{NUMBER}(?:{_AND}(?:weeks?\s*)?{NUMBER}{_NOT_A_MEMBER})*"
    rf"|\b{_ORDINAL_WORD}(?:{_AND}{_ORDINAL_WORD})*\s+weeks?\b"
    rf"|第\s*{NUMBER}\s*{_WEEK}?(?:{_AND}第?\s*{NUMBER}\s*{_WEEK}?{_NOT_A_MEMBER})*)"
)
"""Pattern of one or several named weeks, such as "week two", "weeks 2 and 3", "第二、三週"."""

WEEK_COUNT = rf"(?P<count>{NUMBER})[\s-]*(?:weeks?\b|{_WEEK})"
"""Pattern of a number of weeks, such as "three weeks" or "三週"."""

_ANY_NUMBER = re.compile(rf"{_ORDINAL_WORD}|{NUMBER}")


def value_of(text: str) -> float:
    """Returns the number written as `text`: digits, an English word or Chinese numerals.

    Raises:
      ValueError: If `text` is no number that `NUMBER` matches.
    """
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if text in _ENGLISH:
        return float(_ENGLISH.index(text))
    if text in _ORDINALS:
        return float(_ORDINALS.index(text))
    if ordinal := re.fullmatch(r"(\d+)(?:st|nd|rd|th)", text):
        return float(ordinal[1])
    if re.fullmatch(_CHINESE_NUMBER, text):
        return _chinese_value(text)
    raise ValueError(f"not a number: {text!r}")


def _chinese_value(text: str) -> float:
    """Returns the value of a Chinese numeral below 100, such as 十二 or 二十四."""
    tens, ten, ones = text.rpartition("十")
    if not ten:
        return float("".join(str(_CHINESE[char]) for char in text))
    return float((_CHINESE[tens] if tens else 1) * 10 + (_CHINESE[ones] if ones else 0))


def hours_of(match: re.Match[str]) -> float:
    """Returns the hours that a match of a pattern with `HOURS` in it has found."""
    if match["half_only"]:
        return 0.5
    return value_of(match["whole"]) + (0.5 if match["half"] or match["half_after"] else 0)


def weeks_of(reference: str) -> list[int]:
    """Returns the week numbers in a text that `WEEK_REFERENCE` matches."""
    return [int(value_of(match.group())) for match in _ANY_NUMBER.finditer(reference)]
