"""What processes do not load: memory that each of them would pay for, and time of each start.

Named are modules, never MiB or seconds: what is not loaded costs nothing on any machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SDK_OF_ENGINES = ("docker", "kubernetes", "paramiko")
HTTP_CLIENT = ("requests", "urllib3", "certifi")
BLUEPRINT = ("workspaces.blueprint", "pydantic")
API = ("rest_framework.views", "drf_spectacular.utils", "controlplane.http.serializers")
CERTIFICATES = ("cryptography.x509", "cryptography.hazmat.bindings")
BROKER = ("pika",)
METRICS = ("prometheus_client",)
DESCRIPTION = ("jsonschema", "yaml")
PAGES = ("controlplane.urls",)

NEEDED_BY_FEW = (
    *(*SDK_OF_ENGINES, *HTTP_CLIENT, *BLUEPRINT, *API, *CERTIFICATES),
    *(*BROKER, *METRICS, *DESCRIPTION, *PAGES),
)

_LOADED = """
import sys
import django
django.setup()
if len(sys.argv) > 1:
    from django.core.management import load_command_class
    load_command_class(*sys.argv[1:])
print(*sys.modules, sep=chr(10))
"""


def _loaded(*command: str) -> set[str]:
    """Return the names of the modules of a process that has begun, and done nothing yet."""
    started = subprocess.run(
        [sys.executable, "-c", _LOADED, *command],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "controlplane.settings"},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(started.stdout.split())


@pytest.mark.parametrize("name", NEEDED_BY_FEW)
def test_what_may_not_be_loaded_exists(name: str) -> None:
    assert find_spec(name) is not None


def test_a_process_that_has_only_been_set_up_has_loaded_nothing_that_few_need() -> None:
    loaded = _loaded()
    assert "workspaces.models" in loaded
    assert loaded.isdisjoint(NEEDED_BY_FEW), loaded.intersection(NEEDED_BY_FEW)


@pytest.mark.parametrize(
    ("app", "command", "needed"),
    [
        ("e2bfacade", "e2bfacade", ()),
        ("workspaces", "engineproxy", ()),
        ("workspaces", "egressproxy", ()),
        ("runs", "previewgateway", HTTP_CLIENT),
        ("runs", "sshgateway", (*HTTP_CLIENT, *CERTIFICATES)),
    ],
)
def test_a_gateway_loads_what_it_needs_and_nothing_of_others(
    app: str, command: str, needed: tuple[str, ...]
) -> None:
    loaded = _loaded(app, command)
    assert loaded.issuperset(needed)
    others = set(NEEDED_BY_FEW).difference(needed)
    assert loaded.isdisjoint(others), loaded & others


@pytest.mark.parametrize(
    ("app", "command", "others"),
    [
        ("runs", "runworker", (*BLUEPRINT, *API, *METRICS, *PAGES, "jsonschema", "kubernetes")),
        ("builds", "buildworker", (*METRICS, *PAGES, "jsonschema", "kubernetes")),
    ],
)
def test_a_worker_loads_nothing_of_the_pages_and_of_clusters(
    app: str, command: str, others: tuple[str, ...]
) -> None:
    loaded = _loaded(app, command)
    assert loaded.issuperset({"docker", "pika"})
    assert loaded.isdisjoint(others), loaded.intersection(others)
