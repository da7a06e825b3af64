"""What can be done to the files of a workspace, and asked about its ports."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any
from urllib.parse import urlencode
from uuid import UUID

from workspaces.files.call import FileCall
from workspaces.files.refusals import cut_off, unreachable
from workspaces.runtimes.base import LaunchError, RuntimeAdapter

PORTS_SECONDS = 10.0
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOCATION_CHARACTERS = 2048
"""A proxy that has little room for headers refuses the whole answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceFiles:
    """The files of a workspace that runs, for one request.

    ``run_id`` is its boot run, ``by`` the owner who asks where that is known, and ``request_id``
    finds the request in the logs; both are in the record. ``abandoned`` tells whether nobody waits
    for the answers any more. Methods raise what
    ``workspaces.files.refusals`` makes.
    """

    adapter: RuntimeAdapter
    run_id: UUID
    by: str
    request_id: str
    abandoned: Callable[[], bool] = lambda: False

    def open(self, action: str, path: bytes, **members: Any) -> FileCall:
        """Begin a call; see ``agent files`` for the actions and their members."""
        told = {"action": action, "path": _encoded(path), **members}
        told |= {"by": self.by, "request": self.request_id}
        try:
            return FileCall(self.adapter.open_agent(self.run_id, ("files",)), told, self.abandoned)
        except LaunchError as error:
            raise unreachable(error) from error

    def ask(self, action: str, path: bytes, **members: Any) -> dict[str, Any]:
        """Return the answer to a call that sends and takes nothing else."""
        with contextlib.closing(self.open(action, path, **members)) as call:
            return call.answer()

    def store(self, action: str, path: bytes, content: IO[bytes], **members: Any) -> dict[str, Any]:
        """Give all of ``content`` to a call, which takes it whole or not at all."""
        with contextlib.closing(self.open(action, path, **members)) as call:
            call.answer()
            return call.store(content)

    def write(self, path: bytes, content: IO[bytes], **members: Any) -> dict[str, Any]:
        """Store ``content`` as a file; return ``size``, ``sha256`` and ``created``."""
        told = self.store("write", path, content, **members)
        created = bool(told.get("created"))
        return {**_numbers(told, "size"), "sha256": hash_of(told), "created": created}

    def unpack(self, path: bytes, content: IO[bytes]) -> dict[str, Any]:
        """Put what a tar holds into a folder; return ``files`` and ``size``."""
        return _numbers(self.store("unpack", path, content), "files", "size")

    def stat(self, path: bytes, *, with_hash: bool) -> dict[str, Any]:
        """Return what lies at ``path``, as :func:`entry_members` shows it."""
        return entry_members(self.ask("stat", path, hash=with_hash).get("entry"))

    def list_folder(self, path: bytes, *, limit: int, after: bytes | None) -> dict[str, Any]:
        """Return a page of what is in a folder: ``items`` and ``next_cursor``."""
        members = {} if after is None else {"after": _encoded(after)}
        told = self.ask("list", path, limit=limit, **members)
        entries = told.get("entries")
        if not isinstance(entries, list):
            raise cut_off()
        return {
            "items": [entry_members(each) for each in entries],
            "next_cursor": told.get("next") or None,
        }

    def move(self, path: bytes, target: bytes, *, overwrite: bool) -> None:
        """Give something another name."""
        self.ask("move", path, to=_encoded(target), overwrite=overwrite)

    def ports(self) -> list[dict[str, Any]]:
        """Return what listens on TCP ports: port, address, and the process where it is known."""
        try:
            answer = self.adapter.call_agent(self.run_id, ("ports",), timeout=PORTS_SECONDS)
        except LaunchError as error:
            raise unreachable(error) from error
        try:
            return [_port_members(each) for each in json.loads(answer.stdout)["ports"]]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise cut_off() from None


def path_of(values: Mapping[str, Any], name: str = "path") -> bytes:
    """Return the bytes of the path in the members of a request; one of the two forms is there."""
    encoded = values.get(f"{name}_base64")
    return encoded if isinstance(encoded, bytes) else str(values[name]).encode()


def place_of(workspace_id: UUID, values: Mapping[str, Any]) -> str | None:
    """Return the URL's path and query of a file, as a request has named it; None: too long."""
    encoded = values.get("path_base64")
    named = {"pathBase64": _encoded(encoded)} if encoded else {"path": values["path"]}
    place = f"/v1/workspaces/{workspace_id}/files?{urlencode(named, safe='/')}"
    return place if len(place) <= _LOCATION_CHARACTERS else None


def _encoded(path: bytes) -> str:
    return base64.b64encode(path).decode("ascii")


def _name(encoded: object) -> tuple[str, str | None]:
    """Return a name as text, and as base64 where it is none."""
    raw = base64.b64decode(str(encoded), validate=True)
    try:
        return raw.decode(), None
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace"), base64.b64encode(raw).decode("ascii")


def entry_members(told: Any) -> dict[str, Any]:
    """Return what is shown of one thing; the workspace may have said anything."""
    try:
        name, name_base64 = _name(told["name"])
        target, target_base64 = _name(told["target"]) if "target" in told else (None, None)
        return {
            "name": name,
            "name_base64": name_base64,
            "type": str(told["type"]),
            "size": int(told["size"]),
            "mode": str(told["mode"]),
            "uid": int(told["uid"]),
            "gid": int(told["gid"]),
            "modified_at": moment(told["modifiedNs"]),
            "target": target,
            "target_base64": target_base64,
            "sha256": told.get("sha256"),
        }
    except (KeyError, TypeError, ValueError, OverflowError):
        raise cut_off() from None


def hash_of(told: Mapping[str, Any]) -> str:
    """Return the SHA-256 that the workspace names; it goes into headers, so it has to be one."""
    found = told.get("sha256")
    if not isinstance(found, str) or _SHA256.fullmatch(found) is None:
        raise cut_off()
    return found


def _numbers(told: Mapping[str, Any], *names: str) -> dict[str, int]:
    try:
        return {name: int(told[name]) for name in names}
    except (KeyError, TypeError, ValueError, OverflowError):
        raise cut_off() from None


def moment(nanoseconds: Any) -> datetime:
    """Return the time that a file has; one that no calendar knows is the first that it does."""
    try:
        return datetime.fromtimestamp(int(nanoseconds) / 1e9, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, tz=UTC)


def _port_members(told: Mapping[str, Any]) -> dict[str, Any]:
    pid = told.get("pid")
    return {
        "port": int(told["port"]),
        "address": str(told["address"]),
        "pid": int(pid) if pid is not None else None,
        "process": str(told["process"]) if told.get("process") else None,
    }
