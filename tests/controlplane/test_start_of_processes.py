"""What a process reads and checks before it begins: what it needs, and nothing of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.checks.registry import registry

from controlplane.checks import SETTINGS
from tests.support.waiting import LONG_WAIT

ROOT = Path(__file__).parents[2]
OURS = ("accounts", "builds", "controlplane", "registries", "runs", "scm", "workspaces")
PAGES = (
    """
import sys
pages = {name for name in sys.modules if name == "controlplane.urls" or (
    name.endswith((".admin", ".views")) and name.partition(".")[0] in """
    + repr(OURS)
    + """)}
"""
)


def _python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "controlplane.settings", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("app", "command"),
    [
        ("builds", "buildworker"),
        ("runs", "runworker"),
        ("runs", "sshgateway"),
        ("runs", "previewgateway"),
        ("e2bfacade", "e2bfacade"),
        ("workspaces", "engineproxy"),
        ("workspaces", "egressproxy"),
    ],
)
def test_a_process_without_pages_reads_none(app: str, command: str) -> None:
    started = _python(
        "import django; django.setup()\n"
        "from django.core.management import load_command_class\n"
        f"command = load_command_class({app!r}, {command!r})\n"
        "if command.requires_system_checks:\n"
        "    command.check(tags=command.requires_system_checks)\n"
        f"{PAGES}print(sorted(pages))"
    )
    assert (started.stdout, started.stderr) == ("[]\n", "")


def test_the_web_process_has_read_its_pages_before_the_first_request() -> None:
    started = _python(f"import controlplane.wsgi\n{PAGES}print(len(pages))\nassert pages")
    assert started.returncode == 0, started.stderr


def test_every_check_of_ours_is_made_by_workers_but_those_of_pages() -> None:
    ours = [check for check in registry.get_checks() if check.__module__.partition(".")[0] in OURS]
    others = [check for check in ours if SETTINGS not in check.tags]
    assert len(ours) > 5
    assert sorted((check.__module__, check.tags) for check in others) == [
        ("controlplane.apps", ("admin",)),
        ("controlplane.checks", ("security",)),
    ]


@pytest.mark.parametrize("command", ["buildworker", "runworker"])
def test_a_worker_does_not_start_with_settings_that_cannot_work(command: str) -> None:
    environment = {**os.environ, "WORKSPACE_BUILD_JOB_LEASE_DURATION_MS": "1000"}
    started = subprocess.run(
        [sys.executable, "manage.py", command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG_WAIT,
    )
    assert (started.returncode, "controlplane.E002" in started.stderr) == (1, True), started.stderr


def test_the_checks_look_at_the_pages_of_all_apps() -> None:
    checked = _python(
        "import django; django.setup()\n"
        "from django.core.checks import run_checks\n"
        "from django.contrib import admin\n"
        "print(len(admin.site._registry), run_checks(tags=['admin']))\n"
        "print(len(admin.site._registry) > 5)"
    )
    assert (checked.stdout, checked.stderr) == ("0 []\nTrue\n", "")
