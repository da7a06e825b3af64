"""What is done in a Pod by exec besides calls of the agent: its configuration, files, signals."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import PurePosixPath

from workspaces.runtimes import boot
from workspaces.runtimes.base import AgentAnswer, FileReader, LaunchError
from workspaces.runtimes.kubernetes.agent_calls import AgentExecs
from workspaces.runtimes.kubernetes.cluster import Cluster
from workspaces.runtimes.kubernetes.pod_channel import ExecChannel
from workspaces.runtimes.kubernetes.pods import KEEPER, STATE_DIRECTORY, WORKSPACE

GIVE_SECONDS = 30.0
SIGNAL_SECONDS = 10.0
FILE_SECONDS = 30.0
NOT_THERE = 44
NOTHING_GIVEN = 47
CONFIGURATION = f"{boot.CONFIG_DIRECTORY}/{boot.CONFIG_FILE}"
_LOOK = f"""
[ -e /var/lib/svc/given ] || exit {NOTHING_GIVEN}
[ -e "$1" ] && [ ! -e /var/lib/svc/begin ]
"""
_READ = f'[ -e "$1/$2" ] || exit {NOT_THERE}; exec tar -cf - -C "$1" -- "$2"'


class Given(Enum):
    """How much of its agent's configuration a Pod has."""

    NOTHING = "nothing"
    PART = "part"
    """A launch is giving it, or has died at that."""
    ALL = "all"
    """Its agent has begun."""


def give_configuration(execs: AgentExecs, pod: str, configuration: Mapping[str, object]) -> bool:
    """Give a Pod what its agent waits for; False when another launch has done that."""
    content = json.dumps(configuration, ensure_ascii=False, separators=(",", ":")).encode()
    answer = execs.call(pod, {"give": CONFIGURATION}, stdin=content, timeout=GIVE_SECONDS)
    if answer is None:
        raise LaunchError("agent-silent", f"The workspace took nothing for {GIVE_SECONDS:g} s.")
    return not answer.exit_code


def given(cluster: Cluster, pod: str) -> Given:
    """Return how much of its agent's configuration a Pod has."""
    command = ["/bin/sh", "-c", _LOOK, "look", CONFIGURATION]
    code = _run(cluster, pod, WORKSPACE, command, b"", SIGNAL_SECONDS).exit_code
    return {0: Given.ALL, NOTHING_GIVEN: Given.NOTHING}.get(code, Given.PART)


def ask_to_end(cluster: Cluster, pod: str) -> None:
    """Have the agent end everything in order."""
    _run(cluster, pod, WORKSPACE, ["/bin/sh", "-c", "kill -TERM 1"], b"", SIGNAL_SECONDS)


def kill_all(cluster: Cluster, pod: str) -> None:
    """Kill every process but the first, which then ends by itself."""
    with contextlib.suppress(LaunchError):
        _run(cluster, pod, WORKSPACE, ["/bin/sh", "-c", "kill -KILL -1"], b"", SIGNAL_SECONDS)


def reader(cluster: Cluster, pod: str, *, running: Callable[[], bool]) -> FileReader:
    """Return what reads files out of a Pod: all of them while it runs, then the agent's."""

    @contextlib.contextmanager
    def read(path: str) -> Iterator[Iterator[bytes] | None]:
        place = PurePosixPath(path)
        kept = place.is_relative_to(STATE_DIRECTORY)
        if not kept and not running():
            yield None
            return
        command = ["/bin/sh", "-c", _READ, "read", str(place.parent), place.name]
        try:
            channel = ExecChannel.open(
                cluster.access,
                cluster.namespace,
                pod,
                KEEPER if kept else WORKSPACE,
                command,
                timeout=FILE_SECONDS,
                framed=False,
            )
        except LaunchError as error:
            if error.code not in ("runtime-gone", "runtime-not-running"):
                raise
            yield None
            return
        with contextlib.closing(channel):
            first = channel.read(FILE_SECONDS)
            if not first:
                if channel.exit_code() == NOT_THERE:
                    yield None
                    return
                raise LaunchError("adapter-unavailable", "The Pod's files cannot be read.")
            yield _chunks(first, channel)

    return read


def _chunks(first: bytes, channel: ExecChannel) -> Iterator[bytes]:
    yield first
    while data := channel.read(FILE_SECONDS):
        yield data
    # Without an exit code the connection was cut, and above 128 tar was killed. With another one it
    # is whole: a file that changes is 1.
    code = channel.exit_code()
    if data is None or code is None or code > 128:
        raise LaunchError("adapter-unavailable", "The Pod's files are no longer being sent.")


def _run(
    cluster: Cluster, pod: str, container: str, command: list[str], stdin: bytes, seconds: float
) -> AgentAnswer:
    channel = ExecChannel.open(
        cluster.access,
        cluster.namespace,
        pod,
        container,
        command,
        timeout=seconds,
        framed=False,
    )
    with contextlib.closing(channel):
        answer = channel.answer(stdin, seconds)
    if answer is None:
        raise LaunchError("agent-silent", f"The workspace did not answer for {seconds:g} s.")
    return answer
