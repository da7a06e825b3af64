"""Nobody reads, pushes or deletes in the registry that we start but who has its account."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from deploy.services.private import PrivateService
from deploy.services.registry import PrivateRegistry, open_to_all
from registries.client import RegistryClient
from registries.errors import RegistryError
from tests.registries.images import digest_of
from tests.support.waiting import LONG_WAIT

PASSWORD = "of-the-private-registry"
OURS = ("svc", PASSWORD)
CONFIG = b"{}"
KIND = "application/vnd.oci.image.manifest.v1+json"
MANIFEST = {
    "schemaVersion": 2,
    "mediaType": KIND,
    "config": {
        "mediaType": "application/vnd.oci.image.config.v1+json",
        "size": len(CONFIG),
        "digest": digest_of(CONFIG),
    },
    "layers": [],
}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that is open is not taken for a closed one because it answers late."""
    monkeypatch.setattr(open_to_all, "__defaults__", (LONG_WAIT,))


@pytest.fixture
def registry(open_directory: Path) -> Iterator[PrivateRegistry]:
    private = PrivateRegistry(open_directory / "registry", None, PASSWORD)
    yield private
    private.stop()


class EarlierRegistry(PrivateRegistry):
    """As versions before this one started it: without an account."""

    def prepare(self) -> None:
        super().prepare()
        config = self.root / "config.yml"
        kept = [each for each in config.read_text().splitlines() if not each.startswith("auth:")]
        config.write_text("\n".join([*kept, ""]))

    def start(self) -> bool:
        return PrivateService.start(self)

    def answers(self) -> bool:
        return open_to_all("127.0.0.1", self.port)


def push(registry: PrivateRegistry, account: tuple[str, str] | None) -> list[int]:
    """Push an image without layers; the statuses of each call."""
    base = f"{registry.url}/v2/team/website"
    begun = requests.post(f"{base}/blobs/uploads/", auth=account, timeout=LONG_WAIT)
    where = begun.headers.get("Location", f"{base}/blobs/uploads/{'0' * 8}")
    blob = {"digest": digest_of(CONFIG)}
    put = requests.put(where, CONFIG, params=blob, auth=account, timeout=LONG_WAIT)
    kind = {"Content-Type": KIND}
    tag = f"{base}/manifests/latest"
    named = requests.put(tag, json=MANIFEST, headers=kind, auth=account, timeout=LONG_WAIT)
    return [begun.status_code, put.status_code, named.status_code]


@pytest.mark.parametrize("stranger", [None, ("svc", "a guess"), ("root", PASSWORD)])
def test_who_lacks_the_account_neither_reads_nor_pushes_nor_deletes(
    registry: PrivateRegistry, stranger: tuple[str, str] | None
) -> None:
    registry.start()
    assert push(registry, OURS) == [202, 201, 201]
    base = f"{registry.url}/v2"
    kind = {"Accept": KIND}
    latest = f"{base}/team/website/manifests/latest"
    kept = requests.get(latest, headers=kind, auth=OURS, timeout=LONG_WAIT).content
    digest = digest_of(kept)

    assert push(registry, stranger) == [401] * 3
    for path in ("", "_catalog", "team/website/tags/list", "team/website/manifests/latest"):
        answer = requests.get(f"{base}/{path}", headers=kind, auth=stranger, timeout=LONG_WAIT)
        assert answer.status_code == 401
    manifest = f"{base}/team/website/manifests/{digest}"
    assert requests.delete(manifest, auth=stranger, timeout=LONG_WAIT).status_code == 401
    assert requests.get(latest, headers=kind, auth=OURS, timeout=LONG_WAIT).content == kept
    assert requests.delete(manifest, auth=OURS, timeout=LONG_WAIT).status_code == 202


def test_our_client_uses_the_account_that_the_registry_tells(registry: PrivateRegistry) -> None:
    registry.start()
    told = registry.settings
    ours = RegistryClient(
        told["REGISTRY_BASE_URL"],
        username=told["REGISTRY_USERNAME"],
        password=told["REGISTRY_PASSWORD"],
    )
    ours.ping()
    ours.close()
    stranger = RegistryClient(told["REGISTRY_BASE_URL"])
    with pytest.raises(RegistryError, match="requires an account"):
        stranger.ping()
    stranger.close()


def test_one_that_an_earlier_version_started_asks_for_the_account_and_keeps_its_images(
    registry: PrivateRegistry,
) -> None:
    earlier = EarlierRegistry(registry.root, None, PASSWORD)
    earlier.start()
    assert push(earlier, None) == [202, 201, 201]

    assert registry.start() is True

    assert not open_to_all("127.0.0.1", registry.port)
    kind = {"Accept": KIND}
    latest = f"{registry.url}/v2/team/website/manifests/latest"
    assert requests.get(latest, headers=kind, auth=OURS, timeout=LONG_WAIT).json() == MANIFEST
    assert registry.start() is False


def test_a_new_password_counts_from_the_next_start(registry: PrivateRegistry) -> None:
    registry.start()
    registry.stop()
    changed = PrivateRegistry(registry.root, None, "another")
    changed.start()
    catalogue = f"{registry.url}/v2/_catalog"
    assert requests.get(catalogue, auth=OURS, timeout=LONG_WAIT).status_code == 401
    assert requests.get(catalogue, auth=("svc", "another"), timeout=LONG_WAIT).status_code == 200


def test_nobody_else_on_the_machine_reads_the_file_of_accounts(registry: PrivateRegistry) -> None:
    registry.start()
    accounts = registry.root / "htpasswd"
    assert stat.S_IMODE(accounts.stat().st_mode) == 0o600
    assert PASSWORD not in accounts.read_text()
