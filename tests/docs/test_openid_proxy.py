"""The OpenID proxy of ``docs/operators/tls.md``, as the page has it, with a provider behind it."""

from __future__ import annotations

import getpass
import grp
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from deploy.services.private import find_program
from tests.docs.nginx import block, make_certificate
from tests.docs.pages import ROOT
from tests.stack.free_ports import free_port
from tests.stack.gateway_process import ApiProcess
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

PAGE = ROOT / "docs" / "operators" / "tls.md"
MODULES = Path("/usr/lib/apache2/modules")
LOADED = "mpm_event authn_core authz_core authz_user auth_openidc headers proxy proxy_http ssl"
WHOLE = """\
ServerRoot "{folder}"
PidFile "{folder}/apache.pid"
DefaultRuntimeDir "{folder}"
Mutex pthread
ErrorLog "{folder}/apache.log"
User {user}
Group {group}
Listen 127.0.0.1:{port}
{modules}
{server}
"""
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


@dataclass
class OpenIdProxy:
    """The proxy before an API, and the provider that it asks."""

    api: ApiProcess
    port: int
    certificate: Path

    def url(self, path: str) -> str:
        """Return the address of a path behind the proxy."""
        return f"https://localhost:{self.port}{path}"

    def browser(self) -> requests.Session:
        """Return somebody who has not signed in."""
        session = requests.Session()
        session.trust_env = False  # a bundle of certificates that is named there goes first
        session.verify = str(self.certificate)
        session.headers["Accept"] = "text/html"
        return session

    def signed_in(self, email: str) -> requests.Session:
        """Return somebody who has come back from the provider's page."""
        session = self.browser()
        asked = session.get(self.url("/docs"), timeout=LONG_WAIT)
        assert "Authorize Client" in asked.text
        back = session.post(asked.url, data={"sub": email}, timeout=LONG_WAIT)
        assert (back.status_code, back.url) == (200, self.url("/docs"))
        session.headers["Accept"] = "application/json"
        return session


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[None]:
    """Run a server until the block is over."""
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    try:
        eventually(answers, what=f"{command[0]} answers")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(LONG_WAIT)


@pytest.fixture
def proxy(transactional_db: None, tmp_path: Path) -> Iterator[OpenIdProxy]:
    """All three, until the test is over."""
    told = dict(line.split("=", 1) for line in block(PAGE, "ini").splitlines())
    api = ApiProcess(tmp_path / "api.log", SVC_WEB_PORT="0", SVC_ALLOWED_HOSTS="localhost", **told)
    port, provider_port = free_port(), free_port()
    certificate, key = make_certificate(tmp_path, "localhost")
    server = block(PAGE, "apache")
    for shown, real in {
        "*:443": f"127.0.0.1:{port}",
        "ServerName svc.example": "ServerName localhost",
        "/etc/ssl/svc.example.pem": str(certificate),
        "/etc/ssl/svc.example.key": str(key),
        "https://id.example": f"http://127.0.0.1:{provider_port}",
        "https://svc.example": f"https://localhost:{port}",
        "127.0.0.1:4000": f"127.0.0.1:{api.port}",
    }.items():
        assert shown in server
        server = server.replace(shown, real)
    configuration = tmp_path / "apache.conf"
    configuration.write_text(
        WHOLE.format(
            folder=tmp_path,
            # It refuses to serve as root.
            user=getpass.getuser() if os.getuid() else "nobody",
            group=grp.getgrgid(os.getgid()).gr_name if os.getuid() else "nogroup",
            port=port,
            modules="\n".join(
                f"LoadModule {n}_module {MODULES}/mod_{n}.so" for n in LOADED.split()
            ),
            server=server,
        )
    )
    program = find_program("apache2")
    assert program is not None
    apache = [str(program), "-f", str(configuration), "-DFOREGROUND"]
    provider = [sys.executable, "-m", "oidc_provider_mock", "--port", str(provider_port)]
    try:
        with (
            running(provider, provider_port, tmp_path / "provider.log"),
            running(apache, port, tmp_path / "apache-said.log"),
        ):
            yield OpenIdProxy(api, port, certificate)
    finally:
        api.stop()


def test_people_are_who_the_provider_says(proxy: OpenIdProxy) -> None:
    ada = proxy.signed_in("ada@example.org")
    made = ada.post(proxy.url("/v1/ssh-keys"), json={"publicKey": KEY}, timeout=LONG_WAIT)
    assert (made.status_code, made.json()["ownerUserId"]) == (201, "ada@example.org")
    bob = proxy.signed_in("bob@example.org")
    assert bob.get(proxy.url("/v1/ssh-keys"), timeout=LONG_WAIT).json() == {"items": []}
    foreign = proxy.url(f"/v1/ssh-keys/{made.json()['sshKeyId']}")
    assert bob.delete(foreign, timeout=LONG_WAIT).json()["code"] == "ssh-key-not-found"


def test_a_program_that_has_not_signed_in_is_refused_and_not_sent_to_the_provider(
    proxy: OpenIdProxy,
) -> None:
    program = proxy.browser()
    program.headers["Accept"] = "application/json"
    answer = program.get(proxy.url("/v1/workspaces"), timeout=LONG_WAIT, allow_redirects=False)
    assert answer.status_code == 401


@pytest.mark.parametrize("name", ["X-Forwarded-User", "x-forwarded-user", "X_Forwarded_User"])
def test_nobody_names_themselves_behind_an_openid_proxy(proxy: OpenIdProxy, name: str) -> None:
    bob = proxy.signed_in("bob@example.org")
    bob.headers[name] = "ada@example.org"
    made = bob.post(proxy.url("/v1/ssh-keys"), json={"publicKey": KEY}, timeout=LONG_WAIT)
    assert (made.status_code, made.json()["ownerUserId"]) == (201, "bob@example.org")


def test_webhooks_need_no_sign_in(proxy: OpenIdProxy) -> None:
    forged = {"X-Forwarded-User": "ada@example.org"}
    answer = proxy.browser().post(
        proxy.url("/v1/scm/webhooks"), json={}, headers=forged, timeout=LONG_WAIT
    )
    assert answer.json()["code"] in {"scm-webhook-secret-unset", "validation-failed"}
