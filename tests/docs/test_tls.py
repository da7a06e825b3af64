"""The proxy of ``docs/operators/tls.md``, as the page has it, before an API that is served."""

from __future__ import annotations

import base64
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import requests
from websockets.exceptions import InvalidStatus

from tests.docs.nginx import block, make_certificate, running_nginx
from tests.docs.pages import ROOT
from tests.runs.attach.attached_client import Attached
from tests.runs.attach.test_attach_served import given, opened, write
from tests.stack.free_ports import free_port
from tests.stack.gateway_process import ApiProcess
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

PAGE = ROOT / "docs" / "operators" / "tls.md"
PEOPLE = {"ada": "ada's password", "bob": "bob's password"}


@dataclass
class Proxy:
    """The proxy and the API behind it."""

    api: ApiProcess
    port: int
    certificate: Path

    def ask(
        self, path: str, who: str | None = None, *, method: str = "GET", **options: object
    ) -> requests.Response:
        """Ask through the proxy, as somebody or as nobody."""
        return requests.request(
            method,
            f"https://localhost:{self.port}{path}",
            auth=(who, PEOPLE[who]) if who else None,
            verify=str(self.certificate),
            timeout=LONG_WAIT,
            **options,  # type: ignore[arg-type]
        )


@pytest.fixture
def proxy(transactional_db: None, tmp_path: Path) -> Iterator[Proxy]:
    """Both, until the test is over."""
    told = dict(line.split("=", 1) for line in block(PAGE, "ini").splitlines())
    api = ApiProcess(tmp_path / "api.log", SVC_WEB_PORT="0", SVC_ALLOWED_HOSTS="localhost", **told)
    port = free_port()
    certificate, key = make_certificate(tmp_path, "localhost")
    people = tmp_path / "people"
    for name, password in PEOPLE.items():
        hashed = ["openssl", "passwd", "-6", "-stdin"]
        done = subprocess.run(hashed, input=password, check=True, capture_output=True, text=True)
        with people.open("a") as file:
            file.write(f"{name}:{done.stdout.strip()}\n")
    changes = {
        "/etc/ssl/svc.example.pem": str(certificate),
        "/etc/ssl/svc.example.key": str(key),
        "/etc/nginx/svc.people": str(people),
        "127.0.0.1:4000": f"127.0.0.1:{api.port}",
    }
    try:
        with running_nginx(tmp_path, block(PAGE, "nginx"), port, changes):
            yield Proxy(api, port, certificate)
    finally:
        api.stop()


def test_people_are_who_the_proxy_says_and_nobody_else(proxy: Proxy) -> None:
    assert proxy.ask("/v1/workspaces").status_code == 401
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    made = proxy.ask("/v1/ssh-keys", "ada", method="POST", json={"publicKey": key})
    assert (made.status_code, made.json()["ownerUserId"]) == (201, "ada")
    path = f"/v1/ssh-keys/{made.json()['sshKeyId']}"
    assert [each["name"] for each in proxy.ask("/v1/ssh-keys", "ada").json()["items"]]
    assert proxy.ask("/v1/ssh-keys", "bob").json() == {"items": []}
    assert proxy.ask("/v1/ssh-keys?ownerUserId=ada", "bob").json()["code"] == "owner-not-found"
    assert proxy.ask(path, "bob", method="DELETE").json()["code"] == "ssh-key-not-found"
    assert proxy.ask(path, "ada", method="DELETE").status_code == 200


@pytest.mark.parametrize("name", ["X-Forwarded-User", "x-forwarded-user", "X_Forwarded_User"])
def test_what_a_client_puts_into_the_header_never_arrives(proxy: Proxy, name: str) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    forged = {name: "ada", "X-Svc-Gateway-Token": "guessed"}
    made = proxy.ask("/v1/ssh-keys", "bob", method="POST", json={"publicKey": key}, headers=forged)
    assert (made.status_code, made.json()["ownerUserId"]) == (201, "bob")


def test_past_the_proxy_nobody_is_anybody(proxy: Proxy) -> None:
    past = f"http://localhost:{proxy.api.port}/v1/workspaces"
    assert requests.get(past, timeout=LONG_WAIT).status_code == 401
    # From this machine the header counts; given twice it names nobody.
    with socket.create_connection(("127.0.0.1", proxy.api.port), LONG_WAIT) as sock:
        sock.sendall(
            b"GET /v1/workspaces HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"X-Forwarded-User: ada\r\nX-Forwarded-User: bob\r\n\r\n"
        )
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"repeated-header" in answer


def test_webhooks_reach_the_api_without_a_password(proxy: Proxy) -> None:
    answer = proxy.ask("/v1/scm/webhooks", method="POST", json={})
    assert answer.json()["code"] in {"scm-webhook-secret-unset", "validation-failed"}


def test_a_large_file_reaches_the_api(proxy: Proxy) -> None:
    path = f"/v1/workspaces/{uuid4()}/files?path=large"
    answer = proxy.ask(path, "ada", method="PUT", data=bytes(27 * 1024**2))
    assert (answer.status_code, answer.json()["code"]) == (404, "workspace-not-found")


def test_a_terminal_is_its_owners_through_the_proxy(proxy: Proxy) -> None:
    run, source, process = opened(owner="ada")

    def attached(who: str) -> Attached:
        login = base64.b64encode(f"{who}:{PEOPLE[who]}".encode()).decode()
        return Attached(
            f"wss://localhost:{proxy.port}",
            run.pk,
            ssl=ssl.create_default_context(cafile=str(proxy.certificate)),
            additional_headers={"Authorization": f"Basic {login}"},
        )

    with attached("ada") as client:
        write(source, process, b"prompt> ")
        client.until_output(b"prompt> ")
        client.socket.send(b"typed")
        eventually(lambda: given(run) == b"typed", what="the input is taken")
    with pytest.raises(InvalidStatus) as refused:
        attached("bob")
    assert refused.value.response.status_code == 404
