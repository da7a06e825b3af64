"""The proxy of ``docs/operators/previews.md``, as the page has it, before a real gateway."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from controlplane.security.preview_links import TOKEN_PARAMETER, Grant, sign, signing_key
from tests.docs.nginx import block, make_certificate, running_nginx
from tests.docs.pages import ROOT
from tests.stack.free_ports import free_port
from tests.stack.preview_process import PreviewProcess
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "operators" / "previews.md"
TOKEN = "what-the-gateway-and-the-api-share"
WORKSPACE = "5b6f9a52-6f0c-4f5d-9a1e-0f4f7f1f8c11"
NAME = f"8080-{WORKSPACE}.preview.example"


@dataclass
class Proxy:
    """The proxy, whose certificate is known."""

    port: int
    certificate: Path

    def ask(
        self, target: str, headers: dict[str, str] | None = None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Ask as a browser that has found the name in DNS."""
        trusting = ssl.create_default_context(cafile=str(self.certificate))
        connection = http.client.HTTPSConnection(NAME, context=trusting)
        plain = socket.create_connection(("127.0.0.1", self.port), LONG_WAIT)
        connection.sock = trusting.wrap_socket(plain, server_hostname=NAME)
        try:
            connection.request("GET", target, headers=headers or {})
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    """The proxy and the gateway behind it."""
    told = dict(line.split("=", 1) for line in block(PAGE, "ini").splitlines())
    gateway = PreviewProcess(
        tmp_path / "gateway.log",
        api="http://127.0.0.1:9",
        WORKSPACE_SSH_GATEWAY_TOKEN=TOKEN,
        **told,
    )
    certificate, key = make_certificate(tmp_path, "*.preview.example")
    port = free_port()
    changes = {
        "/etc/ssl/preview.example.pem": str(certificate),
        "/etc/ssl/preview.example.key": str(key),
        "127.0.0.1:4080": f"127.0.0.1:{gateway.port}",
    }
    try:
        with running_nginx(tmp_path, block(PAGE, "nginx"), port, changes):
            yield Proxy(port, certificate)
    finally:
        gateway.stop()


def test_a_link_is_opened_over_tls_under_a_name_of_the_wildcard(proxy: Proxy) -> None:
    _, refused = proxy.ask("/")
    assert json.loads(refused)["code"] == "preview-link-required"
    until = int(time.time()) + 600
    grant = Grant(kind="link", workspace_id=WORKSPACE, port=8080, owner="ada", expires_at=until)
    token = sign(grant, signing_key(TOKEN))
    answer, _ = proxy.ask(f"/start?a=1&{TOKEN_PARAMETER}={token}")
    assert answer.status == 303
    location = urlsplit(answer.headers["location"])
    assert (location.scheme, location.netloc, location.path) == ("https", NAME, "/start")
    assert location.query == "a=1"
    cookie, _, attributes = answer.headers["set-cookie"].partition(";")
    assert cookie.startswith("__Host-svc-preview=")
    assert attributes.endswith("; HttpOnly; SameSite=Lax; Secure")
    # Past the gate: the API, which nobody serves here, would say where the workspace is.
    passed, told = proxy.ask("/start", {"Cookie": cookie})
    assert (passed.status, json.loads(told)["code"]) == (502, "workspace-unreachable")
