"""A real ``manage.py previewgateway`` before a workspace, and clients of what is served there."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.test import override_settings

from controlplane.security.preview_links import TOKEN_HEADER
from tests.conftest import OWNER
from tests.stack.free_ports import free_port
from tests.stack.gateway_process import NOWHERE, ApiProcess
from tests.stack.runs import GATEWAY_TOKEN, Place, place_of
from tests.stack.service import GitServer, Stack
from tests.stack.worker_process import CommandProcess, eventually
from tests.support.waiting import LONG_WAIT

SECONDS = LONG_WAIT


class PreviewProcess(CommandProcess):
    """A preview gateway that accepts connections."""

    def __init__(self, log: Path, *, api: str, **changes: str) -> None:
        self.port = int(changes.get("SVC_PREVIEW_PORT") or free_port())
        own = {
            "SVC_PREVIEW_PORT": str(self.port),
            "SVC_BIND_HOST": "127.0.0.1",
            "SSH_GATEWAY_API_BASE_URL": api,
            "SSH_GATEWAY_DRAIN_MS": "1000",
        }
        super().__init__(log, "previewgateway", **(NOWHERE | own | changes))
        eventually(self._answers, what="the preview gateway answers")

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.told[-4000:]
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), LONG_WAIT),
        ):
            return True
        return False


@dataclass
class Answered:
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


@dataclass
class PreviewAccess:
    """A ready workspace whose ports can be reached."""

    place: Place
    gateway: PreviewProcess
    api: str
    """Where the gateways' control plane is."""

    @property
    def workspace_id(self) -> str:
        """The workspace's id."""
        return str(self.place.started.answer["workspaceId"])

    def host(self, port: int) -> str:
        """Return the authority of a port."""
        return f"{port}-{self.workspace_id}.localhost:{self.gateway.port}"

    def link(self, port: int, **members: Any) -> Any:
        """Have the API make a link."""
        path = f"/v1/workspaces/{self.workspace_id}/ports/{port}/links"
        body = {"ownerUserId": OWNER, **members}
        return self.place.stack.api.post(path, body, expect=201).body

    def connect(self) -> http.client.HTTPConnection:
        """Return a client connected to the gateway, whatever host it names."""
        return http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=SECONDS)

    def ask(
        self,
        port: int,
        target: str,
        *,
        method: str = "GET",
        body: Any = None,
        headers: dict[str, str] | None = None,
        host: str | None = None,
        token: str | None = "",
    ) -> Answered:
        """Send one request with a token in its header (None: without any)."""
        sent = {"Host": host or self.host(port), **(headers or {})}
        if token is not None:
            sent[TOKEN_HEADER] = token or self.link(port)["token"]
        connection = self.connect()
        try:
            connection.request(method, target, body=body, headers=sent)
            answer = connection.getresponse()
            return Answered(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def open_link(self, url: str) -> tuple[Answered, str]:
        """Follow a link as a browser does; return the answer and the cookie."""
        parts = urlsplit(url)
        answer = self.ask(0, f"{parts.path}?{parts.query}", host=parts.netloc, token=None)
        return answer, str(answer.headers.get("Set-Cookie") or "").partition(";")[0]

    def serve(self, script: str, port: int) -> str:
        """Start a server in the workspace; return its run once it listens."""
        run = self.place.python(script, str(port))
        path = f"/v1/workspaces/{self.workspace_id}/ports?ownerUserId={OWNER}"

        def listens() -> bool:
            found = self.place.stack.api.get(path).body["items"]
            return any(each["port"] == port for each in found)

        eventually(listens, what=f"something listens on {port}")
        return run


@contextlib.contextmanager
def preview_of(
    stack: Stack, git_server: GitServer, run_queue: str, folder: Path, **changes: str
) -> Iterator[PreviewAccess]:
    """A workspace whose ports can be reached."""
    token = {"WORKSPACE_SSH_GATEWAY_TOKEN": GATEWAY_TOKEN}
    with contextlib.ExitStack() as rest:
        rest.enter_context(override_settings(**token))
        place = rest.enter_context(place_of(stack, git_server, run_queue, folder))
        api = ApiProcess(folder / "api.log", **token)
        rest.callback(api.stop)
        gateway = PreviewProcess(
            folder / "preview.log",
            api=api.url,
            **(token | {"SVC_PREVIEW_DOMAIN": "localhost"} | changes),
        )
        rest.callback(gateway.stop)
        authority = f"localhost:{gateway.port}"
        rest.enter_context(
            override_settings(SVC_PREVIEW_DOMAIN="localhost", SVC_PREVIEW_AUTHORITY=authority)
        )
        yield PreviewAccess(place, gateway, api.url)
