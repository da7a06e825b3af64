"""System checks: settings that are well-formed but unwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.checks import run_checks
from pytest_django.fixtures import Settings


@pytest.fixture(autouse=True)
def _sound(settings: Settings) -> None:
    settings.CORS_ALLOWED_ORIGINS_SETTING = "http://localhost:4000"


def found() -> list[str | None]:
    return [message.id for message in run_checks()]


def test_a_sound_installation_has_nothing_to_say(settings: Settings) -> None:
    settings.WEB_AUTH_SECRET = "x" * 32
    assert found() == []


def test_a_signing_secret_that_is_not_set_is_a_warning(settings: Settings) -> None:
    settings.WEB_AUTH_SECRET = ""
    assert found() == ["controlplane.W001"]


def test_a_certificate_file_that_is_not_there_is_an_error(
    settings: Settings, tmp_path: Path
) -> None:
    settings.WEB_AUTH_SECRET = "x" * 32
    settings.SVC_EXTRA_CA_FILE = str(tmp_path / "ca.pem")
    assert found() == ["controlplane.E001"]
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----")
    assert found() == []


@pytest.mark.parametrize("bound", ["127.0.0.1", "::1", "localhost"])
def test_pages_of_everywhere_that_may_read_a_loopback_api_are_a_warning(
    settings: Settings, bound: str
) -> None:
    settings.WEB_AUTH_SECRET = "x" * 32
    settings.CORS_ALLOWED_ORIGINS_SETTING = "*"
    settings.SVC_PUBLISHED_HOST = bound
    assert found() == ["controlplane.W002"]
    settings.SVC_PUBLISHED_HOST = "0.0.0.0"  # noqa: S104 - a setting, not bound
    assert found() == []


def test_a_lease_shorter_than_two_heartbeats_is_an_error(settings: Settings) -> None:
    settings.WEB_AUTH_SECRET = "x" * 32
    settings.WORKER_HEARTBEAT_INTERVAL_MS = 5_000
    settings.WORKSPACE_BUILD_JOB_LEASE_DURATION_MS = 9_999
    settings.WORKER_HEARTBEAT_STALE_MS = 9_999
    assert found() == ["controlplane.E002", "controlplane.E002"]
    settings.WORKSPACE_BUILD_JOB_LEASE_DURATION_MS = 10_000
    settings.WORKER_HEARTBEAT_STALE_MS = 10_000
    assert found() == []


def test_every_finding_has_an_id_and_a_hint(settings: Settings) -> None:
    settings.WEB_AUTH_SECRET = ""
    settings.SVC_EXTRA_CA_FILE = "/nowhere"
    settings.WORKER_HEARTBEAT_STALE_MS = 1
    settings.CORS_ALLOWED_ORIGINS_SETTING = "*"
    assert len(run_checks()) == 4
    assert all(message.id and message.hint for message in run_checks())
