"""The same log and the same policy give the same request in any process, byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import replay
from backends import count
from histories import random_log
from servers import HANG_SECONDS

HERE: Final = Path(__file__).parent
LOGS: Final = count(40, 400)


def replayed_elsewhere(folder: Path, hash_seed: int) -> dict[str, Any]:
    """Returns what a new process makes of the logs; its sets have an order of their own."""
    told = subprocess.run(
        [sys.executable, replay.__file__, str(folder)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(HERE)},
        check=True,
        capture_output=True,
        timeout=HANG_SECONDS,
    )
    result: dict[str, Any] = json.loads(told.stdout)
    return result


async def test_a_new_process_sends_the_same_bytes(tmp_path: Path) -> None:
    """Requests and reports of two processes, and of this one, are the same."""
    here = {}
    for seed in range(LOGS):
        events = random_log(seed, 40)
        dumped = [event.model_dump(mode="json") for event in events]
        (tmp_path / f"{seed}.json").write_text(json.dumps(dumped))
        here[str(seed)] = await replay.replayed(events)
    first, second = (replayed_elsewhere(tmp_path, seed) for seed in (1, 2))
    assert first == second
    assert first == here
    cut = [log for log in here.values() if "over budget" in log[-1]]
    assert len(cut) > LOGS / 4
