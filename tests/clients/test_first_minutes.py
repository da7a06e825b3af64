"""The first minute of each client's README works as it is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.places import CLIENTS, python_path
from tests.docs.pages import read_page
from tests.stack.gateway_process import ApiProcess
from tests.stack.worker_process import environment
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.docker


def test_the_example_of_the_python_client_runs(api_process: ApiProcess, tmp_path: Path) -> None:
    page = read_page(CLIENTS / "python" / "README.md")
    (example,) = [block for block in page.blocks if block.language == "python"]
    program = tmp_path / "first.py"
    text = "\n".join(example.lines)
    assert "http://localhost:4000" in text
    program.write_text(text.replace("http://localhost:4000", api_process.url))
    done = subprocess.run(
        [sys.executable, str(program)],
        env=environment(PYTHONPATH=python_path()),
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == ["42", "", "0 True True"]
