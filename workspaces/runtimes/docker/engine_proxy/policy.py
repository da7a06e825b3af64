"""What may pass the proxy: a few requests, each taken apart and written anew.

Nothing of a client's request is passed on as it came. A target that is not exactly one of these
shapes is refused, so there is no second reading of it (escapes, dots, doubled slashes) to be had.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import parse_qsl, quote

from workspaces.runtimes import boot

MAX_PATH_CHARACTERS = 4096
MAX_COMMAND_BYTES = 64 * 1024
_CONTAINER = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
_EXEC = r"[0-9a-f]{64}"
_VERSION = r"(?P<version>/v1\.[1-9][0-9]{0,2})?"
_SIZE = re.compile(r"[0-9]{1,5}\Z")
# What clients send and the engine takes for "not wanted".
_MUST_BE_EMPTY = frozenset(
    {"Privileged", "Env", "WorkingDir", "DetachKeys", "detachKeys", "Detach"}
)
_SWITCHES = ("AttachStdin", "AttachStdout", "AttachStderr", "Tty")


class Action(Enum):
    """What a request wants."""

    PING = "ping"
    VERSION = "version"
    INFO = "info"
    CONTAINER = "container"
    ARCHIVE = "archive"
    EXEC_CREATE = "exec create"
    EXEC_START = "exec start"
    EXEC_INSPECT = "exec inspect"
    EXEC_RESIZE = "exec resize"


class Refused(Exception):
    """The proxy does not do that; ``status`` and the text are the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request that is one of ours, if what it names belongs to this installation.

    ``subject`` is the container or the exec; ``rest`` ends the target that the engine is asked.
    """

    action: Action
    version: str
    subject: str = ""
    rest: str = ""
    body: bytes = b""

    def target(self, subject: str | None = None) -> str:
        """Return what to ask the engine; ``subject`` in place of the name that was given."""
        named = self.subject if subject is None else subject
        return self.version + _TARGETS[self.action].format(subject=named) + self.rest


_SHAPES: tuple[tuple[str, Action, re.Pattern[str]], ...] = tuple(
    (method, action, re.compile(_VERSION + path + r"\Z"))
    for method, action, path in (
        ("GET", Action.PING, "/_ping"),
        ("GET", Action.VERSION, "/version"),
        ("GET", Action.INFO, "/info"),
        ("GET", Action.CONTAINER, rf"/containers/(?P<subject>{_CONTAINER})/json"),
        ("GET", Action.ARCHIVE, rf"/containers/(?P<subject>{_CONTAINER})/archive"),
        ("POST", Action.EXEC_CREATE, rf"/containers/(?P<subject>{_CONTAINER})/exec"),
        ("POST", Action.EXEC_START, rf"/exec/(?P<subject>{_EXEC})/start"),
        ("GET", Action.EXEC_INSPECT, rf"/exec/(?P<subject>{_EXEC})/json"),
        ("POST", Action.EXEC_RESIZE, rf"/exec/(?P<subject>{_EXEC})/resize"),
    )
)
_TARGETS = {
    Action.PING: "/_ping",
    Action.VERSION: "/version",
    Action.INFO: "/info",
    Action.CONTAINER: "/containers/{subject}/json",
    Action.ARCHIVE: "/containers/{subject}/archive",
    Action.EXEC_CREATE: "/containers/{subject}/exec",
    Action.EXEC_START: "/exec/{subject}/start",
    Action.EXEC_INSPECT: "/exec/{subject}/json",
    Action.EXEC_RESIZE: "/exec/{subject}/resize",
}


def parse_request(method: str, target: str, body: bytes) -> EngineRequest:
    """Return what the request wants. Raises ``Refused`` for everything the proxy has no use for."""
    path, question, query = target.partition("?")
    for known, action, shape in _SHAPES:
        if known == method and (found := shape.match(path)) is not None:
            return _understood(action, found, question + query, body)
    raise Refused(403, "The engine proxy does not allow this.")


def _understood(action: Action, found: re.Match[str], query: str, body: bytes) -> EngineRequest:
    parts = found.groupdict()
    rest, content = "", b""
    if action is Action.ARCHIVE:
        rest = _archive_query(query[1:])
    elif action is Action.EXEC_RESIZE:
        rest = _resize_query(query[1:])
    elif query:
        raise Refused(403, "The engine proxy accepts no options here.")
    if action is Action.EXEC_CREATE:
        content = _exec_create(_members(body))
    elif action is Action.EXEC_START:
        content = _exec_start(_members(body))
    elif body:
        raise Refused(403, "The engine proxy accepts no body here.")
    return EngineRequest(action, parts["version"] or "", parts.get("subject") or "", rest, content)


def belongs(container: Mapping[str, Any], instance_id: str) -> bool:
    """Whether a container, as the engine describes it, is a workspace of this installation.

    The installation's label alone is no proof: whatever is started from its images inherits it.
    """
    configuration = container.get("Config")
    labels = configuration.get("Labels") if isinstance(configuration, dict) else None
    return (
        isinstance(labels, dict)
        and labels.get("svc.instance") == instance_id
        and "svc.run" in labels
    )


def _archive_query(query: str) -> str:
    pairs = _pairs(query)
    path = pairs.get("path", "")
    if set(pairs) != {"path"} or not path.startswith("/") or "\0" in path:
        raise Refused(403, "The engine proxy accepts only one absolute path for an archive.")
    if len(path) > MAX_PATH_CHARACTERS:
        raise Refused(403, "The path is too long.")
    return f"?path={quote(path, safe='/')}"


def _resize_query(query: str) -> str:
    pairs = _pairs(query)
    if set(pairs) != {"h", "w"} or not all(map(_SIZE.match, pairs.values())):
        raise Refused(403, "A size is given as h and w.")
    return f"?h={pairs['h']}&w={pairs['w']}"


def _pairs(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=4
        )
    except ValueError as error:
        raise Refused(400, "The query is invalid.") from error
    if len(dict(pairs)) != len(pairs):
        raise Refused(400, "An option is given twice.")
    return dict(pairs)


def _members(body: bytes) -> dict[str, Any]:
    try:
        members = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "The body is not JSON.") from error
    if not isinstance(members, dict):
        raise Refused(400, "The body is not an object.")
    return members


def _exec_create(members: dict[str, Any]) -> bytes:
    """Return the body for an exec of the agent as root, which is all that is wanted of execs."""
    command = members.pop("Cmd", None)
    if (
        not isinstance(command, list)
        or not command
        or not all(isinstance(word, str) and "\0" not in word for word in command)
        or command[0] != boot.AGENT
    ):
        raise Refused(403, "The engine proxy only starts the agent of a workspace.")
    if sum(len(word) for word in command) > MAX_COMMAND_BYTES:
        raise Refused(403, "The command is too long.")
    if members.pop("User", None) != "root":
        raise Refused(403, "The agent is started as root.")
    # The client's name for the container; the one in the target counts.
    members.pop("Container", None)
    switches = {name: members.pop(name, False) for name in _SWITCHES}
    if not all(isinstance(value, bool) for value in switches.values()):
        raise Refused(400, "A switch must be true or false.")
    _require_empty(members)
    return json.dumps({**switches, "User": "root", "Cmd": command}).encode()


def _exec_start(members: dict[str, Any]) -> bytes:
    tty = members.pop("Tty", False)
    if not isinstance(tty, bool):
        raise Refused(400, "A switch must be true or false.")
    _require_empty(members)
    return json.dumps({"Detach": False, "Tty": tty}).encode()


def _require_empty(members: Mapping[str, Any]) -> None:
    for name, value in members.items():
        if name not in _MUST_BE_EMPTY or value:
            raise Refused(403, "The engine proxy does not accept this option of an exec.")
