"""Selected repositories are fetched with a token as narrow as the need, while that is allowed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from builds.pipeline.build import SourceFetcher
from builds.pipeline.build_record import BuildRecord, recording
from builds.pipeline.job_state import JobState
from builds.planner.plan import PlannedSource
from runs.agent.record.frames import Kind
from runs.boot_runs import boot_run
from runs.models import Run, RunEvent
from scm.git import ResolvedSource, SourcePolicy
from scm.git_urls import SourceError
from scm.models import Installation, InstallationGrant, InstallationRepository
from scm.services import import_installation
from tests.conftest import OWNER
from tests.factories import claim, make_job
from tests.scm.conftest import git as run_git
from tests.scm.fake_provider import FakeProvider, configure, running_provider
from tests.scm.provider_git import ProviderGit
from workspaces.lifecycle.sources import remember_references
from workspaces.models import BuildJob

pytestmark = pytest.mark.django_db(transaction=True)

POLICY = SourcePolicy(resolve_timeout=60, fetch_timeout=60, max_bytes=50 * 1024 * 1024)
"""As operators have it: nothing on private networks, but for the provider itself."""


@dataclass
class Place:
    """A job with a selected source, and everything it is fetched from."""

    job: BuildJob
    source: PlannedSource
    provider: FakeProvider
    git: ProviderGit
    commit: str
    folder: Path
    record: BuildRecord
    policy: SourcePolicy = POLICY

    def fetcher(self) -> SourceFetcher:
        return SourceFetcher(JobState(self.job), self.policy, self.record)

    def fails(self, fetcher: SourceFetcher | None = None) -> SourceError:
        """Return why the source cannot be had; no message of it holds a token."""
        with pytest.raises(SourceError) as caught:
            self._try(fetcher)
        for issued in self.provider.issued:
            assert issued.token not in str(caught.value)
        return caught.value

    def _try(self, fetcher: SourceFetcher | None) -> None:
        if fetcher is None:
            self.fetcher().resolve(self.source)
            return
        resolved = ResolvedSource(self.git.url("octo-org/app"), "refs/heads/main", self.commit)
        fetcher.checkout({"workspace": resolved}, self.folder)


@pytest.fixture
def place(settings: Settings, tmp_path: Path) -> Iterator[Place]:
    """A job with a selected repository, in an installation that the owner has imported."""
    with running_provider() as provider:
        configure(settings, provider)
        provider.install("app", "secret", id=7)
        import_installation(7, owner_user_id=OWNER)
        served = ProviderGit(provider, tmp_path / "provider")
        commit = served.publish("octo-org/app", {"private.txt": "nobody knows\n"})
        served.publish("octo-org/secret", {"other.txt": "not selected\n"})
        job = claim(make_job())
        app = InstallationRepository.objects.get(name="app")
        remember_references(job.attempt.sandbox, {"workspace": app.pk})
        source = PlannedSource(
            "workspace", "workspace", served.url("octo-org/app"), "main", "/workspace/repo"
        )
        folder = tmp_path / "checkouts"
        folder.mkdir()
        with recording(boot_run(job.attempt), job, [], cancelled=threading.Event()) as record:
            yield Place(job, source, provider, served, commit, folder, record)


def test_a_selected_repository_is_fetched_with_a_token_for_it_alone_and_to_read(
    place: Place,
) -> None:
    place.provider.issued.clear()
    fetcher = place.fetcher()
    resolved = fetcher.resolve(place.source)
    (tree,) = fetcher.checkout({"workspace": resolved}, place.folder).values()
    assert resolved.commit == place.commit
    assert (tree / "private.txt").read_text() == "nobody knows\n"
    assert run_git(tree, "config", "--get", "remote.origin.url") == place.git.url("octo-org/app")
    (issued,) = place.provider.issued
    assert issued.repository_ids == frozenset({700})
    assert issued.permissions == {"metadata": "read", "contents": "read"}
    assert place.provider.refusals == []


def test_the_token_is_in_the_checkout_nowhere_and_masked_in_the_record(place: Place) -> None:
    fetcher = place.fetcher()
    tree = fetcher.checkout({"workspace": fetcher.resolve(place.source)}, place.folder)["workspace"]
    token = place.provider.issued[-1].token
    place.record.state(f"Somebody says {token}, and says it again: {token}")
    files = [file for file in tree.rglob("*") if file.is_file()]
    assert len(files) > 5
    assert [file for file in files if token.encode() in file.read_bytes()] == []
    place.record.close("stopped")
    run = Run.objects.get(pk=place.job.attempt.run_id)
    events = RunEvent.objects.filter(run_number=run.number)
    told = b"".join(bytes(event.meta or b"") + bytes(event.body or b"") for event in events)
    assert b"Somebody says ***" in told
    assert token.encode() not in told
    assert events.filter(kind=Kind.PROCESS_STARTED).exists()


def test_a_token_near_its_end_is_renewed_before_the_fetch(place: Place) -> None:
    fetcher = place.fetcher()
    resolved = fetcher.resolve(place.source)
    made = len(place.provider.issued)
    held = fetcher._tokens["workspace"]
    fetcher._tokens["workspace"] = replace(
        held, expires_at=datetime.now(UTC) + timedelta(seconds=100)
    )
    fetcher.checkout({"workspace": resolved}, place.folder)
    assert len(place.provider.issued) == made + 1


def test_a_public_source_beside_it_is_fetched_as_anybody(
    place: Place, settings: Settings, tmp_path: Path
) -> None:
    place.policy = replace(POLICY, allow_file=True)
    made = len(place.provider.issued)
    url = f"file://{tmp_path}/provider/octo-org/secret.git"
    other = PlannedSource("dotfiles", "dotfiles", url, None, "/dotfiles")
    place.fetcher().resolve(other)
    assert len(place.provider.issued) == made


def test_the_address_alone_opens_nothing(place: Place) -> None:
    """The same URL as a source that is not a selected one."""
    place.policy = replace(POLICY, allow_private=True)
    made = len(place.provider.issued)
    place.source = replace(place.source, id="other")
    assert place.fails().code == "source-auth-required"
    assert len(place.provider.issued) == made


def test_a_repository_that_was_renamed_meanwhile_is_found_under_its_new_name(place: Place) -> None:
    place.provider.installations[7].repositories[0].name = "renamed"
    (place.git.folder / "octo-org/app.git").rename(place.git.folder / "octo-org/renamed.git")
    import_installation(7, owner_user_id=OWNER)
    resolved = place.fetcher().resolve(place.source)
    assert resolved.url == place.git.url("octo-org/renamed")
    assert resolved.commit == place.commit


class TestWhatHappenedMeanwhile:
    """Between the request and the fetch; and whether or not we were told."""

    def test_removed_from_the_installation_as_we_know(self, place: Place) -> None:
        del place.provider.installations[7].repositories[0]
        import_installation(7, owner_user_id=OWNER)
        assert place.fails().code == "source-repository-unavailable"

    def test_removed_from_the_installation_unknown_to_us(self, place: Place) -> None:
        del place.provider.installations[7].repositories[0]
        assert place.fails().code == "source-repository-unavailable"

    def test_suspended_as_we_know(self, place: Place) -> None:
        Installation.objects.update(status="suspended")
        assert place.fails().code == "source-installation-not-active"

    def test_suspended_unknown_to_us(self, place: Place) -> None:
        place.provider.installations[7].suspended_at = "2026-01-02T03:04:05Z"
        assert place.fails().code == "source-installation-not-active"

    def test_deleted_unknown_to_us(self, place: Place) -> None:
        del place.provider.installations[7]
        assert place.fails().code == "source-installation-not-active"

    def test_taken_away_from_the_owner(self, place: Place) -> None:
        InstallationGrant.objects.all().delete()
        assert place.fails().code == "source-installation-not-granted"

    def test_the_app_was_taken_out_of_the_settings(self, place: Place, settings: Settings) -> None:
        settings.SCM_APP_ID = settings.SCM_APP_PRIVATE_KEY = ""
        assert place.fails().code == "source-app-unconfigured"

    def test_the_provider_is_down(self, place: Place) -> None:
        place.git.is_down = True
        error = place.fails()
        assert error.code == "source-provider-failed"
        assert "503" in error.message

    def test_suspended_between_resolving_and_fetching(self, place: Place) -> None:
        fetcher = place.fetcher()
        fetcher.resolve(place.source)
        place.provider.installations[7].suspended_at = "2026-01-02T03:04:05Z"
        assert place.fails(fetcher).code in ("source-unreachable", "source-auth-required")
        assert list(place.folder.iterdir()) == []


def test_a_provider_that_lies_about_the_token_gets_no_further(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that would open more than was asked for is not used."""
    issue = place.provider._issue

    def generous(installation: Any, asked: Any) -> Any:
        return {**issue(installation, asked), "permissions": {"contents": "write"}}

    monkeypatch.setattr(place.provider, "_issue", generous)
    assert place.fails().code == "source-provider-failed"
    assert place.git.asked == []
