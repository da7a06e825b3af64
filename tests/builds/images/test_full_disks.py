"""Disks that are full, or that nobody may write to, while images are built and published.

Every disk is a real one: the worker's folder, the engine's own, and the registry's.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from django.conf import settings

from builds.images.compiler import BuildError
from builds.images.work_folders import sweep_leftovers
from deploy.services.engine import PrivateEngine
from deploy.services.registry import PrivateRegistry
from registries.client import RegistryClient
from tests.builds.bench import BASE_IMAGE, PLAN, Bench, running
from tests.stack.disks import fill, read_only, small_disk
from tests.stack.small_engine import small_engine

pytestmark = pytest.mark.docker
PLAIN = replace(PLAN, sources=())


@pytest.fixture(scope="module")
def engine() -> Iterator[PrivateEngine]:
    """An engine whose disk is soon full."""
    with small_engine(settings.DOCKER_HOST, BASE_IMAGE) as engine:
        yield engine


@pytest.fixture
def small_temp_root(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own for the folders of builds."""
    with small_disk(tmp_path / "builds", "8m") as place:
        yield place


# ---------------------------------------------------------------- the worker's own disk


def test_a_full_disk_of_the_worker_is_named_and_nothing_has_to_be_repaired(
    small_temp_root: Path, registry: RegistryClient
) -> None:
    bench = Bench(small_temp_root, registry)
    ballast = fill(small_temp_root)
    with pytest.raises(BuildError) as caught:
        bench.build(PLAIN)
    assert caught.value.code == "build-write-context-failed"
    assert "No space left on device" in caught.value.message
    assert list(small_temp_root.iterdir()) == [ballast]

    ballast.unlink()
    bench.build(PLAIN)
    bench.discard_all()
    assert bench.is_clean()


def test_a_disk_that_fills_while_the_context_is_written_is_named(
    small_temp_root: Path, registry: RegistryClient
) -> None:
    bench = Bench(small_temp_root, registry)
    with pytest.raises(BuildError) as caught:
        bench.build(PLAIN, agent=bytes(16 << 20))
    assert caught.value.code == "build-write-context-failed"
    assert "No space left on device" in caught.value.message
    assert bench.is_clean()


def test_a_folder_of_builds_that_may_only_be_read_is_named(
    tmp_path: Path, registry: RegistryClient
) -> None:
    root = tmp_path / "builds"
    (root / "svc-build-of-a-dead-worker").mkdir(parents=True)
    bench = Bench(root, registry)
    with read_only(root):
        with pytest.raises(BuildError) as caught:
            bench.build(PLAIN)
        assert caught.value.code == "build-write-context-failed"
        assert "Read-only file system" in caught.value.message
        # What cannot be removed is left for later, and hinders nobody.
        assert sweep_leftovers(root, older_than=-60) == 0
    assert sweep_leftovers(root, older_than=-60) == 1
    assert bench.is_clean()


# ---------------------------------------------------------------- the engine's disk


def test_a_full_disk_of_the_engine_fails_the_build_in_the_engines_words(
    engine: PrivateEngine, tmp_path: Path, registry: RegistryClient
) -> None:
    bench = Bench(tmp_path / "builds", registry, docker_host=engine.url)
    ballast = fill(engine.root)
    with pytest.raises(BuildError) as caught:
        bench.build(PLAIN)
    assert caught.value.code == "build-command-failed"
    assert "no space left on device" in caught.value.message
    assert bench.is_clean()

    ballast.unlink()
    bench.build(PLAIN)
    bench.discard_all()


def test_an_engine_that_is_down_is_called_by_its_name_and_builds_when_it_is_back(
    engine: PrivateEngine, tmp_path: Path, registry: RegistryClient
) -> None:
    bench = Bench(tmp_path / "builds", registry, docker_host=engine.url)
    bench.build(PLAIN)
    engine.kill()
    with pytest.raises(BuildError) as caught:
        bench.build(running("true"))
    assert caught.value.code == "adapter-unavailable"
    fresh = Bench(tmp_path / "other", registry, docker_host=engine.url)
    with pytest.raises(BuildError) as caught:
        fresh.base_image_id(BASE_IMAGE)
    assert caught.value.code == "adapter-unavailable"

    engine.start()
    assert fresh.base_image_id(BASE_IMAGE)
    bench.build(PLAIN)
    bench.discard_all()


# ---------------------------------------------------------------- the registry's disk


# The engine tries a push five times, and waits longer each time.
@pytest.mark.slow
def test_a_full_disk_of_the_registry_fails_the_push_and_the_next_one_is_whole(
    bench: Bench, tmp_path: Path, repository: str
) -> None:
    # Its account has to reach its folder, and may not enter pytest's.
    place = Path("/tmp") / f"svc-registry-{secrets.token_hex(6)}"
    with small_disk(place, "300m"):
        place.chmod(0o755)
        service = PrivateRegistry(place, None, "password")
        service.start()
        address = service.settings["REGISTRY_PUSH_REGISTRY"]
        user, password = "svc", "password"
        client = RegistryClient(
            service.settings["REGISTRY_BASE_URL"], username=user, password=password
        )
        publishing = Bench(
            tmp_path / "pushes",
            client,
            push_registry=address,
            username=user,
            password=password,
        )
        try:
            built = bench.build(PLAIN)
            ballast = fill(place)
            with pytest.raises(BuildError) as caught:
                publishing.push(built, repository)
            assert caught.value.code == "push-failed"
            client.ping()
            assert client.list_tags(repository) in (None, [])

            ballast.unlink()
            published = publishing.push(built, repository)
            assert client.head_manifest(repository, "v1") == published.digest
            assert publishing.is_clean()
        finally:
            client.close()
            service.stop()
    place.rmdir()
