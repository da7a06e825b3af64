"""What takes long begins first, so that no process is left alone with it at the end."""

from __future__ import annotations

import subprocess
import sys

from tests.architecture.sources import ROOT
from tests.support.waiting import LONG_WAIT

COLLECT = """
import sys
import pytest

class OneOfSeveral:
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session):
        session.config.workerinput = {}

    def pytest_collection_finish(self, session):
        del session.config.workerinput

sys.exit(pytest.main(["-q", "-n0", "--collect-only", *sys.argv[1:]], plugins=[OneOfSeveral()]))
"""


def test_files_that_take_long_come_first_also_where_their_tests_commit() -> None:
    commits, light = "tests/e2e/test_transitions.py", "tests/accounts/test_resolution.py"
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, light, commits],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    order = list(dict.fromkeys(each.partition("::")[0] for each in lines if "::" in each))
    assert order == [commits, light]
