"""Child processes that start in milliseconds: they are forked from a process that is warm.

Python's `forkserver` is one for each test process, and so is what it has imported: `warm.py`.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_HERE: Final = str(Path(__file__).parent)


def context() -> ForkServerContext:
    """Returns the context in which to make processes and what they talk through."""
    _CONTEXT.set_forkserver_preload(["warm"])
    before = os.environ.get("PYTHONPATH")
    # The server does not take over the path of modules (Python 3.11).
    os.environ["PYTHONPATH"] = os.pathsep.join([_HERE, *filter(None, [before])])
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return _CONTEXT
