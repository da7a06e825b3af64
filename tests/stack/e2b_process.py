"""A real ``manage.py e2bfacade`` beside a test."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from tests.stack.free_ports import free_port
from tests.stack.gateway_process import NOWHERE
from tests.stack.worker_process import CommandProcess, eventually
from tests.support.waiting import LONG_WAIT


class E2BProcess(CommandProcess):
    """An E2B facade that accepts connections; it has the API and nothing else."""

    def __init__(self, log: Path, *, api: str, **changes: str) -> None:
        self.port = int(changes.get("SVC_E2B_PORT") or free_port())
        self.url = f"http://127.0.0.1:{self.port}"
        own = {
            "SVC_E2B_PORT": str(self.port),
            "SVC_BIND_HOST": "127.0.0.1",
            "SSH_GATEWAY_API_BASE_URL": api,
            "SSH_GATEWAY_DRAIN_MS": "1000",
        }
        super().__init__(log, "e2bfacade", **(NOWHERE | own | changes))
        eventually(self._answers, what="the E2B facade answers")

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.told[-4000:]
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), LONG_WAIT),
        ):
            return True
        return False
