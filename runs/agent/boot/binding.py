"""A workspace that was started before it is known whose it will be, and `agent bind`.

Its configuration says no more than `{"version": 1, "unbound": true}`. PID 1 then waits, serves
calls, and has in memory what later calls need. `bind` puts the configuration in the place of the
first one, once and for all, and wakes PID 1, which boots as it would have at its start.

Exit codes of `bind`: 0 bound, or bound to the same run already; 2 the document is refused; 3 it
could not be kept, and nothing has changed; 4 this is another run's workspace.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import sys
from typing import Any, Dict, Optional, Tuple

from ..config import MAX_BYTES, Config, ConfigError, load, parse, read_json
from ..process.signals import STOPPING
from ..status_command import show
from ..status_file import FILE_NAME, StatusFile
from .supervisor import Supervisor

PHASE = "unbound"
EXIT_REFUSED = 2
EXIT_NOT_KEPT = 3
EXIT_BOUND_ALREADY = 4

_MARKERS = "adopted"
_MARKER = re.compile(r"\d{1,9}-[0-9a-f]{32}")


def is_unbound(config_path: str) -> bool:
    """Whether the workspace waits to be bound; raises ConfigError."""
    value = read_json(config_path)
    return isinstance(value, dict) and value.get("unbound") is True


def await_binding(config_path: str, status: StatusFile, supervisor: Supervisor) -> Optional[int]:
    """Wait until the workspace is bound; returns the signal that it is to stop for, if one came."""
    if not is_unbound(config_path):
        return None
    _prepare()
    # Before it says so: from then on it may be bound.
    before = _identity(config_path)
    status.write(PHASE)
    while _identity(config_path) == before:
        for number in supervisor.turn():
            if number in STOPPING:
                return number
    return None


def bind(config_path: str, state_directory: str, wait: float) -> int:
    """Read what the workspace is to be from stdin; prints the status, as `status --wait` does."""
    os.umask(0o077)
    try:
        content = sys.stdin.buffer.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"the document is larger than {MAX_BYTES} bytes")
        document, config, marker = _parse(content)
        if not _bind(config_path, document, config, marker):
            return _fail("this workspace is bound to another run", EXIT_BOUND_ALREADY)
        _wake(state_directory)
    except (ConfigError, ValueError, RecursionError) as error:
        return _fail(str(error), EXIT_REFUSED)
    except OSError as error:
        return _fail(f"the configuration cannot be kept: {error.strerror}", EXIT_NOT_KEPT)
    show(state_directory, wait, passing=(PHASE,))
    return 0


def _prepare() -> None:
    """Have what the first calls would otherwise import while somebody waits for them."""
    from .callers import import_for

    for subcommand in ("exec", "tail"):
        import_for(subcommand)


def _parse(content: bytes) -> Tuple[Dict[str, Any], Config, str]:
    value = json.loads(content)
    if not isinstance(value, dict) or set(value) != {"version", "marker", "config"}:
        raise ConfigError("/ must have version, marker and config")
    marker = value["marker"]
    if value["version"] != 1 or not isinstance(marker, str) or not _MARKER.fullmatch(marker):
        raise ConfigError("/version must be 1 and /marker an attempt and a token")
    return value["config"], parse(value["config"]), marker


def _bind(config_path: str, document: Dict[str, Any], config: Config, marker: str) -> bool:
    """Put the configuration in its place; False when another run's is there."""
    folder = os.open(os.path.dirname(config_path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Two launches of one run may do this at once.
        fcntl.flock(folder, fcntl.LOCK_EX)
        unbound = is_unbound(config_path)
        if not unbound and load(config_path).run_id != config.run_id:
            return False
        _mark(folder, marker)
        if unbound:
            name = os.path.basename(config_path)
            _write(folder, f"{name}.new", json.dumps(document).encode())
            os.rename(f"{name}.new", name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)
    return True


def _mark(folder: int, marker: str) -> None:
    """Say that a launch relies on this container; it looks whether that was in time."""
    try:
        os.mkdir(_MARKERS, 0o700, dir_fd=folder)
    except FileExistsError:
        pass
    markers = os.open(
        _MARKERS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
    )
    try:
        _write(markers, marker, b"")
    finally:
        os.close(markers)


def _write(folder: int, name: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)


def _wake(state_directory: str) -> None:
    """Have the process that waits look again."""
    with open(os.path.join(state_directory, FILE_NAME), "rb") as file:
        pid = json.load(file)["process"]["pid"]
    os.kill(int(pid), signal.SIGCHLD)


def _identity(path: str) -> Tuple[int, int]:
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns


def _fail(message: str, code: int) -> int:
    print(f"agent: {message}", file=sys.stderr)
    return code
