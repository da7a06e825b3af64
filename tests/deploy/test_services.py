"""Private services: really started, killed, restarted, and their data kept."""

from __future__ import annotations

import getpass
import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pika
import psycopg
import pytest
import requests

from deploy.services.account import Account
from deploy.services.engine import PrivateEngine, api_version, mounts_below
from deploy.services.errors import MissingPartsError, SetupError, StartError
from deploy.services.ports import is_free
from deploy.services.postgres import PrivatePostgres, found_url
from deploy.services.private import PrivateService
from deploy.services.process import wait_until
from deploy.services.rabbitmq import CONSUMER_TIMEOUT_MS, PrivateRabbitMQ, accepts
from deploy.services.registry import PrivateRegistry
from tests.support.broker_parameters import patient_parameters
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.slow

PASSWORD = "p/w@x: %41"


def _kept_until_the_end(service: PrivateService) -> Iterator[None]:
    try:
        yield
    finally:
        service.stop()


@pytest.fixture
def postgres(open_directory: Path) -> Iterator[PrivatePostgres]:
    service = PrivatePostgres(open_directory / "postgres", None, PASSWORD)
    for _ in _kept_until_the_end(service):
        yield service


@pytest.fixture
def rabbitmq(open_directory: Path) -> Iterator[PrivateRabbitMQ]:
    service = PrivateRabbitMQ(open_directory / "rabbitmq", None, PASSWORD)
    for _ in _kept_until_the_end(service):
        yield service


@pytest.fixture
def registry(open_directory: Path) -> Iterator[PrivateRegistry]:
    service = PrivateRegistry(open_directory / "registry", None, PASSWORD)
    for _ in _kept_until_the_end(service):
        yield service


def test_a_private_postgres_keeps_its_rows_over_stop_and_kill(postgres: PrivatePostgres) -> None:
    assert postgres.start() is True
    assert postgres.start() is False
    first_url = postgres.url
    with psycopg.connect(postgres.url) as connection:
        connection.execute("create table kept (line text)")
        connection.execute("insert into kept values ('still here')")
        (limit,) = connection.execute("show max_connections").fetchone() or ("",)
    assert limit == "200"

    postgres.restart()
    pid = postgres.pid
    postgres.kill()
    assert not postgres.running
    assert postgres.start() is True
    assert postgres.pid != pid

    assert postgres.url == first_url
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute("select line from kept").fetchall() == [("still here",)]
    assert postgres.stop() is True
    assert postgres.stop() is False
    assert is_free(postgres.port)


def test_another_object_on_the_same_directory_takes_the_server_over(
    postgres: PrivatePostgres,
) -> None:
    postgres.start()
    other = PrivatePostgres(postgres.root, None, PASSWORD)
    assert (other.pid, other.url) == (postgres.pid, postgres.url)
    assert other.start() is False
    assert other.stop() is True
    assert not postgres.running


def test_a_lost_password_is_reported_and_the_data_is_left_alone(postgres: PrivatePostgres) -> None:
    postgres.start()
    postgres.stop()
    stranger = PrivatePostgres(postgres.root, None, "another")
    with pytest.raises(SetupError, match="put the old one back"):
        stranger.start()
    stranger.stop()
    postgres.start()
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_service_moves_when_a_stranger_has_taken_its_port(registry: PrivateRegistry) -> None:
    with _stranger_at_its_port(registry):
        taken = registry.port
        registry.start()
        assert registry.port != taken
        assert registry.answers()


def _stranger_at_its_port(registry: PrivateRegistry) -> socket.socket:
    """A server at the port of a stopped registry; of its next one if another was faster."""
    for _ in range(5):
        registry.start()
        registry.stop()
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", registry.port))
    raise AssertionError("somebody else was faster at each port")


class _TriedOnce(PrivateRegistry):
    """A registry that is started once, with all the time that it takes to fail."""

    start_seconds = 0.0

    def _start_once(self, deadline: float) -> bool:
        return super()._start_once(deadline + LONG_WAIT)


def test_a_service_that_was_given_a_port_does_not_move(open_directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        registry = _TriedOnce(open_directory / "registry", port, PASSWORD)
        with pytest.raises(StartError, match="address already in use"):
            registry.start()
        assert not registry.running


def test_a_running_server_that_trusts_our_account_is_found(open_directory: Path) -> None:
    service = _TrustingPostgres(open_directory / "postgres", None, PASSWORD)
    service.start()
    try:
        url = found_url("svc_found", open_directory)
        assert url is not None
        assert found_url("svc_found", open_directory) == url
        with psycopg.connect(url) as connection:
            assert connection.execute("select current_database()").fetchone() == ("svc_found",)
    finally:
        service.stop()


def test_a_running_server_that_does_not_know_our_account_is_not_found(
    open_directory: Path,
) -> None:
    service = _TrustingPostgres(open_directory / "postgres", None, PASSWORD)
    service.knows_us = False
    service.start()
    try:
        assert found_url("svc_found", open_directory) is None
    finally:
        service.stop()


class _TrustingPostgres(PrivatePostgres):
    """A server as a distribution sets it up: it trusts accounts on its local socket."""

    knows_us = True

    def argv(self) -> list[str]:
        self.account.own(self.root.parent, 0o755)
        return [*super().argv(), "-c", f"unix_socket_directories={self.root.parent}"]

    def prepare(self) -> None:
        super().prepare()
        rules = self.root / "data" / "pg_hba.conf"
        self.account.write(rules, f"local all all trust\n{rules.read_text()}")

    def after_start(self) -> None:
        super().after_start()
        if self.knows_us:
            self._sql(f'create role "{getpass.getuser()}" login createdb')


def test_a_private_rabbitmq_keeps_its_messages_over_stop_and_kill(
    rabbitmq: PrivateRabbitMQ,
) -> None:
    assert rabbitmq.start() is True
    with pika.BlockingConnection(patient_parameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        channel.basic_publish(
            "", "kept", b"still here", pika.BasicProperties(delivery_mode=2), mandatory=True
        )

    rabbitmq.restart()
    rabbitmq.kill()
    assert not rabbitmq.running
    rabbitmq.start()

    with pika.BlockingConnection(patient_parameters(rabbitmq.url)) as connection:
        _, _, body = connection.channel().basic_get("kept", auto_ack=True)
    assert body == b"still here"
    assert f"consumer_timeout = {CONSUMER_TIMEOUT_MS}" in (
        rabbitmq.root / "rabbitmq.conf"
    ).read_text().replace("\t", " ")
    assert accepts("127.0.0.1", rabbitmq.port, "svc", PASSWORD, timeout=LONG_WAIT)
    assert not accepts("127.0.0.1", rabbitmq.port, "guest", "guest")

    rabbitmq.stop()
    # Erlang's port mapper goes with its broker.
    assert wait_until(lambda: is_free(int(rabbitmq.environment()["ERL_EPMD_PORT"])), LONG_WAIT)


def test_a_private_registry_keeps_what_was_pushed(registry: PrivateRegistry) -> None:
    registry.start()
    ours = ("svc", PASSWORD)
    begun = requests.post(f"{registry.url}/v2/kept/blobs/uploads/", auth=ours, timeout=LONG_WAIT)
    digest = f"sha256:{hashlib.sha256(b'hello').hexdigest()}"

    registry.restart()

    # Started before the restart, finished after it: the signature of the upload still counts.
    finish = f"{begun.headers['Location']}&digest={digest}"
    octets = {"content-type": "application/octet-stream"}
    assert requests.put(finish, b"hello", headers=octets, auth=ours, timeout=LONG_WAIT).ok
    registry.kill()
    registry.start()
    kept = requests.get(f"{registry.url}/v2/kept/blobs/{digest}", auth=ours, timeout=LONG_WAIT)
    assert kept.content == b"hello"


def test_services_do_not_run_as_root(postgres: PrivatePostgres) -> None:
    postgres.start()
    owner = Path(f"/proc/{postgres.pid}").stat().st_uid
    assert owner == Account.for_service("postgres", "nobody").uid
    assert owner != 0


@pytest.mark.docker
def test_a_private_engine_answers_and_comes_back_after_a_kill(open_directory: Path) -> None:
    # Without a network of its own: the engine of this machine keeps its bridge and its rules.
    service = PrivateEngine(open_directory / "engine", networking=False)
    if os.geteuid() != 0:
        with pytest.raises(MissingPartsError, match="root"):
            service.start()
        return
    try:
        assert service.start() is True
        assert (api_version(service.url) or ()) >= (1, 41)
        assert service.start() is False
        service.kill()
        assert api_version(service.url) is None
        assert service.start() is True
    finally:
        service.stop()
    assert not service.running
    assert mounts_below(service.root) == []
