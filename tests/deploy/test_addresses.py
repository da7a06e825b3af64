"""Where our own processes listen, and what is said when they do not answer there."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.services.errors import SetupError
from deploy.services.ports import is_free
from deploy.up import packages
from deploy.up.addresses import (
    api_url,
    remembered_ports,
    settle_ports,
    ssh_host,
    ssh_port,
    ssh_user,
)
from deploy.up.environment import load_derived, own_origins
from deploy.up.layout import Layout
from deploy.up.progress import Progress
from deploy.up.ready import ssh_problem
from tests.stack.free_ports import free_port

FREE = {"SVC_PREVIEW_PORT": "0", "SVC_WEB_PORT": "0", "SVC_EGRESS_PORT": "0"}
PORTS = ("SVC_API_PORT", "SVC_SSH_PORT", "SVC_PREVIEW_PORT", "SVC_WEB_PORT", "SVC_EGRESS_PORT")


@pytest.fixture(autouse=True)
def _no_port_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in PORTS:
        monkeypatch.delenv(setting, raising=False)


@contextmanager
def _listening(greeting: bytes | None = None) -> Iterator[int]:
    """A server that sends one greeting to whoever connects, and then closes; or never accepts."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            while greeting is not None:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(greeting)

        thread = threading.Thread(target=greet)
        thread.start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _environ(layout: Layout, **more: str) -> dict[str, str]:
    return {**remembered_ports(layout), **more}


def test_the_customary_ports_are_used_until_one_is_taken(layout: Layout) -> None:
    assert remembered_ports(layout) == {
        "SVC_API_PORT": "4000",
        "SVC_SSH_PORT": "2222",
        "SVC_PREVIEW_PORT": "4080",
        "SVC_WEB_PORT": "3000",
        "SVC_EGRESS_PORT": "4053",
    }


@pytest.mark.parametrize(
    ("setting", "title"),
    [
        ("SVC_API_PORT", "the API"),
        ("SVC_SSH_PORT", "the SSH gateway"),
        ("SVC_PREVIEW_PORT", "the preview gateway"),
        ("SVC_WEB_PORT", "the web"),
        ("SVC_EGRESS_PORT", "the egress proxy"),
    ],
)
def test_a_taken_port_is_replaced_by_a_free_one_that_is_kept(
    layout: Layout, setting: str, title: str
) -> None:
    said = io.StringIO()
    with _listening() as taken:
        ports = dict.fromkeys(PORTS, str(free_port()))
        environ = {**ports, setting: str(taken)}
        settled = settle_ports(layout, environ, Progress(said))
        chosen = int(settled[setting])
        assert chosen != taken
        assert is_free(chosen)
    assert f"Port {taken} is taken by another program: {title} listens on {chosen}" in (
        said.getvalue()
    )
    assert settled == {**environ, setting: str(chosen)}
    assert load_derived(layout)[setting] == str(chosen)
    assert remembered_ports(layout)[setting] == str(chosen)


def test_a_port_that_was_replaced_is_the_one_whose_pages_may_read(layout: Layout) -> None:
    with _listening() as taken:
        ports = {"SVC_API_PORT": str(taken), "SVC_SSH_PORT": "0", **FREE}
        environ = {**ports, "SVC_CORS_ALLOWED_ORIGINS": own_origins(ports)}
        settled = settle_ports(layout, environ, Progress(io.StringIO()))
    assert settled["SVC_API_PORT"] != str(taken)
    assert settled["SVC_CORS_ALLOWED_ORIGINS"] == own_origins(settled)


def test_a_taken_port_that_was_asked_for_is_an_error(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _listening() as taken:
        monkeypatch.setenv("SVC_SSH_PORT", str(taken))
        environ = {"SVC_API_PORT": "0", "SVC_SSH_PORT": str(taken), **FREE}
        with pytest.raises(SetupError, match=f"SVC_SSH_PORT says {taken}, but something else"):
            settle_ports(layout, environ, Progress(io.StringIO()))


@pytest.mark.parametrize(
    ("bound", "url"),
    [
        ("", "http://127.0.0.1:4000"),
        ("0.0.0.0", "http://127.0.0.1:4000"),  # noqa: S104 - read, not bound
        ("::", "http://[::1]:4000"),
        ("10.0.0.7", "http://10.0.0.7:4000"),
    ],
)
def test_this_machine_reaches_the_api_wherever_it_listens(bound: str, url: str) -> None:
    assert api_url({"SVC_BIND_HOST": bound}) == url


def test_a_login_is_written_as_the_settings_say() -> None:
    assert (ssh_host({}), ssh_port({}), ssh_user({}, "W")) == ("localhost", 2222, "ws-W")
    environ = {
        "SVC_SSH_HOST": "gateway.example",
        "SVC_SSH_PORT": "22",
        "SSH_GATEWAY_WORKSPACE_USERNAME_PREFIX": "dev",
    }
    told = (ssh_host(environ), ssh_port(environ), ssh_user(environ, "W"))
    assert told == ("gateway.example", 22, "dev-W")


def test_only_a_server_that_greets_in_ssh_is_the_gateway() -> None:
    with _listening(b"SSH-2.0-AsyncSSH_2.24\r\n") as port:
        assert ssh_problem({"SVC_SSH_PORT": str(port)}) == ""
    with _listening(b"HTTP/1.1 400 Bad Request\r\n") as port:
        assert "not as an SSH server" in ssh_problem({"SVC_SSH_PORT": str(port)})
    with _listening(b"") as port:
        assert "not as an SSH server" in ssh_problem({"SVC_SSH_PORT": str(port)})
    assert "Connection refused" in ssh_problem({"SVC_SSH_PORT": str(free_port())})


def test_the_set_up_installs_the_clients_with_which_workspaces_are_entered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packages, "find_program", lambda *names: None)
    monkeypatch.setattr(packages, "_SFTP_SERVER", Path("/no/such/program"))
    monkeypatch.setattr(packages, "_OPENID_MODULE", Path("/no/such/module"))
    demo = packages.missing_ssh_clients(test=False)
    tests = packages.missing_ssh_clients(test=True)
    assert [part.packages for part in demo] == [("openssh-client",)]
    assert [part.packages for part in tests] == [
        ("openssh-client",),
        ("rsync",),
        ("strace",),
        ("npm",),
        ("nginx-light",),
        ("haproxy",),
        ("apache2-bin", "libapache2-mod-auth-openidc"),
        ("curl",),
        ("jq",),
        ("postgresql-client",),
        ("openssh-sftp-server",),
    ]
