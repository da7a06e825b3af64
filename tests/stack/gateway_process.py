"""A real ``manage.py sshgateway`` and a real API for it beside a test, on the test's database."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.stack.free_ports import free_port
from tests.stack.worker_process import ROOT, CommandProcess, environment, eventually
from tests.support.waiting import LONG_WAIT

QUICK = {
    "SSH_GATEWAY_DISCONNECT_GRACE_MS": "1000",
    "SSH_GATEWAY_DRAIN_MS": "1000",
    "SSH_GATEWAY_KEEPALIVE_MS": "500",
    "SSH_GATEWAY_KEEPALIVE_COUNT": "40",
    "SSH_GATEWAY_FAILED_LOGINS": "1000",
}
"""Times that keep the tests quick. A client may be as slow as a busy machine makes it."""

NOWHERE = {
    "DATABASE_URL": "postgres://nobody:nothing@127.0.0.1:1/nothing",
    "RABBITMQ_URL": "amqp://nobody:nothing@127.0.0.1:1/",
}
"""The gateway has nothing but the API: what else the control plane uses is out of its reach."""


def greeting(port: int) -> bytes:
    """Return the beginning of what a server says to whoever connects; nothing when nobody does."""
    try:
        with socket.create_connection(("127.0.0.1", port), LONG_WAIT) as connection:
            return connection.recv(64)
    except OSError:
        return b""


def known_host(host_key: Path, port: int) -> str:
    """Return the line of a ``known_hosts`` file for a gateway at this port."""
    done = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(host_key)], check=True, capture_output=True, text=True
    )
    return f"[127.0.0.1]:{port} {done.stdout.strip()}\n"


class ApiProcess:
    """The API as it is served in earnest."""

    def __init__(self, log: Path, **changes: str) -> None:
        self.log = log
        self.port = free_port()
        own = {
            "SVC_API_PORT": str(self.port),
            "SVC_BIND_HOST": "127.0.0.1",
            "SVC_API_WORKERS": "1",
            **changes,
        }
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "gunicorn"),
                    *("-c", "deploy/gunicorn.conf.py", "controlplane.wsgi"),
                ],
                cwd=ROOT,
                env=environment(**own),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        eventually(self._answers, what=f"the API answers: {self.told[-4000:]}")

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def told(self) -> str:
        """What it has logged so far."""
        return self.log.read_text(errors="replace")

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.told[-4000:]
        try:
            with socket.create_connection(("127.0.0.1", self.port), LONG_WAIT):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        """End it with everything that it started."""
        self.process.terminate()
        try:
            self.process.wait(LONG_WAIT)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class GatewayProcess(CommandProcess):
    """An SSH gateway whose times are short, and which accepts connections."""

    def __init__(self, log: Path, *, api: str, host_key: Path, **changes: str) -> None:
        self.port = free_port()
        self.host_key = host_key
        own = {
            "SVC_SSH_PORT": str(self.port),
            "SVC_BIND_HOST": "127.0.0.1",
            "SSH_GATEWAY_API_BASE_URL": api,
            "SSH_GATEWAY_HOST_KEY_PATH": str(host_key),
        }
        super().__init__(log, "sshgateway", **(QUICK | NOWHERE | own | changes))
        eventually(self._answers, what="the gateway answers")

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.told[-4000:]
        return greeting(self.port).startswith(b"SSH-2.0-")

    @property
    def known_host(self) -> str:
        """The line of a ``known_hosts`` file that says who it is."""
        return known_host(self.host_key, self.port)
