"""Which test runs which lines of the changed modules, as seen while nothing is changed yet."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest


class ReachedLines:
    """A plugin that writes, for each test, the lines it ran: what programs ran is not seen."""

    def __init__(self, modules: set[str], path: Path) -> None:
        self._modules = {str(Path(module).resolve()): module for module in modules}
        self._path = path
        self._lines: set[tuple[str, int]] = set()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace the test with its fixtures, and the threads that it starts."""
        self._lines = set()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        yield
        sys.settrace(None)
        threading.settrace(None)
        with self._path.open("a") as file:
            file.write(json.dumps([item.nodeid, sorted(self._lines)]) + "\n")

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        module = self._modules.get(frame.f_code.co_filename)
        lines = self._lines

        def line(frame: FrameType, event: str, _: Any) -> Any:
            lines.add((str(module), frame.f_lineno))
            return line

        return module and line


def read(path: Path) -> dict[tuple[str, int], set[str]]:
    """Return the tests that ran each line, by module and number."""
    found: dict[tuple[str, int], set[str]] = {}
    for written in path.read_text().splitlines():
        name, lines = json.loads(written)
        for module, number in lines:
            found.setdefault((module, number), set()).add(name)
    return found
