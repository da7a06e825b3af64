"""Compilers on their benches, and what they build from and push to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from registries.client import RegistryClient
from registries.services import configured_registry
from tests.builds.bench import Bench, FakeDocker


@pytest.fixture
def registry() -> Iterator[RegistryClient]:
    """A client of the registry that is pushed to."""
    client = configured_registry()
    yield client
    client.close()


@pytest.fixture
def repository() -> str:
    """The name of a repository that nobody else uses."""
    return f"tests/compiler-{uuid4().hex}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder of sources, as old as its last commit."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "README").write_text("hello\n")
    os.utime(folder, (1_700_000_000, 1_700_000_000))
    return folder


@pytest.fixture
def bench(tmp_path: Path, registry: RegistryClient) -> Iterator[Bench]:
    """The compiler with the operator's docker."""
    bench = Bench(tmp_path / "builds", registry)
    yield bench
    bench.discard_all()


@pytest.fixture
def fake(tmp_path: Path, registry: RegistryClient) -> FakeDocker:
    """A docker that succeeds at everything until the test says otherwise."""
    return FakeDocker(tmp_path, registry)
