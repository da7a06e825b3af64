"""A client of the real registry, a repository of the test's own, a registry that misbehaves."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from registries.client import RegistryClient
from tests.registries.account import PASSWORD, USERNAME
from tests.registries.fake_registry import FakeRegistry
from tests.registries.images import BASE_URL


@pytest.fixture
def client() -> Iterator[RegistryClient]:
    """A client of the real registry."""
    client = RegistryClient(
        BASE_URL,
        username=USERNAME or None,
        password=PASSWORD or None,
        connect_timeout=30,
        read_timeout=30,
    )
    yield client
    client.close()


@pytest.fixture
def repository() -> str:
    """The name of a repository that nobody else uses."""
    return f"tests/client-{uuid.uuid4().hex}"


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    """A registry that answers 500 until the test says otherwise."""
    fake = FakeRegistry()
    yield fake
    fake.close()
