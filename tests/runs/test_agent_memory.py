"""What the agent takes of the memory of a workspace in which nothing happens."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.models.containers import Container

from runs.agent_archive import agent_archive
from tests.runs.agent.booted import PYTHON, eventually
from tests.runs.agent.test_in_container import Machine, engine, executed, machine, settled
from tests.support.waiting import LONG_WAIT
from workspaces.runtimes.docker import agent_socket
from workspaces.runtimes.docker.agent_socket import SocketChannel

__all__ = ["engine", "machine"]

PACKAGE = Path(__file__).parents[2] / "runs" / "agent"
IDLE_KIB = 8 * 1024
AGENT = "/usr/lib/svc/agent"

COMPARED = """
import importlib, pkgutil, sys
import runs.agent
from runs.agent import typing_names

def described():
    found = {}
    for module in pkgutil.walk_packages(runs.agent.__path__, "runs.agent."):
        if module.name.endswith("__main__"):
            continue
        for name, value in sorted(vars(importlib.import_module(module.name)).items()):
            if isinstance(value, type) and hasattr(value, "_fields"):
                members = sorted(set(vars(value)) - {"__orig_bases__", "__annotations__"})
                made = (value._fields, value._field_defaults, value.__module__, members)
                found[module.name, name] = repr(made)
    return found

names = described()
for name in [name for name in sys.modules if name.startswith("runs.agent.")]:
    del sys.modules[name]
sys.modules["typing"] = typing_names
assert len(names) > 20
again = described()
differ = [(names[key], again.get(key)) for key in names if names[key] != again.get(key)]
assert not differ and len(names) == len(again), differ
"""

SHARED = """
import gc, sys
from runs.agent.boot.callers import import_for

import_for(sys.argv[1])
shared = set(sys.modules)
from runs.agent.execution import exec_command
from runs.agent.session import session

runs = ("runs.agent.execution.", "runs.agent.observe.", "runs.agent.record.")
missed = {name for name in set(sys.modules) - shared if name.startswith(runs)}
assert not missed, missed
assert "ctypes" in shared and gc.get_freeze_count() > 0
"""


@contextlib.contextmanager
def called(container: Container, *arguments: str) -> Iterator[SocketChannel]:
    """Have the first process of the container serve a call."""
    channel = agent_socket.call_soon(container, arguments)
    assert channel is not None
    with contextlib.closing(channel):
        yield channel


def processes_of(container: Container) -> list[int]:
    """Return the processes of a container as the machine numbers them."""
    return [int(row[0]) for row in container.top(ps_args="-eo pid")["Processes"]]


def memory_of(pids: list[int]) -> int:
    """Return the KiB that processes have for themselves; what they share counts once.

    Pages of files are left out: all workspaces of an image share them.
    """
    told = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(size) for text in told for size in re.findall(r"^Pss_Anon:\s+(\d+)", text, re.M))


@pytest.mark.docker
@pytest.mark.skipif(os.geteuid() != 0, reason="only root reaches the files of a container")
def test_an_idle_workspace_that_is_recorded_takes_eight_mib_at_most(machine: Machine) -> None:
    container = machine.start()
    code, said = executed(container, [AGENT, "compile"])
    assert code == 0, said
    container.restart(timeout=60)
    assert settled(container)["phase"] == "ready"
    container.reload()
    _, told = executed(container, ["ls", "/var/lib/svc/runs"])
    with called(container, "tail", told.decode().strip(), "--from", "1") as tail:
        assert tail.read(LONG_WAIT)

        eventually(lambda: len(processes_of(container)) == 1)
        pids = processes_of(container)

        assert memory_of(pids) <= IDLE_KIB, {pid: memory_of([pid]) for pid in pids}


def test_the_archive_does_not_load_what_only_type_checkers_use(tmp_path: Path) -> None:
    archive = tmp_path / "agent"
    archive.write_bytes(agent_archive())

    done = subprocess.run(
        [PYTHON, "-ISX", "importtime", str(archive), "status", "--state-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "agent.status_command" in loaded, done.stderr
    assert not loaded & {"typing", "_typing"}


@pytest.mark.parametrize("subcommand", ["exec", "session"])
def test_the_first_process_loads_what_runs_share_with_it(subcommand: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHARED, subcommand],
        cwd=PACKAGE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_named_tuples_are_the_same_without_the_module_of_types() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPARED],
        cwd=PACKAGE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_other_names_of_types_come_from_the_module_itself() -> None:
    script = (
        "import sys; from runs.agent import typing_names; sys.modules['typing'] = typing_names\n"
        "from typing import TypedDict, get_origin\n"
        "assert get_origin(list[int]) is list and sys.modules['typing'] is typing_names"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PACKAGE.parents[1], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
