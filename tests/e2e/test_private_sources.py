"""A selected private repository ends up in the workspace, and its token nowhere."""

from __future__ import annotations

import base64
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.db.models.functions import Now
from django.test import override_settings

from scm.models import Installation, InstallationRepository, WebhookDelivery
from scm.services import import_installation
from tests.conftest import OWNER
from tests.e2e.canaries import registry_blobs, values_in_database
from tests.scm.fake_provider import APP_ID, FakeProvider, running_provider
from tests.scm.provider_git import ProviderGit
from tests.stack.service import Stack, Started
from tests.stack.worker_process import eventually

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProviderGit]:
    """A provider with private repositories, which every process of the service is told of."""
    with running_provider() as running:
        running.install("app", "dotfiles", "gone", id=7)
        served = ProviderGit(running, tmp_path_factory.mktemp("provider"))
        served.publish("octo-org/app", {"private.txt": "nobody knows\n"})
        served.publish("octo-org/dotfiles", {".private-rc": "at home\n"})
        served.publish("octo-org/gone", {"x": "y\n"})
        changes = {
            "SCM_APP_ID": APP_ID,
            "SCM_APP_PRIVATE_KEY": running.private_key,
            "SCM_API_BASE_URL": running.url,
        }
        quick = {"SCM_DELIVERY_UPKEEP_INTERVAL_MS": "500"}
        with mock.patch.dict(os.environ, changes | quick), override_settings(**changes):
            yield served


@dataclass
class Private:
    """The service, and the provider of its sources."""

    stack: Stack
    git: ProviderGit

    @property
    def provider(self) -> FakeProvider:
        return self.git.provider

    def selection(self, name: str) -> dict[str, str]:
        """Return the selection of a repository."""
        row = InstallationRepository.objects.get(name=name)
        return {
            "provider": "github",
            "installationId": str(row.installation_id),
            "installationRepositoryId": str(row.pk),
        }


@pytest.fixture(scope="module")
def private(provider: ProviderGit, stack: Stack) -> Private:
    """The running service with an imported installation; the provider was there before it."""
    import_installation(7, owner_user_id=OWNER)
    return Private(stack, provider)


@pytest.fixture(scope="module")
def started(private: Private) -> Started:
    """A workspace of a selected repository and selected dotfiles."""
    return private.stack.ready(
        {},
        sourceSelection=private.selection("app"),
        dotfilesSelection=private.selection("dotfiles"),
    )


def test_the_private_files_are_in_the_workspace(private: Private, started: Started) -> None:
    inside = private.stack.inside
    assert inside(started, "cat /workspace/repo/private.txt") == "nobody knows"
    assert inside(started, "cat ~/.private-rc") == "at home"
    assert inside(started, "git -C /workspace/repo config --get remote.origin.url") == (
        private.git.url("octo-org/app")
    )
    asked = {issued.repository_ids for issued in private.provider.issued if issued.repository_ids}
    assert asked == {frozenset({700}), frozenset({701})}
    assert all(
        issued.permissions.keys() <= {"contents", "metadata"}
        and set(issued.permissions.values()) == {"read"}
        for issued in private.provider.issued
    )


def spellings(provider: FakeProvider) -> list[bytes]:
    """Return every token that was given out, as it is and as it is shown to a server."""
    found = []
    for issued in provider.issued:
        token = issued.token.encode()
        signed = base64.b64encode(b"x-access-token:" + token)
        found += [token, base64.b64encode(token).rstrip(b"="), signed]
    return found


def test_no_token_is_in_any_table_log_image_or_file_of_the_workspace(
    private: Private, started: Started
) -> None:
    tokens = spellings(private.provider)
    assert len(tokens) >= 9

    def holds(content: bytes) -> bool:
        return any(token in content for token in tokens)

    assert holds(b"Basic " + tokens[-1])
    values = list(values_in_database())
    assert any("workspaces_sourcereference." in place for place, _ in values)
    for place, value in values:
        assert not holds(value), place
    log = private.stack.worker.told
    assert "source_token_made" in log
    assert not holds(log.encode())
    answer = started.answer
    for place, chunks in registry_blobs(answer["repository"], answer["tag"]):
        assert not holds(b"".join(chunks)), place
    container = private.stack.container(started)
    assert not holds(str(container.attrs).encode())
    assert not holds(str(container.image.history()).encode())
    looked_at = set()
    for folder in ("/workspace", "/home", "/etc", "/var/lib/svc"):
        for name, content in files_of(container, folder):
            looked_at.add(name)
            assert not holds(content), name
    assert "workspace/repo/.git/config" in looked_at


def files_of(container: Any, folder: str) -> Iterator[tuple[str, bytes]]:
    """Return the files below a folder of a container."""
    archive, _ = container.get_archive(folder)
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive))) as files:
        for member in files:
            file = files.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name, file.read()


def removed_from_the_installation(private: Private) -> Callable[[], None]:
    repositories = private.provider.installations[7].repositories
    taken = repositories.pop(2)
    return lambda: repositories.append(taken)


def suspended(private: Private) -> Callable[[], None]:
    installation = private.provider.installations[7]
    installation.suspended_at = "2026-01-02T03:04:05Z"

    def undo() -> None:
        installation.suspended_at = None

    return undo


def down(private: Private) -> Callable[[], None]:
    private.git.is_down = True

    def undo() -> None:
        private.git.is_down = False

    return undo


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param(removed_from_the_installation, "source-repository-unavailable", id="removed"),
        pytest.param(suspended, "source-installation-not-active", id="suspended"),
        pytest.param(down, "source-provider-failed", id="down"),
    ],
)
def test_what_happened_between_request_and_fetch_is_the_jobs_error(
    private: Private, change: Callable[[Private], Callable[[], None]], code: str
) -> None:
    selection = private.selection("gone")
    undo = change(private)
    try:
        failed = private.stack.failed({}, sourceSelection=selection)
    finally:
        undo()
    assert failed.job.error_code == code
    assert failed.body["error"]["code"] == code
    assert failed.body["error"]["message"]
    assert not any(token in str(failed.body).encode() for token in spellings(private.provider))


def test_the_address_without_a_selection_opens_nothing(private: Private) -> None:
    url = private.git.url("octo-org/app")
    failed = private.stack.failed({"sources": {"workspace": {"url": url}}})
    assert failed.job.error_code == "source-auth-required"


def test_the_worker_takes_up_a_delivery_that_was_left_undone(private: Private) -> None:
    private.provider.installations[7].login = "renamed-org"
    left = WebhookDelivery.objects.create(
        delivery_id="left",
        event="installation_target",
        action="renamed",
        external_installation_id=7,
        payload={},
    )
    # The provider was asked before it came, and it came long enough ago.
    Installation.objects.update(observed_at=Now() - timedelta(days=1))
    WebhookDelivery.objects.filter(pk=left.pk).update(received_at=Now() - timedelta(minutes=2))
    eventually(
        lambda: WebhookDelivery.objects.get(pk=left.pk).status == "processed",
        what=f"the delivery is applied\n{private.stack.worker.told[-4000:]}",
    )
    assert Installation.objects.get().account_login == "renamed-org"
