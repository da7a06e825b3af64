"""What one run is to execute and how it is recorded: the JSON given to `exec` and `session`.

Parsed as strictly as the configuration: unknown, missing and ill-typed members are refused by
their JSON pointer.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Dict, NamedTuple, Optional, Tuple

from .strict import ConfigError, Members, environment, is_text

VERSION = 1
MAX_BYTES = 32 * 1024 * 1024
_MAX_CELLS = 65535
_DEFAULT_TERM = "xterm-256color"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class RecordSpec(NamedTuple):
    """How the run is recorded. `input`: `off`, `masked` or `full`."""

    policy: str
    input: str
    spool_bytes: int
    segment_bytes: int
    files: bool
    network: bool
    processes: bool
    patch_bytes: int
    max_files: int


class TerminalSpec(NamedTuple):
    """The terminal that a session gets."""

    columns: int
    rows: int
    term: str


class RunSpec(NamedTuple):
    """One run. `cwd` None means the workspace's working directory; `time_seconds` None no limit."""

    run_id: str
    mode: str
    argv: Tuple[str, ...]
    cwd: Optional[str]
    env: Dict[str, str]
    stdin: Optional[bytes]
    time_seconds: Optional[float]
    grace_seconds: float
    secrets: Tuple[bytes, ...]
    record: RecordSpec
    terminal: Optional[TerminalSpec] = None


def parse_one_shot(content: bytes) -> RunSpec:
    """The spec of `exec`; raises ConfigError for the first fault."""
    top = _top(content)
    spec = _spec(top, "one-shot")
    top.finish()
    return spec


def parse_interactive(content: bytes) -> RunSpec:
    """The spec of `session`; raises ConfigError for the first fault."""
    top = _top(content)
    top.choice("mode", ["interactive"])
    spec = _spec(top, "interactive")
    if spec.stdin is not None:
        top.refuse("stdin", "must be null: the input of a session comes through its channel")
    terminal = TerminalSpec(
        columns=_cells(top, "columns", 80),
        rows=_cells(top, "rows", 24),
        term=top.optional("term") or _DEFAULT_TERM,
    )
    if top.flag("pty"):
        spec = spec._replace(terminal=terminal)
    top.finish()
    return spec


def cells(value: object) -> bool:
    """Whether this is a width or height that a terminal can have."""
    return type(value) is int and 0 < value <= _MAX_CELLS


def _top(content: bytes) -> Members:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the spec is not JSON: {error}") from None
    top = Members(value, "")
    version = top.take("version")
    if type(version) is not int or version != VERSION:
        top.refuse("version", f"must be {VERSION}")
    return top


def _spec(top: Members, mode: str) -> RunSpec:
    run_id = top.word("runId")
    if not _UUID.fullmatch(run_id):
        top.refuse("runId", "must be a UUID in lower case")
    return RunSpec(
        run_id=run_id,
        mode=mode,
        argv=_argv(top),
        cwd=top.optional("cwd"),
        env=environment(top),
        stdin=_bytes(top, "stdin"),
        time_seconds=_optional_seconds(top, "timeSeconds"),
        grace_seconds=top.seconds("graceSeconds"),
        secrets=tuple(text.encode() for text in top.texts("secrets")),
        record=_record(top),
    )


def _record(top: Members) -> RecordSpec:
    members = Members(top.take("record"), top.pointer("record"))
    record = RecordSpec(
        policy=members.choice("policy", ["block", "drop"]),
        input=members.choice("input", ["off", "masked", "full"]),
        spool_bytes=members.count("spoolBytes", 1 << 40),
        segment_bytes=members.count("segmentBytes", 1 << 40),
        files=members.flag("files"),
        network=members.flag("network"),
        processes=members.flag("processes"),
        patch_bytes=members.count("patchBytes", 1 << 31),
        max_files=members.count("maxFiles", 1 << 31),
    )
    members.finish()
    return record


def _argv(top: Members) -> Tuple[str, ...]:
    values = top.items("argv")
    for index, value in enumerate(values):
        if not is_text(value):
            top.refuse(f"argv/{index}", "must be text without NUL")
    if not values or not values[0]:
        top.refuse("argv", "must begin with the name of a program")
    return tuple(values)


def _bytes(top: Members, name: str) -> Optional[bytes]:
    value = top.take(name)
    if value is None:
        return None
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        top.refuse(name, "must be null or base64")


def _optional_seconds(top: Members, name: str) -> Optional[float]:
    value = top.take(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value < 1e9:
        top.refuse(name, "must be null or a positive number of seconds")
    return float(value)


def _cells(top: Members, name: str, default: int) -> int:
    value = top.take(name)
    if value is None:
        return default
    if not cells(value):
        top.refuse(name, f"must be null or a whole number between 1 and {_MAX_CELLS}")
    return int(value)
