"""What the service returns, as plain values. ``raw`` is the JSON that each was made from."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


def moment(told: str | None) -> datetime | None:
    """Return a point in time of the API, with its time zone."""
    return None if told is None else datetime.fromisoformat(told.replace("Z", "+00:00"))


@dataclass(frozen=True)
class Reason:
    """Why something is not ready: code, message, since when, what comes next."""

    code: str
    message: str
    since: str
    next: str


def _reason(told: dict[str, Any] | None) -> Reason | None:
    if told is None:
        return None
    return Reason(*(str(told.get(key, "")) for key in ("code", "message", "since", "next")))


@dataclass(frozen=True)
class WorkspaceInfo:
    """A workspace as it was when it was read."""

    id: str
    name: str
    owner: str
    status: str
    """``queued``, ``running``, ``ready``, ``failed``, ``cancelled``, ``stopped``, ``deleted``."""
    reason: Reason | None
    error: str | None
    error_code: str | None
    endpoint: str | None
    """Where SSH clients enter it, like ``ssh://ws-…@host:2222``."""
    image: str | None
    """Its image by digest."""
    created_at: datetime | None
    expires_at: datetime | None
    raw: dict[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, told: dict[str, Any]) -> WorkspaceInfo:
        """Make it from the API's JSON."""
        error = told.get("error") or {}
        return cls(
            told["workspaceId"],
            told["name"],
            told["ownerUserId"],
            told["status"],
            _reason(told.get("reason")),
            error.get("message"),
            error.get("code"),
            (told.get("runtime") or {}).get("endpoint"),
            (told.get("publishedImage") or {}).get("digestReference"),
            moment(told.get("createdAt")),
            moment(told.get("expiresAt")),
            told,
        )


@dataclass(frozen=True)
class RunInfo:
    """A run as it was when it was read."""

    id: str
    workspace_id: str
    status: str
    """``queued``, ``running``, ``completed``, ``failed`` or ``cancelled``."""
    mode: str
    harness: str
    exit_code: int | None
    exit_signal: str | None
    error: str | None
    error_code: str | None
    command: list[str] | None
    prompt: str | None
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    raw: dict[str, Any] = field(repr=False, compare=False)

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.status in {"completed", "failed", "cancelled"}

    @classmethod
    def of(cls, told: dict[str, Any]) -> RunInfo:
        """Make it from the API's JSON."""
        command = told.get("command")
        return cls(
            told["runId"],
            told["workspaceId"],
            told["status"],
            told["mode"],
            told["harnessId"],
            told.get("exitCode"),
            told.get("exitSignal"),
            told.get("errorMessage"),
            told.get("errorCode"),
            None if command is None else [command["executable"], *command["args"]],
            told.get("prompt"),
            moment(told.get("createdAt")),
            moment(told.get("startedAt")),
            moment(told.get("finishedAt")),
            told,
        )


@dataclass(frozen=True)
class ExecResult:
    """How a command ended, and what it wrote."""

    run_id: str
    status: str
    exit_code: int | None
    """None when a signal ended it, or it could not be started."""
    exit_signal: str | None
    error: str | None
    error_code: str | None
    stdout_bytes: bytes
    stderr_bytes: bytes
    truncated: bool
    """Whether it wrote more than is here; the record has all of it."""

    @property
    def ok(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.exit_code == 0

    @property
    def stdout(self) -> str:
        """Its standard output; bytes that are not UTF-8 are replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Its standard error."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @classmethod
    def of(cls, told: dict[str, Any]) -> ExecResult:
        """Make it from the API's JSON."""
        return cls(
            told["runId"],
            told["status"],
            told.get("exitCode"),
            told.get("exitSignal"),
            told.get("errorMessage"),
            told.get("errorCode"),
            _bytes(told, "stdout"),
            _bytes(told, "stderr"),
            told["truncated"],
        )

    @classmethod
    def of_run(cls, run: RunInfo, stdout: bytes, stderr: bytes, *, truncated: bool) -> ExecResult:
        """Make it from a run that has ended, and the output that was read."""
        how = (run.exit_code, run.exit_signal, run.error, run.error_code)
        return cls(run.id, run.status, *how, stdout, stderr, truncated)


def _bytes(told: dict[str, Any], name: str) -> bytes:
    if f"{name}Base64" in told:
        return base64.b64decode(told[f"{name}Base64"])
    return str(told[name]).encode()


@dataclass(frozen=True)
class FileInfo:
    """What is at a path. Bytes of ``name`` and ``target`` that are not UTF-8 are surrogates."""

    name: str
    type: str
    """``file``, ``directory``, ``symlink``, ``fifo``, ``socket`` or another kind."""
    size: int
    mode: int
    modified_at: datetime | None
    target: str | None
    """The target of a link."""
    sha256: str | None
    raw: dict[str, Any] = field(repr=False, compare=False)

    @property
    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self.type == "directory"

    @classmethod
    def of(cls, told: dict[str, Any]) -> FileInfo:
        """Make it from the API's JSON."""
        return cls(
            _name(told, "name") or "",
            told["type"],
            told["size"],
            int(told["mode"], 8),
            moment(told.get("modifiedAt")),
            _name(told, "target"),
            told.get("sha256"),
            told,
        )


def _name(told: dict[str, Any], member: str) -> str | None:
    if f"{member}Base64" in told:
        return base64.b64decode(told[f"{member}Base64"]).decode("utf-8", "surrogateescape")
    found = told.get(member)
    return None if found is None else str(found)


@dataclass(frozen=True)
class Written:
    """What was stored."""

    size: int
    sha256: str
    created: bool


@dataclass(frozen=True)
class Port:
    """A port on which something listens, and its process if that is known."""

    port: int
    address: str
    pid: int | None
    process: str | None


@dataclass(frozen=True)
class PreviewLink:
    """A link to a port, for whoever has it, for a short time."""

    url: str = field(repr=False)
    """For a browser, which gets a cookie for this port."""
    token: str = field(repr=False)
    """For programs: the header ``x-svc-preview-token`` of each request."""
    expires_at: datetime | None

    @classmethod
    def of(cls, told: dict[str, Any]) -> PreviewLink:
        """Make it from the API's JSON."""
        return cls(told["url"], told["token"], moment(told["expiresAt"]))


@dataclass(frozen=True)
class OutputPart:
    """A piece of what a run wrote to one of its streams, byte for byte."""

    content: bytes
    start: int
    """Where in the stream it begins."""
    next: int
    """Where to continue."""
    more: bool
    """Whether the record has more of it already."""
    complete: bool
    """Whether the stream has ended, and nothing of it is missing after ``start``."""
    missing: list[tuple[int, int]]
    """Ranges of bytes (from, up to and not including) that are missing from the record."""

    @classmethod
    def of(cls, told: dict[str, Any]) -> OutputPart:
        """Make it from the API's JSON."""
        start = int(told["fromOffset"])
        following = told.get("nextOffset")
        content = base64.b64decode(told["contentBase64"])
        missing = [(int(each["fromOffset"]), int(each["toOffset"])) for each in told["missing"]]
        end = start + len(content) + sum(last - first for first, last in missing)
        return cls(
            content,
            start,
            end if following is None else int(following),
            following is not None,
            told["complete"],
            missing,
        )


@dataclass(frozen=True)
class StreamEvent:
    """One server-sent event."""

    type: str
    """``event``, ``output``, ``status``, ``current``, ``resync`` or ``end``."""
    id: str | None
    """Where to continue: give it as ``after``."""
    data: dict[str, Any]

    @property
    def stream(self) -> str | None:
        """For an ``output``: ``stdout``, ``stderr``, ``pty``, ``stdin`` or ``ptyInput``."""
        ref = self.data.get("ref")
        return str(ref["stream"]) if self.type == "output" and isinstance(ref, dict) else None

    @property
    def content(self) -> bytes:
        """For an ``output``: its bytes, which may end in the middle of a character."""
        return base64.b64decode(self.data.get("contentBase64", ""))


@dataclass(frozen=True)
class Output:
    """Bytes that a command wrote, to ``pty``, ``stdout`` or ``stderr``."""

    stream: str
    content: bytes


@dataclass(frozen=True)
class RunEnd:
    """How a command ended."""

    status: str
    exit_code: int | None
    exit_signal: str | None
    error: str | None
    error_code: str | None

    @classmethod
    def of(cls, told: dict[str, Any]) -> RunEnd:
        """Make it from the API's JSON."""
        return cls(
            told["status"],
            told.get("exitCode"),
            told.get("exitSignal"),
            told.get("errorMessage"),
            told.get("errorCode"),
        )


@dataclass(frozen=True)
class Verified:
    """What a check of a record found."""

    ok: bool
    message: str
    events: int
    signed_by: str
    """The id of the key whose signature is valid; empty when nothing is signed."""
    key_was_known: bool
    """Whether the key was given to the check, and not only taken from the record itself."""
