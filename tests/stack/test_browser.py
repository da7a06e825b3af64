"""The tests' browser starts in any test process."""

from __future__ import annotations

import os
from pathlib import Path

from tests.stack.browser import browser


def test_it_starts_however_many_files_are_open(tmp_path: Path) -> None:
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        # The next pipes have the numbers that the pipes of the browser were once copied to.
        while opened[-1] < 98:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        with browser(tmp_path) as page:
            assert page.console == []
    finally:
        for descriptor in opened:
            os.close(descriptor)
