"""The way to an engine of another machine: TLS, both directions, each with an end of its own."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.waiting import LONG_WAIT
from workspaces.engines.certificates import CertificatesError, make_certificates
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.remote import engine_folders
from workspaces.runtimes.docker.remote.engine_folders import docker_host_of
from workspaces.runtimes.docker.remote.tls_tunnel import EngineAddress, TlsTunnel

MIB = 1024**2
SECONDS = LONG_WAIT


def certificates(folder: Path, address: str = "127.0.0.1") -> Path:
    make_certificates(folder, name="second", address=address)
    return folder


@contextlib.contextmanager
def server(folder: Path, answer: Callable[[ssl.SSLSocket], None]) -> Iterator[int]:
    """Serve one TLS connection after the other, as dockerd does with ``tlsverify``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            plain.settimeout(SECONDS)
            with (
                plain,
                contextlib.suppress(OSError),
                context.wrap_socket(plain, server_side=True) as connection,
            ):
                answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@contextlib.contextmanager
def tunnel(port: int, folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    made = TlsTunnel(EngineAddress.of(f"tcp://{host}:{port}", folder))
    try:
        yield made.docker_host.removeprefix("unix://")
    finally:
        made.close()


@contextlib.contextmanager
def connected(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        connection.connect(path)
        yield connection


def all_of(connection: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ssl.SSLError):  # its end
        while data := connection.recv(65536):
            received += data
    return received


def test_what_goes_in_comes_out_and_the_answer_comes_after_the_end_of_the_question(
    tmp_path: Path,
) -> None:
    """As an exec's input: its end has to arrive while its output is still to come."""
    folder = certificates(tmp_path / "made")
    question = hashlib.sha256(b"question").digest() * (4 * MIB // 32)

    def answer(connection: ssl.SSLSocket) -> None:
        taken = b""
        while data := connection.recv(65536):  # until its end
            taken += data
        connection.sendall(hashlib.sha256(taken).digest() * (4 * MIB // 32))

    with server(folder / "server", answer) as port, tunnel(port, folder / "client") as path:
        for _ in range(3):
            with connected(path) as connection:
                connection.sendall(question)
                connection.shutdown(socket.SHUT_WR)
                expected = hashlib.sha256(question).digest() * (4 * MIB // 32)
                assert all_of(connection) == expected


def test_both_directions_go_at_once_whichever_is_slow(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "made")

    def echo(connection: ssl.SSLSocket) -> None:
        while data := connection.recv(65536):
            connection.sendall(data)

    with (
        server(folder / "server", echo) as port,
        tunnel(port, folder / "client") as path,
        connected(path) as connection,
    ):
        sent = bytes(range(256)) * 8192

        def write() -> None:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)

        writer = threading.Thread(target=write)
        writer.start()
        assert all_of(connection) == sent
        writer.join()


@pytest.mark.parametrize("whose", ["another CA", "another name"])
def test_an_engine_that_cannot_prove_who_it_is_gets_nothing(tmp_path: Path, whose: str) -> None:
    folder = certificates(tmp_path / "made", "10.9.9.9" if whose == "another name" else "127.0.0.1")
    shown = folder
    if whose == "another CA":
        shown = certificates(tmp_path / "other")
    taken: list[bytes] = []
    with (
        server(shown / "server", lambda connection: taken.append(connection.recv(100))) as port,
        tunnel(port, folder / "client") as path,
        connected(path) as connection,
    ):
        with contextlib.suppress(OSError):
            connection.sendall(b"secret")
        with contextlib.suppress(OSError):
            assert connection.recv(100) == b""
    assert taken == []


def test_only_this_user_reaches_the_socket_and_it_goes_with_the_tunnel(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "made")
    with tunnel(1, folder / "client") as path:
        assert Path(path).parent.stat().st_mode & 0o777 == 0o700
        assert Path(path).stat().st_mode & 0o777 == 0o600
    assert not Path(path).parent.exists()


def test_certificates_are_private_and_never_overwritten(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "made")
    for file in (folder / "server" / "key.pem", folder / "client" / "key.pem"):
        assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(CertificatesError, match="Name a folder that has none"):
        make_certificates(folder, name="second", address="127.0.0.1")


def test_addresses_and_certificates_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    for url in ("unix:///x", "tcp://", "tcp://host:no"):
        with pytest.raises(LaunchError, match="address"):
            EngineAddress.of(url, tmp_path)
    with pytest.raises(LaunchError, match="certificates"):
        TlsTunnel(EngineAddress.of("tcp://127.0.0.1:1", tmp_path))


def test_a_certificate_that_was_renewed_under_the_same_ca_is_used_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[tuple[int, str, bytes, bytes], TlsTunnel] = {}
    monkeypatch.setattr(engine_folders, "_tunnels", made)
    folder = certificates(tmp_path / "made")
    client = folder / "client"
    (client / "address").write_text("tcp://127.0.0.1:1")
    first = docker_host_of(client)
    try:
        assert docker_host_of(client) == first
        for name in ("key.pem", "cert.pem"):
            shutil.copy(folder / "server" / name, client / name)
        assert docker_host_of(client) not in (first, "tcp://127.0.0.1:1")
    finally:
        for each in made.values():
            each.close()
