"""Runs of the agent as real processes outside of a container, and their records."""

from __future__ import annotations

import base64
import json
import resource
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from runs.agent.record.frames import STREAM_NAMES, Event, Kind, Stream, decode, frames
from tests.runs.agent.booted import PYTHON, USER, Workspace, eventually


class Record(NamedTuple):
    """The events of one run, as its spool holds them."""

    events: list[Event]

    def of(self, kind: int) -> list[Event]:
        """The events of one kind."""
        return [event for event in self.events if event.kind == kind]

    def metas(self, kind: int) -> list[dict[str, Any]]:
        """Their metas."""
        return [meta_of(event) for event in self.of(kind)]

    def stream(self, stream: int, process: int = 1) -> bytes:
        """The bytes of a stream; fails when an offset does not continue the one before."""
        found = b""
        for event in self.of(Kind.IO_CHUNK):
            if (event.process, event.stream) == (process, stream):
                assert event.offset == len(found)
                assert 0 < len(event.body) <= 32768
                found += event.body
        return found

    def closed(self, stream: int, process: int = 1) -> tuple[int, str]:
        """Where a leader's stream ended, and how."""
        closed = self.of(Kind.PROCESS_STREAM_CLOSED)
        (event,) = [e for e in closed if (e.stream, e.process) == (stream, process)]
        return event.offset, meta_of(event)["reason"]

    @property
    def exit(self) -> dict[str, Any]:
        """How the leader ended."""
        (meta,) = self.metas(Kind.PROCESS_EXITED)
        return {name: meta[name] for name in ("code", "signal", "reason")}

    @property
    def seal(self) -> dict[str, Any]:
        """The last event, which must hold what the record holds."""
        assert self.events[-1].kind == Kind.RECORD_SEALED
        meta = meta_of(self.events[-1])
        assert [event.sequence for event in self.events] == list(range(1, meta["events"] + 1))
        for total in meta["streams"]:
            held = sum(
                len(event.body)
                for event in self.of(Kind.IO_CHUNK)
                if (event.process, STREAM_NAMES[event.stream])
                == (total["process"], total["stream"])
            )
            hidden = sum(
                meta_of(event)["bytes"]
                for event in self.of(Kind.INPUT_HIDDEN)
                if (event.process, STREAM_NAMES[event.stream])
                == (total["process"], total["stream"])
            )
            assert total["bytes"] == held + hidden + total["dropped"]
        return meta


class Runs:
    """Starts runs in a workspace that has no boot, and reads what is recorded of them."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        workspace.write_config()
        workspace.directory.mkdir(parents=True)
        shutil.chown(workspace.directory, USER)
        self.root = workspace.state / "runs"

    def spec(self, *argv: str, record: dict[str, Any] | None = None, **members: Any) -> Any:
        """A valid spec of a one-shot run; keyword arguments replace members."""
        recorded: dict[str, Any] = {
            "policy": "block",
            "input": "masked",
            "spoolBytes": 64 << 20,
            "segmentBytes": 8 << 20,
            "files": False,
            "network": False,
            "processes": False,
            "patchBytes": 100_000,
            "maxFiles": 1000,
        }
        spec = {
            "version": 1,
            "runId": str(uuid.uuid4()),
            "argv": list(argv),
            "cwd": None,
            "env": {},
            "stdin": None,
            "timeSeconds": 60,
            "graceSeconds": 1,
            "secrets": [],
        }
        return {**spec, **members, "record": recorded | (record or {})}

    def command(self, subcommand: str) -> list[str]:
        """The command line of a subcommand that reads the configuration."""
        argv = [PYTHON, "-I", str(self.workspace.archive), subcommand]
        argv += ["--config", str(self.workspace.config_path)]
        return [*argv, "--state-dir", str(self.workspace.state)]

    def execute(self, spec: Any) -> tuple[int, dict[str, Any]]:
        """`agent exec`: its exit code and its answer."""
        done = subprocess.run(
            self.command("exec"), input=json.dumps(spec).encode(), capture_output=True, check=False
        )
        assert not done.stderr, done.stderr.decode()
        return done.returncode, json.loads(done.stdout)

    def start(self, *argv: str, **members: Any) -> str:
        """Start a one-shot run and return its id."""
        spec = self.spec(*argv, **members)
        code, answer = self.execute(spec)
        assert (code, answer["state"]) == (0, "started"), answer
        return str(spec["runId"])

    def run(self, *argv: str, **members: Any) -> Record:
        """A one-shot run from its start to its sealed record."""
        return self.sealed(self.start(*argv, **members))

    def record(self, run_id: str) -> Record:
        """What the spool of a run holds now."""
        events: list[Event] = []
        for path in sorted((self.root / run_id).glob("*.seg")):
            events += [decode(content) for content in frames(path.read_bytes())]
        return Record(events)

    def sealed(self, run_id: str) -> Record:
        """The record of a run, once it has ended."""
        eventually(lambda: (found := self.record(run_id).events) and _is_seal(found[-1]))
        return self.record(run_id)

    def wait_for_output(self, run_id: str, text: bytes, stream: int = Stream.STDOUT) -> None:
        """Until the record shows that a program has written something."""
        eventually(lambda: text in self.record(run_id).stream(stream))

    def forget(self, run_id: str) -> None:
        """Remove the spool of a run that has ended."""
        shutil.rmtree(self.root / run_id)

    def is_sealed(self, run_id: str) -> bool:
        """Whether the record of a run has come to its end."""
        events = self.record(run_id).events
        return bool(events) and _is_seal(events[-1])

    def take_whole_segments(self, run_id: str) -> int:
        """Remove the segments that are complete; how many bytes of output were in them."""
        taken = 0
        for path in sorted((self.root / run_id).glob("*.seg"))[:-1]:
            events = [decode(content) for content in frames(path.read_bytes())]
            taken += sum(len(event.body) for event in events)
            path.unlink()
        return taken

    def stop(self, run_id: str, *arguments: str) -> int:
        """`agent stop`."""
        return self.workspace.agent("stop", run_id, *arguments).returncode


def meta_of(event: Event) -> dict[str, Any]:
    """The meta of an event."""
    meta: dict[str, Any] = json.loads(event.meta) if event.meta else {}
    return meta


def given(content: bytes) -> str:
    """Bytes as the spec has them."""
    return base64.b64encode(content).decode()


def is_alive(pid: int) -> bool:
    """Whether a process runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def no_more_descriptors(pid: int) -> Iterator[None]:
    """A process that has all the descriptors that it may have."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    free = next(number for number in range(len(taken) + 1) if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def listener() -> socket.socket:
    """A TCP server on a free port of this machine."""
    return socket.create_server(("127.0.0.1", 0))


def _is_seal(event: Event) -> bool:
    return event.kind == Kind.RECORD_SEALED
