"""Nothing of one owner is found in a container that waits, nor in one that another owner takes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from docker.models.containers import Container

from tests.e2e.canaries import MARKER, found_in
from tests.workspaces.conftest import Launcher, step
from tests.workspaces.runtimes.test_warm_members import taking, warmed
from workspaces.runtimes.base import LaunchedRuntime

pytestmark = pytest.mark.docker

LEAVE = f"""
for place in /tmp /var/tmp /dev/shm "$HOME" /workspace /workspace/repo; do
    echo {MARKER} > "$place/{MARKER}"
done
python3 - <<'PROGRAM'
import mmap, multiprocessing.shared_memory, os, socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0{MARKER}")
listener.listen()
file = socket.socket(socket.AF_UNIX)
file.bind("/tmp/{MARKER}.sock")
file.listen()
kept = multiprocessing.shared_memory.SharedMemory("shared-{MARKER}", create=True, size=4096)
kept.buf[:13] = b"{MARKER}"
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if os.fork() == 0:
    os.setsid()
    while True:
        try:
            udp.sendto(b"{MARKER}", ("255.255.255.255", 9999))
        except OSError:
            pass
        time.sleep(1)
os._exit(0)
PROGRAM
exec -a {MARKER} sleep 600 > /dev/null 2>&1 &
"""
"""Leaves the marker in files, shared memory, sockets, a process's name and its environment."""

IN_MEMORY = ("/dev/shm", "/dev/mqueue", "/run/svc", "/run", "/tmp")
"""What is, or may be, a file system of its own, so that the engine does not tell of changes."""
LARGEST_MAPPING = 1 << 28


def found_by_root(launcher: Launcher, resource_id: str) -> set[str]:
    """Every place in a container where the machine's root finds a canary."""
    container = launcher.client.containers.get(resource_id)
    first = Path(f"/proc/{container.attrs['State']['Pid']}")
    found = set(_in_files(container, first / "root"))
    for part in ("unix", "tcp", "udp", "arp", "route"):
        if found_in((first / "net" / part).read_bytes()):
            found.add(f"net/{part}")
    for row in container.top(ps_args="-eo pid")["Processes"]:
        # What answered a call of ours may end now.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update(_in_process(Path(f"/proc/{row[0]}")))
    return found


def _in_files(container: Container, root: Path) -> Iterator[str]:
    changed = [str(each["Path"]) for each in container.diff()]
    for place in IN_MEMORY:
        for folder, folders, files in os.walk(root / place[1:]):
            inside = f"/{Path(folder).relative_to(root)}"
            changed += [f"{inside}/{name}" for name in folders + files]
    for path in changed:
        if found_in(path.encode("utf-8", "surrogateescape")):
            yield path
        # Not through links: what they say is in a container is somewhere else here.
        with contextlib.suppress(OSError):
            opened = os.open(root / path[1:], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(opened, "rb") as file:
                if found_in(file.read()):
                    yield path


def _in_process(process: Path) -> Iterator[str]:
    name = (process / "comm").read_text().strip()
    for part in ("environ", "cmdline", "comm"):
        if found_in((process / part).read_bytes()):
            yield f"{part} of a process"
    with (process / "mem").open("rb", 0) as memory:
        for line in (process / "maps").read_text().splitlines():
            begin, end = (int(each, 16) for each in line.split()[0].split("-"))
            with contextlib.suppress(OSError, OverflowError):
                memory.seek(begin)
                if end - begin < LARGEST_MAPPING and found_in(memory.read(end - begin)):
                    yield f"memory of {name}"


def full_of_canaries(launcher: Launcher) -> LaunchedRuntime:
    """A workspace of an owner who leaves secrets everywhere."""
    account = {"id": str(uuid4()), "provider": "generic", "name": "KEY", "secret": MARKER * 3}
    document = json.dumps({"version": 1, "accounts": [account]}).encode()
    boots = {
        "credentials": True,
        "env": {"MINE": f"{MARKER} {MARKER}"},
        "secrets": [f"{MARKER} masked"],
        "startup": [step(LEAVE)],
    }
    return launcher.launch(
        taking(launcher, warmed(launcher), boot=boots, credentials=lambda: document)
    )


def test_nothing_of_an_owner_is_in_any_other_member(launcher: Launcher) -> None:
    before, taken_later = warmed(launcher), warmed(launcher)
    theirs = full_of_canaries(launcher)
    places = found_by_root(launcher, theirs.resource_id)
    expected = {"/tmp", "/dev/shm", "/home/workspace", "/workspace/repo"}
    assert expected <= {str(Path(place).parent) for place in places}
    assert {"net/unix", "environ of a process", "cmdline of a process"} <= places
    assert any(place.startswith("memory of ") for place in places)

    after = warmed(launcher)
    ours = launcher.launch(taking(launcher, taken_later))
    waiting = [
        str(launcher.client.containers.get(f"svc-{each.member_id}").id) for each in (before, after)
    ]
    for resource_id in (*waiting, ours.resource_id):
        assert found_by_root(launcher, resource_id) == set()
    assert launcher.adapter.remove(UUID(theirs.reference.removeprefix("svc-")))
    for resource_id in (*waiting, ours.resource_id):
        assert found_by_root(launcher, resource_id) == set()
