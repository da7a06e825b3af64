"""A record as events of the Open Cybersecurity Schema Framework (OCSF), one JSON object a line.

Starts and ends of processes, files, connections and sessions become events of the schema's own
classes; spans that the record does not hold become base events at the end. Output, terminals and
what the recorder says of itself have no class and are left out. ``metadata.uid`` names the event
of the timeline that a line was made from.
"""

from __future__ import annotations

import ipaddress
import json
import posixpath
import shlex
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar

from django.conf import settings

from runs.agent.record.frames import KIND_NAMES, Kind
from runs.models import Run, RunHead, RunLoss, RunProcess
from runs.record.export_format import EventRow
from runs.record.ingest import meta as metas
from runs.record.reading.export import exit_code
from runs.record.reading.log import events
from runs.record.reading.summaries import summary

VERSION = "1.8.0"
BASE, FILE, PROCESS, AUTHENTICATION, NETWORK, SSH = 0, 1001, 1007, 3002, 4001, 4007
OTHER = 99

_BATCH = 100
_INFORMATIONAL, _MEDIUM = 1, 3
_VIRTUAL = 6
_PUBLIC_KEY = 6
_INBOUND = 1
_OUTBOUND = 2
_OPENED, _REFUSED = 1, 5
_CHANGES = {"added": 1, "modified": 3, "deleted": 4, "renamed": 5, "metadataChanged": 6}
_ACCESSES = {
    "read": 2, "list": 2, "pack": 2, "stat": 8, "write": 3, "unpack": 3, "mkdir": 1,
    "remove": 4, "move": 5,
}  # fmt: skip
_FILE_TYPES = {"file": 1, "directory": 2, "symlink": 7, "other": OTHER}
_PROTOCOLS = {"tcp": 6, "udp": 17}

Meta = Mapping[str, Any]
Members = dict[str, Any]


def ocsf(run: Run, head: RunHead) -> Iterator[bytes]:
    """Yield the events of the record as it stood at ``head``, in order, then what it lacks."""
    teller = _Teller(run)
    rows = events(run.number, last=head.last_sequence, kinds=_Teller.kinds)
    while batch := list(islice(rows, _BATCH)):
        numbers = {row.process_number for row in batch}
        known = RunProcess.objects.filter(run_number=run.number, process_number__in=numbers)
        teller.processes = {process.process_number: process for process in known}
        for row in batch:
            yield from map(_line, teller.tell(row))
    losses = RunLoss.objects.filter(run_number=run.number, position__lte=head.loss_count)
    for loss in losses.order_by("position").iterator():
        yield _line(teller.loss(loss))


def _line(told: Members) -> bytes:
    # ASCII only: some readers take U+2028 for the end of a line.
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"


class _Teller:
    """Turns events of one run into events of the schema."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.processes: dict[int, RunProcess] = {}

    def tell(self, row: EventRow) -> Iterator[Members]:
        """Yield what one event of the record is in the schema."""
        told = metas.read(bytes(row.meta))
        line = summary(row.kind, row.stream, row.stream_offset, row.length, told)
        for members in self._readers[row.kind](self, row, told):
            yield {
                **self._common(members["class_uid"], members["activity_id"], row.wall_us // 1000),
                "message": line,
                **members,
                "metadata": self._metadata(KIND_NAMES[row.kind], str(row.sequence)),
            }

    def loss(self, loss: RunLoss) -> Members:
        """Return the event of a span that the record does not hold."""
        return {
            **self._common(BASE, OTHER, int(loss.detected_at.timestamp() * 1000)),
            "activity_name": "Loss",
            "severity_id": _MEDIUM,
            "message": loss.reason,
            "count": loss.count or 1,
            "unmapped": {
                "kind": str(loss.kind),
                "fromSequence": _number(loss.from_sequence),
                "toSequence": _number(loss.to_sequence),
                "process": loss.process_number,
                "stream": loss.stream,
                "fromOffset": _number(loss.from_offset),
                "toOffset": _number(loss.to_offset),
            },
            "metadata": self._metadata("loss", f"loss:{loss.position}"),
        }

    def _common(self, class_uid: int, activity_id: int, time: int) -> Members:
        return {
            "class_uid": class_uid,
            "category_uid": class_uid // 1000,
            "activity_id": activity_id,
            "type_uid": class_uid * 100 + activity_id,
            "severity_id": _INFORMATIONAL,
            "time": time,
        } | ({} if class_uid == BASE else {"device": self._device()})

    def _metadata(self, code: str, place: str) -> Members:
        return {
            "version": VERSION,
            "product": {"name": "controlplane", "version": settings.SVC_RELEASE},
            "profiles": ["host"],
            "uid": f"{self.run.pk}:{place}",
            "correlation_uid": str(self.run.pk),
            "event_code": code,
        }

    def _device(self) -> Members:
        owner = {"uid": self.run.owner_user_id}
        return {"uid": str(self.run.workspace_id), "type_id": _VIRTUAL, "owner": owner}

    def _actor(self, number: int | None = None) -> Members:
        actor: Members = {
            "app_name": self.run.harness_id,
            "session": {"uid": str(self.run.pk)},
        }
        return actor | {"process": self._process(number)} if number else actor

    def _process(self, number: int) -> Members:
        told: Members = {"uid": self._process_uid(number)}
        known = self.processes.get(number)
        if known is None:
            return told
        if known.pid:
            told["pid"] = known.pid
        if known.argv:
            told["cmd_line"] = shlex.join(known.argv)
            told["name"] = posixpath.basename(known.argv[0])
        if known.cwd:
            told["working_directory"] = known.cwd
        if known.parent_number:
            told["parent_process"] = {"uid": self._process_uid(known.parent_number)}
        return told

    def _process_uid(self, number: int) -> str:
        return f"{self.run.pk}:{number}"

    def _workspace(self, port: object = None) -> Members:
        return {"uid": str(self.run.workspace_id), **_port(port)}

    def _started(self, row: EventRow, told: Meta) -> Iterator[Members]:
        origin = told.get("origin")
        if not isinstance(origin, dict):
            return
        user: Members = {"name": metas.text(origin.get("user"))}
        if key := metas.text(origin.get("key")):
            user["credential_uid"] = key
        ends = {
            "src_endpoint": _endpoint(origin.get("address"), origin.get("port")),
            "dst_endpoint": self._workspace(),
        }
        yield {
            "class_uid": AUTHENTICATION,
            "activity_id": 1,
            "status_id": 1,
            "is_remote": True,
            "user": user,
            "service": {"name": "ssh"},
            **ends,
        }
        yield {
            "class_uid": SSH,
            "activity_id": 1,
            "actor": self._actor() | {"user": user},
            "auth_type_id": _PUBLIC_KEY if key else 0,
            "unmapped": {"client": metas.text(origin.get("client"))},
            **ends,
        }

    def _sealed(self, row: EventRow, told: Meta) -> Iterator[Members]:
        if self.run.mode == Run.Mode.INTERACTIVE:
            ends = {"dst_endpoint": self._workspace()}
            yield {"class_uid": SSH, "activity_id": 2, "actor": self._actor(), **ends}

    def _launched(self, row: EventRow, told: Meta) -> Iterator[Members]:
        known = self.processes.get(row.process_number)
        failed = metas.text(told.get("startFailed"))
        yield {
            "class_uid": PROCESS,
            "activity_id": 1,
            "status_id": 2 if failed else 1,
            **({"status_detail": failed} if failed else {}),
            "actor": self._actor(known.parent_number if known else None),
            "process": self._process(row.process_number),
        }

    def _terminated(self, row: EventRow, told: Meta) -> Iterator[Members]:
        code = exit_code(bytes(row.meta))
        duration = metas.integer(told.get("durationUs"))
        yield {
            "class_uid": PROCESS,
            "activity_id": 2,
            "actor": self._actor(row.process_number),
            "process": self._process(row.process_number),
            **({} if code is None else {"exit_code": code}),
            **({} if duration is None else {"duration": duration // 1000}),
        }

    def _changed(self, row: EventRow, told: Meta) -> Iterator[Members]:
        root = metas.text(told.get("root"))
        path = posixpath.join(root, metas.text(told.get("path")))
        now = _file(path, told.get("type"))
        size = metas.integer(told.get("size", told.get("sizeAfter")))
        now |= {} if size is None else {"size": size}
        change = metas.text(told.get("change"))
        files = {"file": now}
        if change == "renamed":
            old = posixpath.join(root, metas.text(told.get("oldPath")))
            files = {"file": _file(old, told.get("type")), "file_result": now}
        yield {
            "class_uid": FILE,
            "activity_id": _CHANGES.get(change, OTHER),
            "actor": self._actor(row.process_number),
            **files,
        }

    def _accessed(self, row: EventRow, told: Meta) -> Iterator[Members]:
        action, by = metas.text(told.get("action")), metas.text(told.get("by"))
        files = {"file": _file(metas.text(told.get("path")), None)}
        if action == "move":
            files["file_result"] = _file(metas.text(told.get("to")), None)
        failed = metas.text(told.get("failed"))
        yield {
            "class_uid": FILE,
            "activity_id": _ACCESSES.get(action, OTHER),
            "activity_name": action,
            **({"status_id": 2, "status_detail": failed} if failed else {}),
            "actor": self._actor() | ({"user": {"uid": by}} if by else {}),
            **files,
        }

    def _connected(self, row: EventRow, told: Meta) -> Iterator[Members]:
        protocol = metas.text(told.get("protocol"), 16)
        number = _PROTOCOLS.get(protocol[:3])
        numbered = {} if number is None else {"protocol_num": number}
        yield {
            "class_uid": NETWORK,
            "activity_id": {"open": 1, "closed": 2}.get(metas.text(told.get("state")), OTHER),
            "actor": self._actor(row.process_number),
            # Who called whom is not seen, only that the two are connected.
            "connection_info": {"direction_id": 0, "protocol_name": protocol, **numbered},
            "src_endpoint": self._workspace(told.get("localPort")),
            "dst_endpoint": _endpoint(told.get("peer"), told.get("port")),
        }

    def _forwarded(self, row: EventRow, told: Meta) -> Iterator[Members]:
        by = metas.text(told.get("by"))
        traffic = {
            name: count
            for name, member in (("bytes_out", "sentBytes"), ("bytes_in", "receivedBytes"))
            if (count := metas.integer(told.get(member))) is not None
        }
        yield {
            "class_uid": NETWORK,
            "activity_id": 1 if row.kind == Kind.FORWARD_OPENED else 2,
            "actor": self._actor() | ({"user": {"uid": by}} if by else {}),
            "connection_info": {"direction_id": _INBOUND, "protocol_name": "tcp"},
            "dst_endpoint": self._workspace() | _endpoint(told.get("host"), told.get("port")),
            **({"traffic": traffic} if traffic else {}),
        }

    def _decided(self, row: EventRow, told: Meta) -> Iterator[Members]:
        word = metas.text(told.get("decision"), 16)
        traffic = {
            name: count
            for name, member in (("bytes_out", "bytesSent"), ("bytes_in", "bytesReceived"))
            if (count := metas.integer(told.get(member)))
        }
        host = told.get("host") or told.get("address")
        yield {
            "class_uid": NETWORK,
            "activity_id": _OPENED if word == "allowed" else _REFUSED,
            "status_id": 1 if word == "allowed" else 2,
            "status_detail": metas.text(told.get("reason"), 1000) or word,
            "actor": self._actor(),
            "count": metas.integer(told.get("connections")) or 1,
            "connection_info": {
                "direction_id": _OUTBOUND,
                "protocol_name": metas.text(told.get("protocol"), 16),
            },
            "src_endpoint": self._workspace(),
            "dst_endpoint": _endpoint(host, told.get("port")),
            **({"traffic": traffic} if traffic else {}),
        }

    _readers: ClassVar[dict[int, Callable[[_Teller, EventRow, Meta], Iterator[Members]]]] = {
        Kind.RECORD_STARTED: _started,
        Kind.RECORD_SEALED: _sealed,
        Kind.PROCESS_STARTED: _launched,
        Kind.PROCESS_EXITED: _terminated,
        Kind.FILE_CHANGE: _changed,
        Kind.FILE_DIFF_ENTRY: _changed,
        Kind.FILE_ACCESSED: _accessed,
        Kind.EGRESS_DECIDED: _decided,
        Kind.NETWORK_SOURCE_OBSERVED: _connected,
        Kind.FORWARD_OPENED: _forwarded,
        Kind.FORWARD_CLOSED: _forwarded,
    }
    kinds = frozenset(_readers)


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _port(told: object) -> Members:
    port = metas.integer(told, high=65535)
    return {} if port is None else {"port": port}


def _endpoint(host: object, port: object) -> Members:
    name = metas.text(host, 255)
    try:
        return {"ip": ipaddress.ip_address(name).compressed, **_port(port)}
    except ValueError:
        return {"hostname": name, **_port(port)}


def _file(path: str, kind: object) -> Members:
    return {
        "name": posixpath.basename(path) or path,
        "path": path,
        "type_id": _FILE_TYPES.get(metas.text(kind), 0),
    }
