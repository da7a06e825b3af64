"""The endpoints of a real registry that wants an account and speaks TLS, and of one that stops."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from pytest_django.fixtures import Settings
from structlog.testing import capture_logs

from deploy.services.registry import find_server
from tests.conftest import Api
from tests.registries.certificates import certificate
from tests.stack.free_ports import free_port
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

PATH = "/v1/registries/default"
USERNAME, PASSWORD = "robot", "c0rrect-horse"
HASHED = "$2b$05$xy7QyOFhEArgjFmKbkFZoutpP8dcyRlWahau.zrboWgLBCvWOfxMi"
"""The password as the registry keeps it."""


class GuardedRegistry:
    """A registry of the test's own, with TLS and one account."""

    def __init__(self, root: Path) -> None:
        self.certificate = certificate(root)
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"https://{self.address}"
        (root / "htpasswd").write_text(f"{USERNAME}:{HASHED}\n")
        self._config = root / "config.yml"
        self._config.write_text(
            "version: 0.1\n"
            "log: {level: error, accesslog: {disabled: true}}\n"
            f"storage: {{filesystem: {{rootdirectory: '{root / 'data'}'}}}}\n"
            f"auth: {{htpasswd: {{realm: registry, path: '{root / 'htpasswd'}'}}}}\n"
            f"http: {{addr: '{self.address}', secret: secret, "
            f"tls: {{certificate: '{self.certificate}', key: '{self.certificate}'}}}}\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it answers."""
        server = find_server()
        if server is None:
            pytest.skip("this machine has no registry to start")
        self._process = subprocess.Popen(
            [server, "serve", self._config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        eventually(self._answers, what="the registry answers", timeout=LONG_WAIT)

    def stop(self) -> None:
        """Kill it."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            answer = requests.get(
                f"{self.url}/v2/", timeout=LONG_WAIT, verify=str(self.certificate)
            )
        except requests.ConnectionError:
            return False
        return answer.status_code == 401


@pytest.fixture
def guarded(tmp_path: Path, settings: Settings) -> Iterator[GuardedRegistry]:
    """The guarded registry, configured with its authority and its account."""
    registry = GuardedRegistry(tmp_path)
    settings.REGISTRY_BASE_URL = registry.url
    settings.SVC_EXTRA_CA_FILE = str(registry.certificate)
    settings.REGISTRY_USERNAME, settings.REGISTRY_PASSWORD = USERNAME, PASSWORD
    try:
        registry.start()
        yield registry
    finally:
        registry.stop()


def test_a_registry_is_read_with_the_account_of_the_installation(
    api: Api, guarded: GuardedRegistry
) -> None:
    assert api.get(f"{PATH}/ping").body["reachable"] is True
    assert api.get(f"{PATH}/extensions").body == {"extensions": []}
    assert api.get(f"{PATH}/tags?repository=a").body["tags"] == []
    path = f"{PATH}/manifest?repository=a&reference=v1"
    assert api.get(path, expect=404).body["code"] == "repository-not-found"
    assert api.get(PATH).body["hasBasicAuth"] is True


@pytest.mark.parametrize("password", ["", "wr0ng-horse"])
def test_without_the_right_account_the_registry_has_failed_and_nobody_sees_the_wrong_one(
    api: Api, guarded: GuardedRegistry, settings: Settings, password: str
) -> None:
    settings.REGISTRY_PASSWORD = password
    for route in ("/ping", "/tags?repository=a", "/manifest?repository=a&reference=v1"):
        with capture_logs() as logs:
            answer = api.get(PATH + route, expect=502)
        expected = {"name": "registry", "reason": "unauthorized", "status": 401}
        assert answer.body["upstream"] == expected
        assert USERNAME not in answer.content.decode() + repr(logs)
        assert "horse" not in answer.content.decode() + repr(logs)


def test_a_registry_whose_certificate_nobody_vouches_for_is_not_trusted(
    api: Api, guarded: GuardedRegistry, settings: Settings
) -> None:
    settings.SVC_EXTRA_CA_FILE = ""
    answer = api.get(f"{PATH}/ping", expect=502)
    assert answer.body["upstream"] == {"name": "registry", "reason": "tls-failed"}


def test_a_registry_that_stops_is_unreachable_until_it_is_back(
    api: Api, guarded: GuardedRegistry
) -> None:
    api.get(f"{PATH}/ping")
    guarded.stop()
    for route in ("/ping", "/extensions", "/tags?repository=a"):
        answer = api.get(PATH + route, expect=502)
        assert answer.body["upstream"] == {"name": "registry", "reason": "unreachable"}
    guarded.start()
    api.get(f"{PATH}/ping")
