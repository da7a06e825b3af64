"""What the agent inside a container says about its boot, and what a failed boot means.

Everything read here comes out of the workspace and may have been forged by it: sizes are bounded,
types are checked, and an answer that does not fit counts as no answer.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.security.redaction import bounded_tail, redact
from workspaces.runtimes.base import LaunchError

AGENT = "/usr/lib/svc/agent"
CONFIG_DIRECTORY = "/etc/svc"
CONFIG_FILE = "boot.json"
UNBOUND = "unbound"
"""The agent's phase while it waits to be told whose its container is."""
UNBOUND_CONFIGURATION: Mapping[str, object] = {"version": 1, "unbound": True}
BIND = ("bind",)
MARKER_DIRECTORY = f"{CONFIG_DIRECTORY}/adopted"
"""Holds one empty file for each later launch that relies on the container."""
STATUS_FILE = "/var/lib/svc/status.json"
MAX_STATUS_BYTES = 256 * 1024
TAIL_BYTES = 8192


@dataclass(frozen=True, slots=True)
class BootStep:
    """The step that a boot is at, or that it failed in."""

    name: str
    kind: str
    exit_code: int | None
    signal: str | None
    timed_out: bool

    @property
    def has_outcome(self) -> bool:
        """Whether the step ran and ended, as opposed to never having started."""
        return self.timed_out or bool(self.signal) or self.exit_code is not None

    @property
    def outcome(self) -> str:
        """How the step ended, as the end of a sentence."""
        if self.timed_out:
            return "because its time was over"
        if self.signal:
            return f"by signal {self.signal}"
        if self.exit_code is not None:
            return f"with exit code {self.exit_code}"
        return "before it ran"


@dataclass(frozen=True, slots=True)
class BootStatus:
    """One answer of the agent; ``phase`` is ``ready``, ``failed``, ``stopped`` or still booting."""

    phase: str
    step: BootStep | None
    message: str
    tail: str


def parse_status(data: bytes) -> BootStatus | None:
    """Return the status in ``data``, or None when it is not one."""
    if len(data) > MAX_STATUS_BYTES:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("phase"), str):
        return None
    return BootStatus(
        phase=document["phase"],
        step=_step(document.get("step")),
        message=one_line(_text(document, "message")),
        tail=_shown(_text(document, "tail"), TAIL_BYTES),
    )


def failure_of(status: BootStatus, *, out_of_memory: str = "") -> LaunchError:
    """Return the error for a boot that ended without being ready.

    ``out_of_memory`` is the sentence to add when the engine saw the workspace run out of memory.
    """
    step = status.step
    said = f": {status.message}" if status.message else ""
    code = "container-exited" if status.phase == "stopped" else "step-failed"
    if step is None:
        text = f"The workspace's boot failed{said}"
    elif step.kind == "foreground" and not step.has_outcome:
        text = f"The workspace's foreground process did not start{said}"
    elif step.kind == "foreground":
        text = f"The workspace's foreground process ended {step.outcome}, before it was ready{said}"
    else:
        text = f"The {step.kind} step “{step.name}” failed {step.outcome}"
        text += "" if step.has_outcome else said
    return LaunchError(code, _with_output(_sentence(text) + out_of_memory, status.tail))


def exited_without_status(
    exit_code: int | None, logs: bytes, *, secrets: Iterable[str] = (), out_of_memory: str = ""
) -> LaunchError:
    """Return the error for a container that ended and left no word of its agent.

    ``logs`` is the end of its output, ``secrets`` what must not be repeated from it.
    """
    how = "" if exit_code is None else f" with exit code {exit_code}"
    text = f"The container ended{how} before its agent reported anything.{out_of_memory}"
    output = bounded_tail(redact(logs, secrets), TAIL_BYTES).strip()
    return LaunchError("container-exited", _with_output(text, output))


def end_of_foreground(status: BootStatus) -> str:
    """Say how the foreground of a workspace ended that was ready; empty when it has not."""
    step = status.step
    if status.phase != "stopped" or step is None or step.kind != "foreground":
        return ""
    return _with_output(f"The workspace's foreground process ended {step.outcome}.", status.tail)


def progress_of(status: BootStatus | None) -> str:
    """Say in half a sentence where a boot is, for the message of a time-out."""
    if status is None:
        return "its agent had not answered yet"
    if status.step is not None:
        return f"it was at the {status.step.kind} step “{status.step.name}”"
    return f"it was in phase “{one_line(status.phase, 40)}”"


def secrets_of(configuration: Mapping[str, object]) -> list[str]:
    """Return what must not be shown of a workspace with this configuration of its agent."""
    secrets = configuration.get("secrets")
    return [str(secret) for secret in secrets] if isinstance(secrets, list) else []


def config_archive(boot: Mapping[str, object]) -> bytes:
    """Return a tar for ``/`` that holds the agent's configuration, readable by root only."""
    content = json.dumps(boot, ensure_ascii=False, separators=(",", ":")).encode()
    return _archive((CONFIG_DIRECTORY,), f"{CONFIG_DIRECTORY}/{CONFIG_FILE}", content)


def binding(marker: str, boot: Mapping[str, object]) -> bytes:
    """Return the document that binds an unbound container; ``marker`` is that of its launch."""
    document = {"version": 1, "marker": marker, "config": boot}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def marker_archive(name: str) -> bytes:
    """Return a tar for ``/`` with an empty file of that name among the adoption markers."""
    return _archive((CONFIG_DIRECTORY, MARKER_DIRECTORY), f"{MARKER_DIRECTORY}/{name}", b"")


def read_archived_file(chunks: Iterable[bytes]) -> bytes | None:
    """Return the one regular file of a tar stream; None when it is something else or too large."""
    try:
        with _bounded_archive(chunks) as archive:
            member = archive.next()
            if member is None or not member.isreg() or member.size > MAX_STATUS_BYTES:
                return None
            stream = archive.extractfile(member)
            return stream.read() if stream is not None else None
    except tarfile.TarError:
        return None


def archived_names(chunks: Iterable[bytes]) -> list[str]:
    """Return the names in a tar stream; none when it is too large."""
    try:
        with _bounded_archive(chunks) as archive:
            return archive.getnames()
    except tarfile.TarError:
        return []


def archived_markers(chunks: Iterable[bytes]) -> list[tuple[int, str]]:
    """Return attempt count and token of each adoption marker in a tar stream."""
    names = archived_names(chunks)
    found = (re.fullmatch(r"adopted/(\d{1,9})-([0-9a-f]{32})", name) for name in names)
    return [(int(match[1]), match[2]) for match in found if match]


def one_line(text: str, limit: int = 300) -> str:
    """Return ``text`` redacted, on one line, and at most ``limit`` characters long."""
    flat = " ".join(_shown(text, 64 * 1024).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _shown(text: str, limit: int) -> str:
    return bounded_tail(redact(text).encode("utf-8", "replace"), limit).strip()


def _step(value: Any) -> BootStep | None:
    if not isinstance(value, dict):
        return None
    exit_code, signal = value.get("exitCode"), value.get("signal")
    return BootStep(
        name=one_line(_text(value, "name"), 120) or "?",
        kind=one_line(_text(value, "kind"), 20) or "boot",
        exit_code=exit_code if type(exit_code) is int else None,
        signal=one_line(signal, 20) if isinstance(signal, str) else None,
        timed_out=value.get("timedOut") is True,
    )


def _text(document: Mapping[str, object], member: str) -> str:
    value = document.get(member)
    return value if isinstance(value, str) else ""


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."


def _with_output(text: str, output: str) -> str:
    return f"{text}\nThe end of its output:\n{output}" if output else text


def _bounded_archive(chunks: Iterable[bytes]) -> tarfile.TarFile:
    collected = bytearray()
    for chunk in chunks:
        collected += chunk
        if len(collected) > MAX_STATUS_BYTES + 2 * tarfile.RECORDSIZE:
            raise tarfile.ReadError("too large")
    return tarfile.open(fileobj=io.BytesIO(collected))


def _archive(directories: Iterable[str], name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for directory in directories:
            folder = tarfile.TarInfo(directory.lstrip("/"))
            folder.type = tarfile.DIRTYPE
            folder.mode = 0o700
            archive.addfile(folder)
        member = tarfile.TarInfo(name.lstrip("/"))
        member.mode = 0o600
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
