"""Parameters of the hot statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import bindparam

if TYPE_CHECKING:
    from sqlalchemy import BindParameter
    from sqlalchemy.types import TypeEngine

PREFIX: Final = "given_"


def given(name: str, type_: TypeEngine[Any] | None = None) -> BindParameter[Any]:
    """A parameter; the prefix is there because Core keeps the names of columns for itself."""
    return bindparam(PREFIX + name, type_=type_)
