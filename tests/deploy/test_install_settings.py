"""Settings that only an installation in containers reads are checked before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.installation import made_installation


@pytest.mark.parametrize("bind", ["web.example", "127.0.0.300", "::1", "127.0.0.1:80"])
def test_an_address_that_compose_cannot_bind_is_told(tmp_path: Path, bind: str) -> None:
    installation = made_installation(tmp_path, SVC_BIND_HOST=bind)
    done = installation.run("check", "--min-free-mb", "1")
    assert done.returncode == 1
    assert f"install.sh: SVC_BIND_HOST: {bind} is no IPv4 address" in done.stderr


def test_times_that_are_no_numbers_are_told_by_name_all_of_them(tmp_path: Path) -> None:
    installation = made_installation(
        tmp_path,
        WORKSPACE_BUILD_TIMEOUT_MS="half an hour",
        WORKSPACE_PUSH_TIMEOUT_MS="0",
        RABBITMQ_CONSUMER_TIMEOUT_MS="4h",
    )
    done = installation.run("check", "--min-free-mb", "1")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "install.sh: RABBITMQ_CONSUMER_TIMEOUT_MS: 4h is no number of milliseconds",
        "install.sh: WORKSPACE_BUILD_TIMEOUT_MS: half an hour is no number of milliseconds",
        "install.sh: WORKSPACE_PUSH_TIMEOUT_MS: 0 is no number of milliseconds",
    ]
