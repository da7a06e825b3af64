"""The adapter speaks to the agent in a container: whole answers, streams both ways, and files."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID, uuid4

import docker
import pytest
from docker.models.containers import Container

from runs.agent_archive import agent_archive
from tests.stack.worker_process import eventually
from tests.support.removal import remove_container
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import BASE_IMAGE, DOCKER_HOST, tar_of
from workspaces.runtimes.base import AgentAnswer, AgentChannel, LaunchError
from workspaces.runtimes.docker import DockerAdapter, agent_socket

pytestmark = pytest.mark.docker

MIB = 1024 * 1024
WAIT_SECONDS = LONG_WAIT


@dataclass
class Place:
    """A running container of an installation, and its adapter."""

    adapter: DockerAdapter
    run_id: UUID
    container: Container

    def open(self, *arguments: str) -> contextlib.closing[AgentChannel]:
        return contextlib.closing(self.adapter.open_agent(self.run_id, arguments))

    def call(
        self, *arguments: str, stdin: bytes = b"", timeout: float = WAIT_SECONDS
    ) -> AgentAnswer:
        return self.adapter.call_agent(self.run_id, arguments, stdin=stdin, timeout=timeout)


@pytest.fixture(scope="module")
def shell_image(docker_client: docker.DockerClient) -> str:
    """An image whose "agent" does what it is given as arguments."""
    dockerfile = f"""\
FROM {BASE_IMAGE}
COPY agent /usr/lib/svc/agent
RUN mkdir -p /var/lib/svc/runs/one && seq 1 200000 > /var/lib/svc/runs/one/numbers
CMD ["sleep", "infinity"]
"""
    context = tar_of(Dockerfile=dockerfile.encode(), agent=b'#!/bin/bash\nexec "$@"\n')
    image, _ = docker_client.images.build(
        fileobj=io.BytesIO(context), custom_context=True, forcerm=True
    )
    return str(image.id)


SERVER = b"""\
import os, signal, sys
sys.path.insert(0, "/usr/lib/svc/agent.zip")
from agent.boot.callers import Callers
from agent.boot.supervisor import Supervisor

def serve(arguments):
    os.execvp(arguments[0], arguments)

supervisor = Supervisor(1)
supervisor.callers = Callers("/var/lib/svc", serve)
while signal.SIGTERM not in supervisor.turn():
    pass
"""


@pytest.fixture(scope="module")
def serving_image(docker_client: docker.DockerClient, shell_image: str) -> str:
    """The same, and its first process serves calls as the agent's does."""
    dockerfile = f"""\
FROM {BASE_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends python3
COPY --from={shell_image} /usr/lib/svc/agent /usr/lib/svc/agent
COPY --from={shell_image} /var/lib/svc/runs /var/lib/svc/runs
COPY agent.zip serve.py /usr/lib/svc/
CMD ["python3", "/usr/lib/svc/serve.py"]
"""
    files = {"Dockerfile": dockerfile.encode(), "agent.zip": agent_archive(), "serve.py": SERVER}
    image, _ = docker_client.images.build(
        fileobj=io.BytesIO(tar_of(**files)),
        custom_context=True,
        forcerm=True,
        network_mode="host",
    )
    return str(image.id)


@pytest.fixture(params=["engine", "socket"])
def place(
    request: pytest.FixtureRequest,
    docker_client: docker.DockerClient,
    shell_image: str,
    serving_image: str,
) -> Iterator[Place]:
    """A container of its own for every test, reached in both ways."""
    instance_id, run_id = str(uuid4()), uuid4()
    served = request.param == "socket"
    container = docker_client.containers.run(
        serving_image if served else shell_image,
        name=f"svc-{run_id}",
        labels={"svc.instance": instance_id, "svc.run": str(run_id)},
        network_mode="none",
        init=not served,
        detach=True,
    )
    container.reload()
    if served:
        eventually(lambda: is_served(container), what="PID 1 serves calls")
    yield Place(DockerAdapter(DOCKER_HOST, instance_id, agent_socket=served), run_id, container)
    remove_container(container)


def is_served(container: Container) -> bool:
    """Whether a call needs no engine."""
    channel = agent_socket.call(container, ["true"])
    if channel is None:
        return False
    with contextlib.closing(channel):
        read_all(channel)
        return channel.exit_code() == 0


def read_all(channel: AgentChannel) -> bytes:
    """Everything until the end of the output."""
    said = []
    while chunk := channel.read(WAIT_SECONDS):
        said.append(chunk)
    assert chunk == b""
    return b"".join(said)


def test_a_call_gives_the_input_and_returns_both_streams_and_the_exit_code(place: Place) -> None:
    answer = place.call("sh", "-c", "cat; echo wrong >&2; exit 7", stdin=b"given" * 100_000)
    assert answer == AgentAnswer(7, b"given" * 100_000, b"wrong\n")


def test_a_call_runs_as_root(place: Place) -> None:
    assert place.call("id", "-u").stdout == b"0\n"


def test_what_a_program_says_at_once_is_not_lost(place: Place) -> None:
    assert {place.call("echo", "here").stdout for _ in range(20)} == {b"here\n"}


def test_a_call_does_not_wait_for_input_to_be_taken_that_nobody_reads(place: Place) -> None:
    assert place.call("echo", "done", stdin=b"x" * 4 * MIB).stdout == b"done\n"


def test_a_call_without_an_answer_in_time_ends_as_silent(place: Place) -> None:
    with pytest.raises(LaunchError) as caught:
        place.call("sleep", "600", timeout=1)
    assert caught.value.code == "agent-silent"


def test_a_runtime_that_does_not_exist_is_gone(place: Place) -> None:
    speak: list[Callable[[], object]] = [
        lambda: place.adapter.call_agent(uuid4(), ["true"], timeout=LONG_WAIT),
        lambda: place.adapter.open_agent(uuid4(), ["true"]),
    ]
    for to_nobody in speak:
        with pytest.raises(LaunchError) as caught:
            to_nobody()
        assert caught.value.code == "runtime-gone"


def test_the_container_of_another_installation_does_not_exist(place: Place) -> None:
    stranger = DockerAdapter(DOCKER_HOST, str(uuid4()))
    with pytest.raises(LaunchError) as caught:
        stranger.call_agent(place.run_id, ["true"], timeout=LONG_WAIT)
    assert caught.value.code == "runtime-gone"
    with stranger.read_files(place.run_id, "/etc") as chunks:
        assert chunks is None


def test_a_container_that_has_ended_does_not_run(place: Place) -> None:
    place.container.kill()
    with pytest.raises(LaunchError) as caught:
        place.call("true")
    assert caught.value.code == "runtime-not-running"


def test_a_container_that_is_paused_has_not_ended(place: Place) -> None:
    place.container.pause()
    try:
        with pytest.raises(LaunchError) as caught:
            place.call("true")
    finally:
        place.container.unpause()
    assert caught.value.code == "adapter-unavailable"


def test_a_container_that_is_known_and_started_again_is_found_again(place: Place) -> None:
    assert place.call("echo", "known").stdout == b"known\n"
    place.container.restart(timeout=0)
    place.container.reload()
    for _ in range(3):
        assert place.call("echo", "again").stdout == b"again\n"


def test_a_container_that_is_known_has_ended_or_is_paused_like_any_other(place: Place) -> None:
    assert refusal(place) is None
    place.container.pause()
    assert refusal(place) == "adapter-unavailable"
    place.container.unpause()
    assert refusal(place) is None
    place.container.kill()
    assert refusal(place) == "runtime-not-running"


def refusal(place: Place) -> str | None:
    """Return the code that a call is refused with, if it is."""
    try:
        place.call("true")
    except LaunchError as error:
        return error.code
    return None


def test_a_program_that_floods_its_standard_error_holds_nobody_up(place: Place) -> None:
    flood = ("bash", "-c", "while echo flood; do :; done >&2")
    with place.open(*flood) as channel:
        assert [channel.read(0.2) for _ in range(3)] == [None, None, None]
    with pytest.raises(LaunchError) as caught:
        place.call(*flood, timeout=2.0)
    assert caught.value.code == "agent-silent"


def test_an_engine_that_never_answers_is_unavailable(silent_engine: str) -> None:
    adapter = DockerAdapter(silent_engine, str(uuid4()), engine_timeout=0.3)
    for use in (
        lambda: adapter.call_agent(uuid4(), ["true"], timeout=LONG_WAIT),
        lambda: adapter.open_agent(uuid4(), ["true"]),
        lambda: adapter.read_files(uuid4(), "/etc").__enter__(),
    ):
        with pytest.raises(LaunchError) as caught:
            use()
        assert caught.value.code == "adapter-unavailable"


def test_sixty_four_mebibytes_go_in_and_out_unchanged(place: Place) -> None:
    data = os.urandom(64 * MIB)
    with place.open("cat") as channel:

        def give() -> None:
            channel.write(data)
            channel.close_input()

        writer = threading.Thread(target=give)
        writer.start()
        received, size = hashlib.sha256(), 0
        while chunk := channel.read(WAIT_SECONDS):
            received.update(chunk)
            size += len(chunk)
        writer.join()
        assert size == len(data)
        assert received.digest() == hashlib.sha256(data).digest()
        assert channel.exit_code() == 0


def test_input_ends_while_output_goes_on(place: Place) -> None:
    with place.open("sh", "-c", "wc -c; echo more") as channel:
        channel.write(b"12345")
        assert channel.read(0.2) is None
        channel.close_input()
        assert read_all(channel) == b"5\nmore\n"


def test_standard_error_is_kept_apart(place: Place) -> None:
    script = "i=0; while [ $i -lt 2000 ]; do echo out; echo err$i >&2; i=$((i+1)); done"
    with place.open("sh", "-c", script) as channel:
        assert read_all(channel) == b"out\n" * 2000
        assert channel.errors().endswith("err1998\nerr1999\n")
        assert len(channel.errors()) <= 8 * 1024


def test_the_exit_code_is_known_after_the_end_and_not_before(place: Place) -> None:
    with place.open("sh", "-c", "read line; exit 41") as channel:
        assert channel.exit_code() is None
        channel.write(b"\n")
        assert read_all(channel) == b""
        assert channel.exit_code() == 41


def test_a_container_killed_in_the_middle_ends_the_stream_without_an_exit_code(
    place: Place,
) -> None:
    with place.open("sh", "-c", "while :; do echo tick; done") as channel:
        assert channel.read(WAIT_SECONDS)
        place.container.kill()
        read_all(channel)
        assert channel.exit_code() is None
        with pytest.raises(LaunchError):
            channel.write(b"x" * 4 * MIB)


def test_closing_ends_a_read_that_waits_and_a_write_that_is_stuck(place: Place) -> None:
    with place.open("sleep", "infinity") as channel:
        read: list[bytes | None] = []
        failed: list[str] = []

        def write() -> None:
            try:
                channel.write(b"x" * 16 * MIB)
            except LaunchError as error:
                failed.append(error.code)

        threads = [
            threading.Thread(target=lambda: read.append(channel.read(WAIT_SECONDS))),
            threading.Thread(target=write),
        ]
        for thread in threads:
            thread.start()
        channel.close()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    assert read == [b""]
    assert failed == ["adapter-unavailable"]


@pytest.mark.parametrize("ended", [False, True])
def test_files_are_read_from_a_container_whether_it_runs_or_not(place: Place, ended: bool) -> None:
    if ended:
        place.container.kill()
    with place.adapter.read_files(place.run_id, "/var/lib/svc/runs") as chunks:
        assert chunks is not None
        data = b"".join(chunks)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.extractfile("runs/one/numbers")
        assert member is not None
        expected = "".join(f"{number}\n" for number in range(1, 200_001))
        assert member.read().decode() == expected


def test_files_that_are_not_there_are_none(place: Place) -> None:
    with place.adapter.read_files(place.run_id, "/nowhere") as chunks:
        assert chunks is None
    with place.adapter.read_files(uuid4(), "/etc") as chunks:
        assert chunks is None


def test_the_agent_is_reached_over_tcp_as_well(place: Place) -> None:
    with tcp_engine() as address:
        adapter = DockerAdapter(address, place.adapter.instance_id, agent_socket=False)
        answer = adapter.call_agent(place.run_id, ["cat"], stdin=b"x" * MIB, timeout=WAIT_SECONDS)
        assert (answer.exit_code, len(answer.stdout)) == (0, MIB)
        with adapter.read_files(place.run_id, "/var/lib/svc/runs") as chunks:
            assert chunks is not None
            assert sum(map(len, chunks)) > MIB


# ---------------------------------------------------------------- what a workspace may put there


POSING = """
import os, socket
server = socket.socket(socket.AF_UNIX)
server.bind("/var/lib/svc/other.sock")
server.listen(8)
os.rename("/var/lib/svc/other.sock", "/var/lib/svc/agent.sock")
while True:
    connection, _ = server.accept()
    connection.recv(1000)
    connection.send(b"+forged")
"""


@pytest.mark.parametrize("place", ["socket"], indirect=True)
@pytest.mark.parametrize(
    "script",
    [
        "ln -sf /run/elsewhere.sock agent.sock",
        "rm agent.sock && touch agent.sock",
        "rm agent.sock && mkfifo agent.sock",
        "rm agent.sock && mkdir agent.sock",
        "rm agent.sock",
        "cd .. && mv svc other && ln -s other svc",
    ],
)
def test_the_engine_is_asked_when_something_else_lies_in_the_sockets_place(
    place: Place, script: str
) -> None:
    done = place.container.exec_run(["sh", "-ec", f"cd /var/lib/svc && {script}"])
    assert done.exit_code == 0, done.output

    assert agent_socket.call(place.container, ["echo", "served"]) is None

    assert place.call("echo", "here").stdout == b"here\n"


@pytest.mark.parametrize("place", ["socket"], indirect=True)
def test_a_program_that_poses_as_the_first_process_is_not_believed(place: Place) -> None:
    place.container.exec_run(["rm", "/var/lib/svc/agent.sock"])
    place.container.exec_run(["python3", "-c", POSING], detach=True)
    bound = ["test", "-S", "/var/lib/svc/agent.sock"]
    eventually(lambda: place.container.exec_run(bound).exit_code == 0, what="it is bound")

    assert agent_socket.call(place.container, ["true"]) is None
    assert place.call("echo", "here").stdout == b"here\n"


@pytest.mark.parametrize("place", ["socket"], indirect=True)
def test_garbage_at_the_socket_stops_nobody_else(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_socket, "ANSWER_SECONDS", LONG_WAIT)
    # Each as one piece for the kernel: of two, the second may come after the end of the connection.
    garbage = (
        "import socket\n"
        "for text in (b'{}\\n', b'no json\\n', b'[' * 30000, b'{\"arguments\": [7]}\\n',"
        " b'{\"arguments\": [\"boot\"]}\\n', b''):\n"
        "    peer = socket.socket(socket.AF_UNIX)\n"
        "    peer.connect('/var/lib/svc/agent.sock')\n"
        "    peer.send(text)\n"
        "    if text: assert peer.recv(10) == b'', text[:20]\n"
        "idle = [socket.socket(socket.AF_UNIX) for _ in range(30)]\n"
        "for peer in idle: peer.connect('/var/lib/svc/agent.sock')\n"
        "print('done')\n"
    )
    done = place.container.exec_run(["python3", "-c", garbage])
    assert done.output == b"done\n"
    assert is_served(place.container)


def test_a_container_that_has_just_started_is_called_without_the_engine_once_it_serves(
    docker_client: docker.DockerClient, serving_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long a busy machine takes to have it serve, and to have it answer.
    monkeypatch.setattr(agent_socket, "SERVING_SECONDS", LONG_WAIT)
    monkeypatch.setattr(agent_socket, "ANSWER_SECONDS", LONG_WAIT)
    instance_id, run_id = str(uuid4()), uuid4()
    container = docker_client.containers.create(
        serving_image,
        name=f"svc-{run_id}",
        labels={"svc.instance": instance_id, "svc.run": str(run_id)},
        network_mode="none",
    )
    try:
        container.start()  # returns when the first process is there, before it is ready
        adapter = DockerAdapter(DOCKER_HOST, instance_id)

        with contextlib.closing(adapter.open_agent(run_id, ["true"])) as channel:
            assert isinstance(channel, agent_socket.SocketChannel)
    finally:
        remove_container(container)


@pytest.mark.parametrize("place", ["socket"], indirect=True)
def test_who_is_not_root_cannot_connect(place: Place) -> None:
    connect = "import socket; socket.socket(socket.AF_UNIX).connect('/var/lib/svc/agent.sock')"
    done = place.container.exec_run(["python3", "-c", connect], user="1000")
    assert b"PermissionError" in done.output


@contextlib.contextmanager
def tcp_engine() -> Iterator[str]:
    """The engine's Unix socket behind a TCP port; half-closed connections stay half-closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        engine = socket.socket(socket.AF_UNIX)
        engine.connect(DOCKER_HOST.removeprefix("unix://"))
        ways = [
            threading.Thread(target=_pass_on, args=way, daemon=True)
            for way in ((client, engine), (engine, client))
        ]
        for thread in ways:
            thread.start()
        threading.Thread(target=_close_after, args=(ways, client, engine), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _close_after(threads: list[threading.Thread], *sockets: socket.socket) -> None:
    for thread in threads:
        thread.join()
    for end in sockets:
        end.close()
