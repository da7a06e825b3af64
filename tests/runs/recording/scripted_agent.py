"""An engine with one container, whose agent speaks the protocol of `tail` and can be made to fail.

The real agent in a real container is in the chaos tests; here are the failures that cannot be had
from it at will: a connection cut inside a frame, damaged bytes, a container that is gone just now.
"""

from __future__ import annotations

import builtins
import json
import struct
import threading
import uuid
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from runs.agent.record.frames import PREFIX
from workspaces.runtimes.base import (
    AgentAnswer,
    LaunchedRuntime,
    LaunchError,
    LaunchRequest,
    ObservedRuntime,
    RenewedCredential,
)

KEEPALIVE = bytes(PREFIX.size)


def framed(content: bytes) -> bytes:
    """Return the frame of a content."""
    return PREFIX.pack(len(content), zlib.crc32(content)) + content


@dataclass(slots=True)
class Spool:
    """What the agent has of one run: the contents 1..n."""

    spool_id: str
    contents: list[bytes]
    acknowledged: int = 0
    sealed: bool = True
    abandoned: bool = False
    """Nobody writes it any more: it cannot be stopped, and whoever reads it seals it."""
    disk_full: bool = False
    """Its disk has no room for that end."""


@dataclass(slots=True)
class ScriptedAgent:
    """The adapter. Set what it is to fail with; everything it was asked for is in ``calls``."""

    name: str = "scripted"
    spools: dict[uuid.UUID, Spool] = field(default_factory=dict)
    to_execute: dict[uuid.UUID, Spool] = field(default_factory=dict)
    unreachable: list[LaunchError] = field(default_factory=list)
    """Raised one after the other, by the next calls."""
    damage: list[tuple[int, bytes | None]] = field(default_factory=list)
    """For the next tails: after how many bytes they are cut, or which byte is written there."""
    exec_answer: AgentAnswer | None = None
    forgets: bool = False
    """Whoever is root in the workspace deletes each spool when its run has begun."""
    unreadable: list[int] = field(default_factory=list)
    """For the next tails: the exit code with which the agent says that it cannot read the spool."""
    complaint: bytes = b""
    """What it writes to its standard error then."""
    piece: int = 1 << 16
    calls: list[tuple[str, ...]] = field(default_factory=list)
    specs: list[dict[str, object]] = field(default_factory=list)
    engine: str = ""
    engine_away: bool = False
    runs_answer: bytes | None = None

    def _reach(self, arguments: Sequence[str]) -> None:
        self.calls.append(tuple(arguments))
        if self.unreachable:
            raise self.unreachable.pop(0)

    def call_agent(
        self,
        run_id: uuid.UUID,
        arguments: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
    ) -> AgentAnswer:
        """Answer ``stop`` and ``runs``."""
        self._reach(arguments)
        if arguments[0] == "stop":
            found = self.spools.get(uuid.UUID(arguments[1]))
            return AgentAnswer(4 if found is None or found.abandoned else 0, b"", b"")
        assert list(arguments) == ["runs"]
        if self.runs_answer is not None:
            return AgentAnswer(0, self.runs_answer, b"")
        told = [
            {
                "runId": str(run),
                "spoolId": spool.spool_id,
                "sealed": spool.sealed,
                "lastSequence": len(spool.contents),
            }
            for run, spool in self.spools.items()
        ]
        return AgentAnswer(0, json.dumps(told).encode(), b"")

    def _exec(self, stdin: bytes) -> AgentAnswer:
        if self.exec_answer is not None:
            return self.exec_answer
        spec = json.loads(stdin)
        self.specs.append(spec)
        run = uuid.UUID(spec["runId"])
        state = "exists" if run in self.spools else "started"
        spool = self.spools.setdefault(run, self.to_execute[run])
        if self.forgets:
            del self.spools[run]
        return AgentAnswer(0, json.dumps({"state": state, "spoolId": spool.spool_id}).encode(), b"")

    def open_agent(self, run_id: uuid.UUID, arguments: Sequence[str]) -> Tailed | Executed:
        """Answer ``exec --then tail`` and ``tail RUN --from N``."""
        self._reach(arguments)
        if arguments[0] == "exec":
            assert list(arguments) == ["exec", "--then", "tail"]
            return Executed(self._executed)
        command, run, option, first = arguments
        assert (command, option) == ("tail", "--from")
        return self._tailed(run, first)

    def _executed(self, spec: bytes) -> Tailed:
        answer = self._exec(spec)
        if answer.exit_code != 0:
            return Tailed(answer.stdout, answer.exit_code, said=answer.stderr)
        tailed = self._tailed(json.loads(spec)["runId"], "1") if self.specs else Tailed(b"", 0)
        tailed.precede(answer.stdout + b"\n")
        return tailed

    def _tailed(self, run: str, first: str) -> Tailed:
        spool = self.spools.get(uuid.UUID(run))
        if spool is None:
            return Tailed(b"", 4)
        if self.unreadable:
            return Tailed(b"", self.unreadable.pop(0), said=self.complaint)
        if spool.abandoned and not spool.disk_full:
            spool.sealed = True
        hello = {
            "version": 1,
            "runId": run,
            "spoolId": spool.spool_id,
            "first": int(first),
            "last": len(spool.contents),
            "sealed": spool.sealed,
        }
        frames = b"".join(map(framed, spool.contents[int(first) - 1 :]))
        sent = json.dumps(hello).encode() + b"\n" + KEEPALIVE + frames
        if self.damage:
            place, byte = self.damage.pop(0)
            if byte is None:
                return Tailed(sent[:place], None, spool, self.piece)
            sent = sent[:place] + byte + sent[place + 1 :]
        return Tailed(sent, 0 if spool.sealed else None, spool, self.piece, self._forget)

    def _forget(self, spool: Spool) -> None:
        self.spools = {run: other for run, other in self.spools.items() if other is not spool}

    def waits_for_credentials(self, run_id: uuid.UUID) -> bool:
        """Wait for none."""
        return False

    def deliver_credentials(self, run_id: uuid.UUID, document: bytes) -> None:
        """Have no place for any."""
        raise NotImplementedError

    def collect_credentials(self, run_id: uuid.UUID) -> builtins.list[RenewedCredential]:
        """Have none."""
        return []

    def withdraw_credentials(self, run_id: uuid.UUID, account_ids: Collection[uuid.UUID]) -> None:
        """Have none."""

    def read_files(
        self, run_id: uuid.UUID, path: str
    ) -> AbstractContextManager[Iterator[bytes] | None]:
        """Find nothing."""
        return nullcontext(None)

    def engine_id(self) -> str:
        """Return the engine's name."""
        if self.engine_away:
            raise LaunchError("adapter-unavailable", "The engine does not answer.")
        return self.engine

    def check(self) -> None:
        """Be fine."""

    def launch(self, request: LaunchRequest, *, cancelled: threading.Event) -> LaunchedRuntime:
        """Launch nothing."""
        raise NotImplementedError

    def observe(self, run_id: uuid.UUID) -> ObservedRuntime | None:
        """Know nothing."""
        return None

    def list(self, workspace_id: uuid.UUID | None = None) -> list[ObservedRuntime]:
        """Know nothing."""
        return []

    def stop(self, run_id: uuid.UUID, *, seconds: float) -> bool:
        """Have nothing to stop."""
        return False

    def remove_volumes(self, workspace_id: uuid.UUID) -> int:
        """Have no volumes."""
        return 0

    def workspaces_with_volumes(self) -> set[uuid.UUID]:
        """Have no volumes."""
        return set()

    def remove_containers(self, run_id: uuid.UUID) -> bool:
        """Have nothing to remove."""
        return False

    def remove(self, run_id: uuid.UUID, *, collect: object = None) -> bool:
        """Have nothing."""
        return False

    def sweep_networks(self, keep_run_ids: Collection[uuid.UUID]) -> int:
        """Have nothing."""
        return 0


class Executed:
    """The channel of an ``exec``: what it gives out depends on the spec that it is given."""

    def __init__(self, execute: Callable[[bytes], Tailed]) -> None:
        self._execute = execute
        self._tailed: Tailed | None = None

    def write(
        self, data: bytes, *, timeout: float | None = None, within: float | None = None
    ) -> None:
        """Take the spec, and then acknowledgements."""
        if self._tailed is None:
            (size,) = struct.unpack("!I", data[:4])
            assert size == len(data) - 4
            self._tailed = self._execute(data[4:])
        else:
            self._tailed.write(data)

    def read(self, timeout: float, *, wake: int = -1) -> bytes | None:
        """Return the next piece; the end once there is none."""
        assert self._tailed is not None
        return self._tailed.read(timeout, wake=wake)

    def close_input(self) -> None:
        """Do nothing."""

    def exit_code(self) -> int | None:
        """Return what was prepared."""
        return None if self._tailed is None else self._tailed.exit_code()

    def errors(self) -> str:
        """Return what was prepared."""
        return "" if self._tailed is None else self._tailed.errors()

    def close(self) -> None:
        """Do nothing."""


class Tailed:
    """The channel: gives out what was prepared, piece by piece, and takes acknowledgements."""

    def __init__(
        self,
        sent: bytes,
        code: int | None,
        spool: Spool | None = None,
        piece: int = 1 << 16,
        forget: object = None,
        said: bytes = b"",
    ) -> None:
        self._said = said
        self._left = sent
        self._code = code
        self._spool = spool
        self._piece = piece
        self._forget = forget

    def read(self, timeout: float, *, wake: int = -1) -> bytes | None:
        """Return the next piece; the end once there is none."""
        piece, self._left = self._left[: self._piece], self._left[self._piece :]
        return piece

    def write(
        self, data: bytes, *, timeout: float | None = None, within: float | None = None
    ) -> None:
        """Take acknowledgements."""
        assert self._spool is not None
        (self._spool.acknowledged,) = struct.unpack("!Q", data)
        if self._spool.sealed and self._spool.acknowledged == len(self._spool.contents):
            assert callable(self._forget)
            self._forget(self._spool)

    def close_input(self) -> None:
        """Do nothing."""

    def exit_code(self) -> int | None:
        """Return what was prepared."""
        return self._code

    def errors(self) -> str:
        """Return what was prepared."""
        return self._said.decode()

    def precede(self, answer: bytes) -> None:
        """Give this out before everything else."""
        self._left = answer + self._left

    def close(self) -> None:
        """Do nothing."""
