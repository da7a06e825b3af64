"""Logs are JSON lines: an event in the past tense, facts as keys, the request's id."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.waiting import LONG_WAIT

ROOT = Path(__file__).resolve().parents[2]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def lines(code: str, **environment: str) -> list[dict[str, Any]]:
    """Return what ``code`` logs in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", f"import django; django.setup()\n{code}"],
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "SVC_LOG_FORMAT": "json",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=True,
    )
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_a_line_has_event_level_logger_time_and_facts() -> None:
    (line,) = lines("import structlog; structlog.get_logger('a.b').info('job_claimed', job_id='1')")
    at = line.pop("at")
    assert at.endswith("Z")
    assert line == {"event": "job_claimed", "level": "info", "logger": "a.b", "job_id": "1"}


def test_lines_of_other_libraries_have_the_same_shape() -> None:
    (line,) = lines("import logging; logging.getLogger('lib').warning('%s left', 3)")
    assert (line["event"], line["level"], line["logger"]) == ("3 left", "warning", "lib")


def test_an_exception_is_one_line() -> None:
    (line,) = lines(
        "import structlog\n"
        "try: 1/0\n"
        "except ZeroDivisionError: structlog.get_logger('a').exception('sum_failed')"
    )
    assert "ZeroDivisionError" in line["exception"]


def test_what_is_bound_appears_on_later_lines() -> None:
    first, second = lines(
        "import structlog\n"
        "log = structlog.get_logger('a')\n"
        "with structlog.contextvars.bound_contextvars(request_id='r'): log.info('x')\n"
        "log.info('y')"
    )
    assert first["request_id"] == "r"
    assert "request_id" not in second


def test_a_request_is_logged_once_with_its_id_and_outcome() -> None:
    (line,) = lines(
        "from django.test import Client\n"
        "Client(SERVER_NAME='localhost').get("
        "'/healthz?secret=hunter2', headers={'x-request-id': 'r-1'})"
    )
    assert line["event"] == "request_answered"
    assert (line["method"], line["path"], line["status"]) == ("GET", "/healthz", 200)
    assert line["request_id"] == "r-1"
    assert line["duration_ms"] >= 0
    assert "hunter2" not in str(line)


def test_every_line_names_an_event_and_has_what_varies_as_facts() -> None:
    """An operator searches for a name; a sentence changes with whoever writes it better."""
    tracked = subprocess.run(
        ["git", "ls-files", "*.py", ":!tests"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [
        f"{path}:{line} {event}"
        for path in tracked.stdout.split()
        for line, event in _logged(ast.parse((ROOT / path).read_text()))
        if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", event)
    ]
    assert names == []


def _logged(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield where a line is written, and the event that it is told as a constant."""
    for call in ast.walk(tree):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in LEVELS
            and re.fullmatch(r"(.*[._])?log(ger)?", ast.unparse(call.func.value))
            and call.args
            and isinstance(call.args[0], ast.Constant)
        ):
            yield call.lineno, str(call.args[0].value)


def test_the_level_is_a_setting() -> None:
    code = "import structlog; structlog.get_logger('a').info('x')"
    assert lines(code, SVC_LOG_LEVEL="WARNING") == []
    code = "import structlog; structlog.get_logger('a').debug('x')"
    assert lines(code) == []
    assert len(lines(code, SVC_LOG_LEVEL="DEBUG")) == 1
