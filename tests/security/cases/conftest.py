"""The API process that the generated calls of a file go to."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.test import override_settings
from pytest_django.plugin import DjangoDbBlocker

from tests.security.cases.calls import Calls, served
from tests.security.owned import fill


@pytest.fixture(scope="module")
def calls(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Calls]:
    """Calls to an API whose database has something of everything, and is empty afterwards."""
    key = base64.b64encode(bytes(32)).decode()
    with django_db_blocker.unblock(), override_settings(SVC_CREDENTIALS_KEY=key):
        try:
            with served(tmp_path_factory.mktemp("api"), fill()) as made:
                yield made
        finally:
            call_command("flush", interactive=False, verbosity=0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name each operation's test in its id: several processes would run one of a name."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.nodeid.endswith("]"):
            item._nodeid = f"{item.nodeid.rpartition('::')[0]}::{item.name}"  # type: ignore[attr-defined]
