"""A refused turn as an answer that a web server understands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from adk_memory_ext.errors import TurnError

_CONFLICT: Final = 409
"""https://www.rfc-editor.org/rfc/rfc9110#section-15.5.10"""


def answerable(error: TurnError) -> TurnError:
    """Returns an error of the same kind that `adk api_server` answers with 409 instead of 500.

    Outside a server, where Starlette is not loaded, it is `error` itself.
    """
    starlette = sys.modules.get("starlette.exceptions")
    if starlette is None:
        return error
    kind = type(error)
    says = {"__str__": Exception.__str__}
    conflict: Any = type(kind.__name__, (kind, starlette.HTTPException), says)
    answer: TurnError = conflict.__new__(conflict, str(error))
    starlette.HTTPException.__init__(answer, _CONFLICT, detail=str(error))
    answer.args = error.args
    return answer
