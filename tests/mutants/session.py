"""A plugin of pytest that runs the collected tests against one changed module after the other.

Collecting and importing take longer than most tests. So one process collects, and forks for each
change. The child replaces the code of the functions that the change concerns, or the statement of
the database, and runs the tests until one fails, those first that run the changed lines.

Another change outside of functions, or one in a
function that is called at import, is seen only by a process that imports the module anew: there the
child starts pytest again.

The changed source is also in the file, for the programs that tests start.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.main import pytest_runtestloop as run_tests

from tests.mutants import reached
from tests.mutants.changes import Change, changed_texts, is_quick

PR_SET_CHILD_SUBREAPER = 36
CHILD = "MUTANTS_CHILD"
NOT_RUN = 70
"""The exit code of a child that did not get as far as the tests."""
CHANGED_AT = itertools.count(1_000_000_000)
"""Each change gets another modification time, so no compiled file of an earlier one fits."""


class Report:
    """What a child tells the process that started it: a line for each part of a test."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a line at once: a test may end the process."""
        late = report.failed and "Timeout (>" in report.longreprtext
        with self._path.open("a") as lines:
            lines.write(json.dumps([report.nodeid, report.outcome, report.duration, late]) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module of tests that cannot be imported has noticed the change."""
        if report.failed:
            with self._path.open("a") as lines:
                lines.write(json.dumps([report.nodeid, "failed", 0, False]) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the changes are, and where the results go."""
    parser.addoption("--mutants", help="a file of changes, as JSON")
    parser.addoption("--mutants-results", help="the file that gets a line for each change")


def pytest_configure(config: pytest.Config) -> None:
    """A process that was started anew for one change reports like a forked one."""
    if CHILD in os.environ:
        config.pluginmanager.register(Report(Path(json.loads(os.environ[CHILD])["report"])))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests that are likely to fail first."""
    if CHILD in os.environ:
        _use_existing_databases()
        arrange(items, **json.loads(os.environ[CHILD])["order"])


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests for each change, if there are any to be made."""
    path = session.config.getoption("--mutants")
    if not path:
        return None
    changes = [Change(**values) for values in json.loads(Path(path).read_text())]
    with Path(session.config.getoption("--mutants-results")).open("a", buffering=1) as results:
        for result in Runner(session).results(changes):
            results.write(json.dumps(result) + "\n")
    return True


def arrange(items: list[pytest.Item], first: list[str], limits: dict[str, float]) -> None:
    """Sort the tests, ``first`` in front, and give each its time limit in seconds."""
    rank = {name: place for place, name in enumerate(first)}
    items.sort(key=lambda item: rank.get(item.nodeid, len(rank)))
    for item in items:
        if item.nodeid in limits:
            item.add_marker(pytest.mark.timeout(limits[item.nodeid]))


class Runner:
    """Forks for each change, and knows which tests failed before."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._durations: Counter[str] = Counter()
        self._failed: dict[str, set[str]] = {}
        self._modules: set[str] = set()
        self._reached: dict[tuple[str, int], set[str]] = {}
        # Who ends this process ends the child as well.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        # What a changed program leaves behind becomes our child, and is killed.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def results(self, changes: list[Change]) -> Iterator[dict[str, Any]]:
        """Run the tests unchanged, then for each change; yield a result for each of these.

        Unchanged they run as they do with each change, too: what fails then tells of no change.
        """
        began = time.monotonic()
        self._modules = {change.module for change in changes}
        lines, status = self._run(None, limit=1200, is_first=True)
        failed = _failed(lines, status)
        for name, _, duration, _ in lines:
            self._durations[name] += duration
        total = time.monotonic() - began
        for nothing in [] if failed or not self._durations else _changing_nothing(changes):
            failed += _failed(*self._run(nothing, limit=60 + 4 * total))
        yield {"unchanged": total, "tests": len(self._durations), "failed": failed}
        if failed or not self._durations:
            return
        for change in changes:
            began = time.monotonic()
            lines, status = self._run(change, limit=60 + 4 * total)
            failed = _failed(lines, status)
            self._failed.setdefault(change.function, set()).update(failed)
            late = status is None or any(late for *_, late in lines)
            yield {
                "verdict": "late" if late else "caught" if failed else "survived",
                "by": failed[:1],
                "seconds": time.monotonic() - began,
            }

    def _order(self, change: Change | None) -> dict[str, Any]:
        """First those that run the changed lines, then those that failed before; quick ones first.

        Any other test still follows: what a test started, or a fixture did once, is not seen.
        """
        same = self._failed.get(change.function, set()) if change else set()
        running = self._running(change) if change else set()
        others = set().union(*self._failed.values()) - same
        wanted = (same & running, running - same, same - running, others - running)
        first = [name for names in wanted for name in sorted(names, key=self._duration)]
        limits = {name: max(20.0, 10 * taken) for name, taken in self._durations.items()}
        return {"first": first, "limits": limits}

    def _running(self, change: Change) -> set[str]:
        """Return the tests that run a line of what is changed."""
        last = change.line + change.before.count("\n")
        lines = ((change.module, number) for number in range(change.line, last + 1))
        return set().union(*(self._reached.get(line, set()) for line in lines))

    def _duration(self, name: str) -> float:
        return self._durations[name]

    def _run(
        self, change: Change | None, *, limit: float, is_first: bool = False
    ) -> tuple[list[Any], int | None]:
        """Run the tests in a child; return its lines and its exit code, None when it was late.

        The first child makes the databases, and runs all tests, whatever fails.
        """
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report"
            path = Path(change.module) if change else None
            source = path.read_bytes() if path else b""
            if path and change:
                path.write_bytes(change.apply(source))
                os.utime(path, times=(next(CHANGED_AT),) * 2)
            try:
                child = os.fork()
                if not child:
                    self._in_child(change, source, report, is_first=is_first)
                status = _wait(child, limit)
            finally:
                _kill_children()
                if path:
                    path.write_bytes(source)
                    os.utime(path, times=(next(CHANGED_AT),) * 2)
            lines = report.read_text().splitlines() if report.exists() else []
            if is_first and (seen := report.with_suffix(".lines")).exists():
                self._reached = reached.read(seen)
        if status == NOT_RUN:
            raise ChildProcessError(f"The tests were not run for {change}.")
        return [json.loads(line) for line in lines], status

    def _in_child(
        self, change: Change | None, source: bytes, report: Path, *, is_first: bool
    ) -> None:
        """Run the tests and end; never returns."""
        status = NOT_RUN
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            order = self._order(change)
            if change and not (
                replace_code(change, source) if change.function else replace_text(change, source)
            ):
                self._start_anew(order, report)
            if is_first:
                seen = reached.ReachedLines(self._modules, report.with_suffix(".lines"))
                self._session.config.pluginmanager.register(seen)
            else:
                _use_existing_databases()
            status = 1
            status = self._run_collected(order, report, stop_at_first=not is_first)
        finally:
            os._exit(status)

    def _run_collected(self, order: dict[str, Any], report: Path, *, stop_at_first: bool) -> int:
        session = self._session
        session.config.pluginmanager.register(Report(report))
        session.config.option.maxfail = int(stop_at_first)
        session.config.option.mutants = None
        arrange(session.items, **order)
        try:
            run_tests(session)
        except (session.Failed, session.Interrupted):
            return 1
        finally:
            session._setupstate.teardown_exact(None)
        return 0

    def _start_anew(self, order: dict[str, Any], report: Path) -> None:
        os.environ[CHILD] = json.dumps({"order": order, "report": str(report)})
        options = ["-x", "-s", "-q", "-p", "no:cacheprovider", "--reuse-db", "--rootdir=."]
        plugin = ["-p", "tests.mutants.session"]
        arguments = [sys.executable, "-m", "pytest", *options, *plugin, *self._session.config.args]
        os.execv(sys.executable, arguments)  # noqa: S606 # a list, as everywhere


def _failed(lines: list[Any], status: int | None) -> list[str]:
    """Return the tests that failed, in order; or how the process of the tests ended, if badly.

    A change may end it, too: nothing but 0 means that all passed.
    """
    names = [name for name, outcome, _, _ in lines if outcome == "failed"]
    ended = "" if status == 0 else "too late" if status is None else f"exit code {status}"
    return list(dict.fromkeys(names)) or list(filter(None, [ended]))


def _changing_nothing(changes: list[Change]) -> list[Change | None]:
    """Return what changes nothing, in each of the ways in which these changes are made."""
    sources = {change.module: Path(change.module).read_bytes() for change in changes}
    slow = [change for change in changes if not is_quick(change, sources[change.module])]
    at_import = [Change(change.module, 1, "", 0, 0, "", "") for change in slow[:1]]
    return [*([] if len(slow) == len(changes) else [None]), *at_import]


def replace_code(change: Change, source: bytes) -> bool:
    """Replace the code of the functions of a loaded module; False where that is not possible."""
    path = str(Path(change.module).resolve())
    old, new = (
        list(_codes(compile(text, path, "exec", dont_inherit=True)))
        for text in (source, change.apply(source))
    )
    if [code.co_qualname for code in old] != [code.co_qualname for code in new]:
        return False
    fresh = {
        (before.co_qualname, before.co_firstlineno): after
        for before, after in zip(old, new, strict=True)
    }
    replaced = set()
    gc.unfreeze()  # what was frozen is not among the objects
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == path:
            code = function.__code__
            after = fresh.get((code.co_qualname, code.co_firstlineno))
            if after is None or len(after.co_freevars) != len(code.co_freevars):
                return False
            function.__code__ = after
            replaced.add(code.co_qualname)
    parts = change.function.split(".")
    return any(".".join(parts[:end]) in replaced for end in range(1, len(parts) + 1))


def replace_text(change: Change, source: bytes) -> bool:
    """Replace a text that only functions of a loaded module read; False where it is none."""
    changed = changed_texts(change, source)
    path = str(Path(change.module).resolve())
    loaded = [each for each in sys.modules.values() if getattr(each, "__file__", None) == path]
    for module in loaded:
        vars(module).update(changed)
    return bool(loaded and changed)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _use_existing_databases() -> None:
    """Have the test databases used as the first run left them, without a look at migrations.

    Empty, whatever a process has left there that was killed.
    """
    from django.db import connections
    from django.test import utils

    def use(**_: Any) -> list[Any]:
        from tests.support.empty_tables import empty

        for connection in connections.all():
            connection.close()
            connection.settings_dict["NAME"] = connection.creation._get_test_db_name()  # type: ignore[attr-defined]
        empty()
        return []

    utils.setup_databases = lambda *_, **__: use()


def _wait(child: int, limit: float) -> int | None:
    """Return the child's exit code; None when it took too long and was killed."""
    deadline = time.monotonic() + limit
    asked = False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return None if asked else os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            # First asked, so that what the tests set up is removed; then killed.
            os.kill(child, signal.SIGKILL if asked else signal.SIGTERM)
            asked, deadline = True, deadline + 20
        time.sleep(0.01)


def _kill_children() -> None:
    """Kill and reap what is left of a child: its orphans have become our children."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while pids := children.read_text().split():
        for pid in pids:
            os.kill(int(pid), signal.SIGKILL)
            os.waitpid(int(pid), 0)
