"""What one run is to execute and how it is recorded: the JSON given to `exec` and `session`.

Parsed as strictly as the configuration: unknown, missing and ill-typed members are refused by
their JSON pointer.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Dict, NamedTuple, Optional, Tuple, Union

from ..strict import ConfigError, Members, environment, is_text

MAX_BYTES = 32 * 1024 * 1024
_ONE_SHOT_VERSION = 1
_SESSION_VERSION = 2
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
    """The terminal that a program gets."""

    columns: int
    rows: int
    term: str


class Program(NamedTuple):
    """One program of a run. `stdin` None: its input, if it has any, comes from the client.

    `more_input`: more comes behind `stdin`, from whoever gives it to the run. `kind` and `channel`
    say in the record what a client of a session has asked for.
    """

    argv: Tuple[str, ...]
    env: Dict[str, str]
    stdin: Optional[bytes] = None
    has_input: bool = True
    more_input: bool = False
    terminal: Optional[TerminalSpec] = None
    kind: Optional[str] = None
    channel: int = 0


class RunSpec(NamedTuple):
    """One run. `cwd` None means the workspace's working directory; `time_seconds` None no limit.

    `program` is the one of a one-shot run. Without `record` nothing is recorded.
    """

    run_id: str
    mode: str
    cwd: Optional[str]
    env: Dict[str, str]
    grace_seconds: float
    secrets: Tuple[bytes, ...]
    record: Optional[RecordSpec]
    time_seconds: Optional[float] = None
    program: Optional[Program] = None
    origin: Optional[Dict[str, Union[str, int]]] = None


def parse_one_shot(content: bytes) -> RunSpec:
    """The spec of `exec`; raises ConfigError for the first fault."""
    top = _top(content, _ONE_SHOT_VERSION)
    spec = _spec(top, "one-shot")
    argv, stdin = parse_argv(top), _bytes(top, "stdin")
    more = top.has("moreInput") and top.flag("moreInput")
    terminal = parse_terminal(top) if top.has("pty") else None
    has_input = stdin is not None or more
    spec = spec._replace(
        program=Program(argv, {}, stdin, has_input, more_input=more, terminal=terminal),
        time_seconds=_optional_seconds(top, "timeSeconds"),
        record=_record(top.take("record"), top.pointer("record")),
    )
    top.finish()
    return spec


def parse_interactive(content: bytes) -> RunSpec:
    """The spec of `session`; raises ConfigError for the first fault."""
    top = _top(content, _SESSION_VERSION)
    top.choice("mode", ["interactive"])
    spec = _spec(top, "interactive")
    record = top.take("record")
    if record is not None:
        spec = spec._replace(record=_record(record, top.pointer("record")))
    origin = top.take("origin")
    if origin is not None:
        spec = spec._replace(origin=_origin(origin, top.pointer("origin")))
    top.finish()
    return spec


def cells(value: object) -> bool:
    """Whether this is a width or height that a terminal can have."""
    return type(value) is int and 0 < value <= _MAX_CELLS


def parse_object(content: bytes, what: str) -> Members:
    """A JSON object, whose members are then taken; raises ConfigError."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what} is not JSON: {error}") from None
    return Members(value, "")


def parse_terminal(top: Members) -> Optional[TerminalSpec]:
    """The member `pty`: a terminal, or null for pipes."""
    value = top.take("pty")
    if value is None:
        return None
    members = Members(value, top.pointer("pty"))
    terminal = TerminalSpec(
        columns=_cells(members, "columns"),
        rows=_cells(members, "rows"),
        term=members.optional("term") or _DEFAULT_TERM,
    )
    members.finish()
    return terminal


def _top(content: bytes, version: int) -> Members:
    top = parse_object(content, "the spec")
    given = top.take("version")
    if type(given) is not int or given != version:
        top.refuse("version", f"must be {version}")
    return top


def _spec(top: Members, mode: str) -> RunSpec:
    run_id = top.word("runId")
    if not _UUID.fullmatch(run_id):
        top.refuse("runId", "must be a UUID in lower case")
    return RunSpec(
        run_id=run_id,
        mode=mode,
        cwd=top.optional("cwd"),
        env=environment(top),
        grace_seconds=top.seconds("graceSeconds"),
        secrets=tuple(text.encode() for text in top.texts("secrets")),
        record=None,
    )


def _origin(value: object, pointer: str) -> Dict[str, Union[str, int]]:
    members = Members(value, pointer)
    origin: Dict[str, Union[str, int]] = {
        "address": members.text("address"),
        "port": members.count("port", 65535),
    }
    for name in ("client", "user", "key"):
        origin[name] = members.text(name)
    members.finish()
    return origin


def _record(value: object, pointer: str) -> RecordSpec:
    members = Members(value, pointer)
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


def parse_argv(top: Members) -> Tuple[str, ...]:
    """The member `argv`: a program and its arguments."""
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


def _cells(top: Members, name: str) -> int:
    value = top.take(name)
    if not cells(value):
        top.refuse(name, f"must be a whole number between 1 and {_MAX_CELLS}")
    return int(value)
