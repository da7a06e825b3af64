"""RabbitMQ: a private broker, and the question whether one that runs already lets us in."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from deploy.services.errors import MissingPartsError, SetupError
from deploy.services.ports import PortBook, is_free
from deploy.services.private import PrivateService, find_program

USER = "svc"
# A build is acknowledged when it is over; the broker's own default of 30 minutes would take long
# builds away from a healthy worker.
CONSUMER_TIMEOUT_MS = 4 * 60 * 60 * 1000

_HEADER = b"AMQP\x00\x00\x09\x01"


def find_server() -> Path | None:
    """RabbitMQ's own start script; Debian's wrapper in /usr/sbin insists on its own directories."""
    for pattern in ("rabbitmq/bin/rabbitmq-server", "rabbitmq/lib/*/sbin/rabbitmq-server"):
        for script in sorted(Path("/usr/lib").glob(pattern), reverse=True):
            return script
    found = find_program("rabbitmq-server")
    return None if found == Path("/usr/sbin/rabbitmq-server") else found


class PrivateRabbitMQ(PrivateService):
    """A broker of our own on 127.0.0.1, with its own Erlang port mapper beside it."""

    name: ClassVar[str] = "RabbitMQ"
    accounts: ClassVar[tuple[str, ...]] = ("rabbitmq", "nobody")
    start_seconds: ClassVar[float] = 90.0
    stop_seconds: ClassVar[float] = 60.0

    def __init__(self, root: Path, port: int | None, password: str) -> None:
        super().__init__(root, port)
        self._password = password

    @property
    def url(self) -> str:
        return f"amqp://{USER}:{quote(self._password, safe='')}@127.0.0.1:{self.port}/%2F"

    @property
    def settings(self) -> dict[str, str]:
        return {
            "RABBITMQ_URL": self.url,
            "RABBITMQ_CONSUMER_TIMEOUT_MS": str(CONSUMER_TIMEOUT_MS),
        }

    @property
    def data_exists(self) -> bool:
        return (self.root / "mnesia").exists()

    def prepare(self) -> None:
        for name in ("mnesia", "log", "home", "schema"):
            self.account.make_directory(self.root / name)
        configuration = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "distribution.listener.interface": "127.0.0.1",
            "default_user": USER,
            "default_pass": self._password,
            "consumer_timeout": str(CONSUMER_TIMEOUT_MS),
            "log.console": "true",
            "log.console.level": "info",
            "log.file": "false",
            "vm_memory_high_watermark.absolute": "1GB",
            "disk_free_limit.absolute": "500MB",
        }
        text = "".join(f"{name} = {value}\n" for name, value in configuration.items())
        self.account.write(self.root / "rabbitmq.conf", text)
        self.account.write(self.root / "enabled_plugins", "[].\n")

    def argv(self) -> list[str]:
        server = find_server()
        if server is None:
            raise MissingPartsError(f"RabbitMQ is needed for {self.root}.")
        return self.account.command(server)

    def environment(self) -> Mapping[str, str]:
        root = self.root
        return {
            **super().environment(),
            "HOME": str(root / "home"),
            # The script then becomes the Erlang VM instead of staying its parent: one process to
            # signal and to wait for.
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_NODENAME": "svc@localhost",
            "RABBITMQ_CONFIG_FILE": str(root / "rabbitmq.conf"),
            "RABBITMQ_CONFIG_FILES": str(root / "conf.d"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(root / "advanced.config"),
            "RABBITMQ_MNESIA_BASE": str(root / "mnesia"),
            "RABBITMQ_LOG_BASE": str(root / "log"),
            "RABBITMQ_SCHEMA_DIR": str(root / "schema"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(root / "schema"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(root / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(root / "log" / "pid"),
            "RABBITMQ_DIST_PORT": str(self._book.choose("distribution")),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._book.choose("epmd")),
        }

    def answers(self) -> bool:
        """The listener opens last, so a broker that greets has finished its start."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.settimeout(2)
                connection.sendall(_HEADER)
                return connection.recv(1) == b"\x01"
        except OSError:
            return False

    def after_start(self) -> None:
        if not accepts("127.0.0.1", self.port, USER, self._password):
            raise SetupError(
                f"The RabbitMQ in {self.root} refuses the login. Its password was generated "
                "together "
                "with its data; put the old one back."
            )

    def kill(self) -> None:
        super().kill()
        self._stop_port_mapper()

    def after_stop(self) -> None:
        self._stop_port_mapper()

    def _stop_port_mapper(self) -> None:
        """Erlang leaves its port mapper behind; it serves this one broker, so it goes with it."""
        port = PortBook(self.root / "ports.json").get("epmd")
        epmd = find_program("epmd")
        if port is None or epmd is None or is_free(port):
            return
        subprocess.run(
            [epmd, "-port", str(port), "-kill"],
            env=dict(self.environment()),
            capture_output=True,
            timeout=10,
            check=False,
        )

    def _settle_ports(self) -> None:
        super()._settle_ports()
        port = self._book.choose("distribution")
        if not is_free(port):
            self._book.replace("distribution")


def accepts(host: str, port: int, user: str, password: str, timeout: float = 3.0) -> bool:
    """True when a broker there accepts these credentials (AMQP 0-9-1: Start, Start-Ok, Tune)."""
    try:
        with socket.create_connection((host, port), timeout=timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(_HEADER)
            if _method(connection) != (10, 10):
                return False
            connection.sendall(_start_ok(user, password))
            return _method(connection) == (10, 30)
    except (OSError, struct.error):
        return False


def _method(connection: socket.socket) -> tuple[int, int]:
    """Class and method of the next frame."""
    _, _, size = struct.unpack(">BHI", _exactly(connection, 7))
    payload = _exactly(connection, size + 1)
    class_id, method_id = struct.unpack(">HH", payload[:4])
    return class_id, method_id


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def _start_ok(user: str, password: str) -> bytes:
    response = f"\0{user}\0{password}".encode()
    payload = (
        struct.pack(">HHI", 10, 11, 0)
        + struct.pack(">B", 5)
        + b"PLAIN"
        + struct.pack(">I", len(response))
        + response
        + struct.pack(">B", 5)
        + b"en_US"
    )
    return struct.pack(">BHI", 1, 0, len(payload)) + payload + b"\xce"


def found_url(host: str = "127.0.0.1", port: int = 5672) -> str | None:
    """The URL of a running broker that still has its well-known local account, else None."""
    if accepts(host, port, "guest", "guest"):
        return f"amqp://guest:guest@{host}:{port}/%2F"
    return None
