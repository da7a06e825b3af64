"""One short line for each event, made from the event alone.

What an event says comes out of a workspace: any member may be missing or of another type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runs.agent.record.frames import STREAM_NAMES, Kind

MAX_LENGTH = 200

Meta = Mapping[str, Any]


def summary(kind: int, stream: int, offset: int, length: int, meta: object) -> str:
    """Return the line of one event; ``meta`` is its parsed JSON."""
    if kind == Kind.IO_CHUNK:
        return f"{STREAM_NAMES.get(stream, 'unknown')}: {length} bytes at {offset}"
    members = meta if isinstance(meta, dict) else {}
    if kind == Kind.PROCESS_STREAM_CLOSED:
        name = STREAM_NAMES.get(stream, "stream")
        return one_line(f"{name} closed at {offset}: {text(members.get('reason'))}")
    if kind == Kind.TELEMETRY_DROPPED and stream:
        name = STREAM_NAMES.get(stream, "stream")
        return one_line(
            f"{name}: {text(members.get('bytes'))} bytes dropped at {offset}{_because(members)}"
        )
    tell = _TELLERS.get(kind)
    return one_line(tell(members)) if tell else "an event of an unknown kind"


def text(value: object) -> str:
    """Return a value of an event as text: a string, or the lossy text of bytes; else its JSON."""
    if isinstance(value, dict):
        value = value.get("text", "")
    return value if isinstance(value, str) else "?" if value is None else str(value)


def command_line(argv: object) -> str:
    """Return the words of a command with blanks between them; for people, not for a shell."""
    return " ".join(text(word) for word in argv) if isinstance(argv, list) else "?"


def one_line(line: str, length: int = MAX_LENGTH) -> str:
    """Return a text on one line, without control characters, and not too long."""
    # What is far behind the end need not be looked at: an argument may have 100 000 characters.
    line = " ".join(line[: 8 * MAX_LENGTH].split())
    if not line.isprintable():
        line = "".join(c if c.isprintable() else "\ufffd" for c in line)
    return line if len(line) <= length else f"{line[: length - 1]}…"


def _because(meta: Meta) -> str:
    return f": {text(meta['reason'])}" if meta.get("reason") else ""


def _recording(meta: Meta) -> str:
    line = f"recording starts: {text(meta.get('mode'))}"
    origin = meta.get("origin")
    return f"{line}, {origin_line(origin)}" if isinstance(origin, dict) else line


def origin_line(origin: Meta) -> str:
    """Return who connected, from where and with what, as the origin of a session tells it."""
    line = f"{text(origin.get('user'))} from {text(origin.get('address'))}"
    line += f" port {text(origin['port'])}" if origin.get("port") is not None else ""
    line += f" with {text(origin['client'])}" if origin.get("client") else ""
    return line + (f", key {text(origin['key'])}" if origin.get("key") else "")


def _channel(meta: Meta) -> str:
    return f" (channel {text(meta['channel'])})" if meta.get("channel") is not None else ""


def _started(meta: Meta) -> str:
    command = command_line(meta.get("argv"))
    if meta.get("kind"):
        command = f"{text(meta['kind'])}: {command}"
    if meta.get("startFailed"):
        return f"{command} could not be started: {text(meta['startFailed'])}"
    # The channel would be cut off behind a long command.
    channel = _channel(meta)
    return one_line(command, MAX_LENGTH - len(channel)) + channel if len(channel) < 40 else command


def _forwarded(meta: Meta) -> str:
    by = f", by {text(meta['by'])}" if meta.get("by") else ""
    return f"{text(meta.get('host'))} port {text(meta.get('port'))}{_channel(meta)}{by}"


def _accessed(meta: Meta) -> str:
    what = f"{text(meta.get('action'))} {text(meta.get('path'))}"
    to = f" → {text(meta['to'])}" if meta.get("action") == "move" else ""
    size = f", {text(meta['size'])} bytes" if meta.get("size") is not None else ""
    by = f", by {text(meta['by'])}" if meta.get("by") else ""
    # In front, as a long path would push it out of the line.
    failed = f"failed ({text(meta['failed'])}): " if meta.get("failed") else ""
    return f"files: {failed}{what}{to}{size}{by}"


def _forward_closed(meta: Meta) -> str:
    counts = f"{text(meta.get('sentBytes'))} bytes sent, {text(meta.get('receivedBytes'))} received"
    return f"forward closed: {_forwarded(meta)}, {counts}{_because(meta)}"


def exit_line(meta: Meta) -> str:
    """Return how a process ended, as the event of its end tells it."""
    how = text(meta.get("reason"))
    if meta.get("signal"):
        return (
            f"{how} by {text(meta['signal'])}"
            if how == "signaled"
            else (f"{how}, by {text(meta['signal'])}")
        )
    return f"{how} with code {text(meta['code'])}" if meta.get("code") is not None else how


def _dropped(meta: Meta) -> str:
    return f"{text(meta.get('count'))} {text(meta.get('what'))} events dropped{_because(meta)}"


def _changed(meta: Meta) -> str:
    change, path = text(meta.get("change")), text(meta.get("path"))
    old = meta.get("oldPath")
    return f"{change}: {text(old)} → {path}" if old is not None else f"{change}: {path}"


def _diff(meta: Meta) -> str:
    counts = [
        f"{text(meta[name])} {name}"
        for name in ("added", "modified", "deleted", "renamed")
        if meta.get(name)
    ]
    cut = " (truncated)" if meta.get("truncated") else ""
    return f"changes: {', '.join(counts) or 'none'}{cut}"


def _snapshot(meta: Meta) -> str:
    root, files = text(meta.get("root")), text(meta.get("files"))
    return f"snapshot at the {text(meta.get('when'))} of {root}: {files} files"


def _network(meta: Meta) -> str:
    peer, port = text(meta.get("peer")), text(meta.get("port"))
    return f"{text(meta.get('protocol'))} {peer} port {port}, {text(meta.get('state'))}"


def _state(meta: Meta) -> str:
    step = meta.get("step")
    name = step.get("name", step.get("id")) if isinstance(step, dict) else None
    told = [text(meta.get("state"))]
    told += [text(name)] if name is not None else []
    told += [text(meta["message"])] if meta.get("message") else []
    return ": ".join(told)


def _sealed(meta: Meta) -> str:
    return f"the record ends: {text(meta.get('reason'))}, reported by the {text(meta.get('by'))}"


def _decided(meta: Meta) -> str:
    word, counted = text(meta.get("decision")), text(meta.get("connections"))
    if meta.get("unnamed"):
        return f"egress {word}: {counted} more, too many to name each"
    place = text(meta.get("host") or meta.get("address"))
    rule = f", by {text(meta['rule'])}" if meta.get("rule") else ""
    return (
        f"egress {word}: {text(meta.get('protocol'))} {place} port {text(meta.get('port'))}{rule}"
    )


_TELLERS: Mapping[int, Callable[[Meta], str]] = {
    Kind.RECORD_STARTED: _recording,
    Kind.PROCESS_STARTED: _started,
    Kind.PROCESS_EXITED: exit_line,
    Kind.TERMINAL_RESIZED: lambda meta: (
        f"terminal of {text(meta.get('columns'))} columns and {text(meta.get('rows'))} rows"
    ),
    Kind.INPUT_HIDDEN: lambda meta: f"{text(meta.get('bytes'))} bytes of input not recorded",
    Kind.TELEMETRY_DROPPED: _dropped,
    Kind.FILE_CHANGE: _changed,
    Kind.FILE_WATCH_OVERFLOW: lambda meta: f"file changes missed below {text(meta.get('root'))}",
    Kind.FILE_SNAPSHOT_COMPLETED: _snapshot,
    Kind.FILE_DIFF_AVAILABLE: _diff,
    Kind.FILE_DIFF_ENTRY: _changed,
    Kind.NETWORK_SOURCE_OBSERVED: _network,
    Kind.COVERAGE_CHANGED: lambda meta: (
        f"{text(meta.get('source'))} now {text(meta.get('state'))}{_because(meta)}"
    ),
    Kind.SIGNAL_SENT: lambda meta: f"{text(meta.get('signal'))} sent{_because(meta)}",
    Kind.RUNTIME_STATE_CHANGED: _state,
    Kind.RECORD_SEALED: _sealed,
    Kind.FORWARD_OPENED: lambda meta: f"forward opened: {_forwarded(meta)}",
    Kind.FORWARD_CLOSED: _forward_closed,
    Kind.FILE_ACCESSED: _accessed,
    Kind.EGRESS_DECIDED: _decided,
}
