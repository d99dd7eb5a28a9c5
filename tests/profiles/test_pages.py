"""The pages about profiles: their examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from servers import HANG_SECONDS

ROOT = Path(__file__).parents[2]
PAGES = ("docs/how-to/correct-and-forget.md", "docs/explanation/profile-or-memory.md")


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page: str, tmp_path: Path) -> None:
    """Each Python block of the page runs as it stands there."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        subprocess.run(
            [sys.executable, "-c", block],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            timeout=HANG_SECONDS,
            check=True,
        )
