"""SQLite files as somebody else may have left them: random keys, sizes, updates and deletes."""

from __future__ import annotations

import random
import string
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

_ALPHABETS: Final = (
    string.ascii_letters + string.digits + " .,",
    "的一是不了人我在有他這中大來上國個到說們為子和你地出道也時年得就那要下以生",
    "🙂🎯🚀🧪🐍🌍🔥",
    'é"\\\n\tüß/abcdefghijklmnopqrstuvwxyz{}[]:',
)
_SIZES: Final = (3, 7, 12, 20, 40, 120, 400, 1_500)
_LARGE: Final = (3_000, 9_000)


@dataclass(frozen=True)
class FuzzedFile:
    """A file in which one of two owners is to be erased."""

    path: Path
    values: list[str]
    """What the owner to be erased has stored, ids and texts, long enough to be searched."""


def build(path: Path, seed: int, sqlite: Any, *, journal: str, huge: bool = False) -> FuzzedFile:
    """Makes a file with rows of `erased` and of `kept`; `secure_delete` is off."""
    rnd = random.Random(seed)  # noqa: S311  # the same file for the same seed
    values: set[str] = set()
    with closing(sqlite.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete=OFF")
        assert connection.execute("PRAGMA secure_delete").fetchone() == (0,)
        connection.execute(f"PRAGMA page_size={rnd.choice((512, 1024, 4096, 4096, 16384))}")
        connection.execute(f"PRAGMA auto_vacuum={rnd.choice((0, 0, 1, 2))}")
        if seed % 11 == 3:
            connection.execute(f"PRAGMA encoding='UTF-16{rnd.choice(('le', 'be'))}'")
        connection.execute(f"PRAGMA journal_mode={journal}").fetchall()
        without = " WITHOUT ROWID" if seed % 3 == 0 else ""
        connection.execute(
            f"CREATE TABLE row (owner TEXT, name TEXT, body TEXT,"
            f" PRIMARY KEY (owner, name)){without}"
        )
        connection.execute("CREATE INDEX by_body ON row (substr(body, 1, 60))")
        connection.execute("PRAGMA synchronous=OFF")
        sizes = _SIZES[: rnd.randrange(5, len(_SIZES) + 1)]
        names: list[tuple[str, str]] = []
        large = (200_000,) if huge else _LARGE
        for step in range(rnd.randrange(25, 90)):
            _step(connection, rnd, sizes if step % 20 else large, names, values)
    return FuzzedFile(path, sorted(value for value in values if len(value.encode()) >= 8))


def _step(
    connection: Any, rnd: random.Random, sizes: Any, names: list[Any], values: set[str]
) -> None:
    """Inserts, replaces or deletes a row."""
    action = rnd.random()
    if names and action < 0.15:
        owner, name = names.pop(rnd.randrange(len(names)))
        connection.execute("DELETE FROM row WHERE owner = ? AND name = ?", (owner, name))
        return
    body = _text(rnd, rnd.choice(sizes))
    if names and action < 0.4:
        owner, name = rnd.choice(names)
        sql = "UPDATE row SET body = ? WHERE owner = ? AND name = ?"
        connection.execute(sql, (body, owner, name))
    else:
        owner = rnd.choice(("erased", "kept"))
        name = f"{rnd.getrandbits(64):x}-{owner}-{len(values)}"
        names.append((owner, name))
        connection.execute("INSERT INTO row VALUES (?, ?, ?)", (owner, name, body))
    if owner == "erased":
        values |= {body, name}
    elif rnd.random() < 0.3:  # a neighbour whose value begins and ends like it
        similar = body[:20] + _text(rnd, 20) + body[-20:]
        connection.execute(
            "INSERT OR IGNORE INTO row VALUES (?, ?, ?)", ("kept", f"{name}~", similar)
        )


def _text(rnd: random.Random, size: int) -> str:
    alphabet = rnd.choice(_ALPHABETS)
    if rnd.random() < 0.2:  # the same words again and again
        return ("".join(rnd.choices(alphabet, k=max(1, size // 9))) * 10)[:size]
    return "".join(rnd.choices(alphabet, k=size))


def delete(file: FuzzedFile, sqlite: Any, *, journal: str, secure: bool = False) -> None:
    """Deletes the rows of `erased`, as plain ADK or we would."""
    with closing(sqlite.connect(file.path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA secure_delete={'ON' if secure else 'OFF'}").fetchall()
        connection.execute(f"PRAGMA journal_mode={journal}").fetchall()
        connection.execute("DELETE FROM row WHERE owner = 'erased'")
