"""A tail without news for long has no process: PID 1 waits for it, and starts one again."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Self

import pytest
from docker.models.containers import Container

from runs.agent.record.frames import PREFIX, Event, Kind, decode
from tests.runs.agent.booted import RECORD, eventually
from tests.runs.agent.test_in_container import (
    Machine,
    engine,
    executed,
    machine,
    run,
    settled,
    spec_of,
    start_run,
)
from tests.support.waiting import LONG_WAIT
from workspaces.runtimes.docker import agent_socket
from workspaces.runtimes.docker.agent_socket import SocketChannel

__all__ = ["engine", "machine"]

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root reaches the files of a container"),
]


class Follower:
    """One `agent tail` of a run, or `agent exec --then tail` of a spec, served by PID 1."""

    def __init__(
        self, container: Container, run_id: str = "", *, spec: dict[str, Any] | None = None
    ) -> None:
        arguments = ["tail", run_id] if spec is None else ["exec", "--then", "tail"]
        channel = agent_socket.call_soon(container, arguments)
        assert channel is not None
        self.channel: SocketChannel = channel
        self._buffer = b""
        if spec is not None:
            content = json.dumps(spec).encode()
            self.channel.write(len(content).to_bytes(4, "big") + content)
            self._pass_line()
        self._pass_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def until(self, kind: int) -> list[Event]:
        """The events up to the first of a kind."""
        found = [self._event()]
        while found[-1].kind != kind:
            found.append(self._event())
        return found

    def acknowledge(self, sequence: int) -> None:
        """Say that everything up to there is committed."""
        self.channel.write(sequence.to_bytes(8, "big"))

    def forget(self) -> None:
        """Everything that has come."""
        while self.channel.read(0):
            pass
        self._buffer = b""

    def keepalive(self) -> None:
        """Wait for one, and nothing else."""
        assert self._frame() == b""

    def exit_code(self) -> int | None:
        """How it ended, after everything that it sent."""
        while self.channel.read(LONG_WAIT):
            pass
        return self.channel.exit_code()

    def _pass_line(self) -> None:
        while b"\n" not in self._buffer:
            self._receive()
        self._buffer = self._buffer.partition(b"\n")[2]

    def _event(self) -> Event:
        while not (content := self._frame()):
            pass
        return decode(content)

    def _frame(self) -> bytes:
        while len(self._buffer) < PREFIX.size:
            self._receive()
        size = PREFIX.size + PREFIX.unpack_from(self._buffer)[0]
        while len(self._buffer) < size:
            self._receive()
        content, self._buffer = self._buffer[PREFIX.size : size], self._buffer[size:]
        return content

    def _receive(self) -> None:
        data = self.channel.read(LONG_WAIT)
        assert data, self.channel.errors()
        self._buffer += data


def named(container: Container, name: str) -> int:
    """How many processes of a container have this name."""
    told = container.top(ps_args="-eo pid,comm")["Processes"]
    return sum(found == name for _, found in told)


KILL_WRITER = """
for process in /proc/[0-9]*; do
    if ls -l $process/fd | grep -q runs/{}/lock; then kill -KILL ${{process#/proc/}}; fi
done
"""
OFFER = """
import sys
sys.path.insert(0, "/usr/lib/svc/agent")
from agent.record.resting import Rest, offer
raise SystemExit(offer("/var/lib/svc/runs", Rest(sys.argv[1], 1, "", 0, True)))
"""


def test_a_tail_at_rest_has_no_process_until_there_is_something_for_it_to_do(
    machine: Machine,
) -> None:
    container = machine.start(record=RECORD | {"restart": False})
    boot_id = settled(container)["runId"]
    container.reload()
    waits = "until [ -e /tmp/go ]; do sleep 0.1; done; echo went on; exec sleep 600"
    ids = [boot_id, *(start_run(container, waits) for _ in range(3))]
    with contextlib.ExitStack() as stack:
        followers = [stack.enter_context(Follower(container, run_id)) for run_id in ids]
        booted, watched, lost, left = followers
        executed_now = stack.enter_context(Follower(container, spec=spec_of(waits)))
        followers.append(executed_now)
        assert named(container, "agent tail") == 4
        eventually(lambda: named(container, "agent tail") == 0)
        # Its recorder has the name of the call, too.
        eventually(lambda: named(container, "agent exec") == 1)

        # A stranger's connection is not taken; those that rest are told that they are served.
        assert executed(container, ["/usr/bin/python3", "-c", OFFER, boot_id])[0] == 0
        for follower in followers:
            follower.forget()
        for follower in followers:
            follower.keepalive()

        left.channel.close()
        run(container, KILL_WRITER.format(ids[2]))
        ended = lost.until(Kind.RECORD_SEALED)[-1]
        assert json.loads(ended.meta)["reason"] == "recorder-lost"
        lost.acknowledge(ended.sequence)
        assert lost.exit_code() == 0

        run(container, "touch /tmp/go")
        for follower in (watched, executed_now):
            assert follower.until(Kind.IO_CHUNK)[-1].body == b"went on\n"

        container.kill("SIGTERM")
        for follower in (watched, executed_now, booted):
            follower.acknowledge(follower.until(Kind.RECORD_SEALED)[-1].sequence)
