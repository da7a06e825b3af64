"""Which one of a part is used, and what is said when there is none."""

from __future__ import annotations

import contextlib
import http.server
import io
import os
import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.services import engine
from deploy.services.errors import SetupError
from deploy.services.process import wait_until
from deploy.services.registry import found_address
from deploy.up import packages
from deploy.up.layout import Layout
from deploy.up.packages import Missing
from deploy.up.parts import EnginePart, PostgresPart, RabbitMQPart, RegistryPart
from deploy.up.progress import Progress
from deploy.up.secrets import ensure_secrets, read_settings
from deploy.up.setup import only_one
from tests.support.waiting import LONG_WAIT


def _values(layout: Layout, **more: str) -> dict[str, str]:
    ensure_secrets(layout.secrets)
    return {**read_settings(layout.secrets), **more}


@contextmanager
def _answering(status: int, headers: dict[str, str]) -> Iterator[int]:
    """A web server on a free port that answers everything alike."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Stay quiet."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


REGISTRY = {"Docker-Distribution-Api-Version": "registry/2.0"}


def test_a_registry_is_looked_for_and_started_at_the_port_that_is_wanted(layout: Layout) -> None:
    with _answering(200, REGISTRY) as port:
        part = RegistryPart(layout, _values(layout, SVC_REGISTRY_PORT=str(port)))
        found = part.found()
        assert found is not None
        assert found.settings["REGISTRY_BASE_URL"] == f"http://127.0.0.1:{port}"
        assert part.private().address == f"127.0.0.1:{port}"


@pytest.mark.parametrize("text", ["0", "65536", "-1", "many", "5000 "])
def test_a_registrys_port_that_is_none_is_told(layout: Layout, text: str) -> None:
    part = RegistryPart(layout, _values(layout, SVC_REGISTRY_PORT=text))
    if text.strip() != text:
        assert part.private().address.endswith(":5000")
        return
    with pytest.raises(SetupError, match="SVC_REGISTRY_PORT"):
        part.private()


def test_a_given_registry_is_used_and_says_where_to_push(layout: Layout) -> None:
    with _answering(200, REGISTRY) as port:
        url = f"http://127.0.0.1:{port}"
        choice = RegistryPart(layout, _values(layout, REGISTRY_BASE_URL=url)).choose(forced=False)
    assert choice is not None
    assert (choice.how, choice.why) == ("given", "REGISTRY_BASE_URL is set")
    assert choice.settings["REGISTRY_PUSH_REGISTRY"] == f"127.0.0.1:{port}"
    assert choice.service is None


def test_a_given_address_where_nothing_answers_is_an_error_without_its_password(
    layout: Layout,
) -> None:
    values = _values(layout, DATABASE_URL="postgres://svc:hunter2@127.0.0.1:1/svc")
    with pytest.raises(SetupError) as error:
        PostgresPart(layout, values).choose(forced=False)
    assert "DATABASE_URL says postgres://127.0.0.1:1/svc, but nothing answers" in str(error.value)
    assert "hunter2" not in str(error.value)


def test_an_address_may_be_given_in_a_file(layout: Layout) -> None:
    secret = layout.data / "rabbitmq-url"
    secret.write_text("amqp://svc:hunter2@127.0.0.1:1/\n")
    with pytest.raises(SetupError, match=r"RABBITMQ_URL says amqp://127\.0\.0\.1:1/,"):
        RabbitMQPart(layout, _values(layout, RABBITMQ_URL_FILE=str(secret))).choose(forced=False)


@pytest.mark.parametrize(
    ("status", "headers"), [(401, REGISTRY), (200, {}), (404, {}), (500, REGISTRY)]
)
def test_something_else_on_the_registry_port_is_not_taken_for_one(
    status: int, headers: dict[str, str]
) -> None:
    with _answering(status, headers) as port:
        assert found_address(port=port) is None


def test_an_open_registry_is_found() -> None:
    with _answering(200, REGISTRY) as port:
        assert found_address(port=port) == f"127.0.0.1:{port}"


def test_a_private_service_is_used_when_it_is_asked_for(layout: Layout) -> None:
    with _answering(200, REGISTRY) as port:
        values = _values(layout, REGISTRY_BASE_URL=f"http://127.0.0.1:{port}")
        choice = RegistryPart(layout, values).choose(forced=True)
    assert choice is not None
    assert choice.how == "private"
    assert choice.service is not None
    assert choice.service.root == layout.services / "registry"


def test_data_that_lies_here_is_used_before_anything_that_runs(layout: Layout) -> None:
    values = _values(layout)
    part = RegistryPart(layout, values)
    (part.root / "data").mkdir(parents=True)
    choice = part.choose(forced=False)
    assert choice is not None
    assert (choice.how, choice.why) == ("private", "its data lies here")


class _Engine(socketserver.BaseRequestHandler):
    """Answers like the ping of a Docker Engine, of the version its server has."""

    def handle(self) -> None:
        self.request.recv(4096)
        version = getattr(self.server, "api_version", "")
        head = f"HTTP/1.1 200 OK\r\nApi-Version: {version}\r\nContent-Length: 2\r\n\r\nOK"
        self.request.sendall(head.encode())


@contextmanager
def _engine(path: Path, api_version: str) -> Iterator[str]:
    with socketserver.UnixStreamServer(str(path), _Engine) as server:
        server.api_version = api_version  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"unix://{path}"
        server.shutdown()
        thread.join()


def test_an_engine_that_answers_is_found(open_directory: Path) -> None:
    nobody = f"unix://{open_directory / 'nobody.sock'}"
    with _engine(open_directory / "docker.sock", "1.41") as host:
        assert engine.found_host([nobody, host]) == host
        assert engine.found_host([nobody]) is None


def test_an_engine_that_is_too_old_is_not_found(open_directory: Path) -> None:
    with _engine(open_directory / "docker.sock", "1.40") as host:
        assert engine.found_host([host]) is None


def test_the_path_of_an_engine_s_socket_is_enough(layout: Layout, open_directory: Path) -> None:
    socket_path = open_directory / "docker.sock"
    values = _values(layout, CONTAINER_SOCKET_PATH=str(socket_path))
    with _engine(socket_path, "1.41") as host:
        choice = EnginePart(layout, values).choose(forced=False)
    assert choice is not None
    assert choice.settings["DOCKER_HOST"] == host


def _client(directory: Path, name: str, *, version: str, talks: bool, buildx: bool) -> str:
    """A Docker client that says this version, reaches the engine or not, has buildx or not."""
    program = directory / name
    program.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && echo "Docker version {version}, build x" && exit 0\n'
        f'[ "$1" = buildx ] && exit {0 if buildx else 1}\n'
        f"{'echo 28.0' if talks else 'exit 1'}\n"
    )
    program.chmod(0o755)
    return str(program)


def test_a_client_with_buildkit_is_preferred(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bare", "old", "mute"):
        (open_directory / name).mkdir()
    bare = _client(open_directory / "bare", "docker", version="28.2.2", talks=True, buildx=False)
    old = _client(open_directory / "old", "docker", version="20.10.24", talks=True, buildx=False)
    mute = _client(open_directory / "mute", "docker", version="20.10.24", talks=False, buildx=True)
    host = "unix:///nowhere/docker.sock"

    def chosen(*clients: str) -> str:
        path = ":".join(str(Path(client).parent) for client in clients)
        monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
        return engine.choose_client(host, {})

    # The machine's own clients cannot reach a socket that does not exist.
    assert chosen(bare, old) == old
    assert chosen(mute, bare) == bare
    with pytest.raises(SetupError, match="can talk to the engine"):
        chosen(mute)
    assert engine.choose_client(host, {"DOCKER_CLI": "podman"}) == "podman"


def test_everything_that_is_missing_is_named_at_once() -> None:
    error = packages.refuse(
        [
            Missing("PostgreSQL", ("postgresql",), "or set DATABASE_URL"),
            Missing("RabbitMQ", ("rabbitmq-server",), "or set RABBITMQ_URL"),
            Missing("git", ("git",)),
        ]
    )
    lines = str(error).splitlines()
    assert lines[0] == "The following is missing:"
    assert lines[1] == "  - PostgreSQL  (apt packages: postgresql; or set DATABASE_URL)"
    assert lines[2] == "  - RabbitMQ  (apt packages: rabbitmq-server; or set RABBITMQ_URL)"
    assert lines[3] == "  - git  (apt packages: git)"
    assert len(lines) in {5, 6}


def test_an_engine_that_is_installed_is_not_to_be_installed(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = tmp_path / "bin" / "dockerd"
    server.parent.mkdir()
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    monkeypatch.setenv("PATH", str(server.parent))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    told = str(packages.refuse([EnginePart(layout, _values(layout)).missing()]))
    assert "apt" not in told
    assert "installed, but not running: start it, set DOCKER_HOST, or run this as root" in told


def _fail(progress: Progress) -> None:
    with contextlib.suppress(SetupError), progress.step("RabbitMQ") as step:
        step.now("starting")
        raise SetupError("no")


def test_progress_in_a_log_has_a_line_for_each_change_and_no_control_character() -> None:
    out = io.StringIO()
    progress = Progress(out)
    with progress.step("PostgreSQL") as step:
        step.now("starting a private one")
        step.done("private")
    _fail(progress)
    lines = re.sub(r"\(\d+\.\d s\)", "(seconds)", out.getvalue()).splitlines()
    assert [line.split() for line in lines] == [
        ["...", "PostgreSQL", "starting", "a", "private", "one"],
        ["ok", "PostgreSQL", "private", "(seconds)"],
        ["...", "RabbitMQ", "starting"],
        ["FAILED", "RabbitMQ", "starting", "(seconds)"],
    ]
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()


def test_a_second_set_up_of_one_checkout_waits_and_says_so(layout: Layout) -> None:
    first, second = io.StringIO(), io.StringIO()
    order: list[str] = []

    def later() -> None:
        with only_one(layout, Progress(second)):
            order.append("second")

    with only_one(layout, Progress(first)):
        thread = threading.Thread(target=later)
        thread.start()
        assert wait_until(lambda: "waiting" in second.getvalue(), LONG_WAIT)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert first.getvalue() == ""
