"""Whatever docker's command line does, the compiler keeps its limits and says what happened."""

from __future__ import annotations

import base64
import threading
import time
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from django.conf import settings

from builds.images.compiler import BuildError, BuiltImage
from registries.client import RegistryClient
from tests.builds.bench import NEVER, PLAN, Bench, FakeDocker
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.docker


def test_an_exit_code_and_the_redacted_end_of_the_output_are_told(fake: FakeDocker) -> None:
    token = "ghp_" + "a1B2c3D4e5" * 4
    fake.behave(step=f"echo 'used {token}' >&2; exit 7")
    error = fake.failure()
    assert error.code == "build-command-failed"
    assert 'exit code 7 at the step RUN ["/bin/bash", "-c", ": ' in error.message
    assert "used [redacted]" in error.message
    assert token not in error.message


def test_a_signal_is_told_by_its_name(fake: FakeDocker) -> None:
    fake.behave(step="kill -KILL $$")
    error = fake.failure()
    assert error.code == "build-command-failed"
    assert "ended with signal SIGKILL" in error.message


def test_a_build_that_hangs_meets_its_limit_and_a_cancelled_one_ends_soon(
    tmp_path: Path, registry: RegistryClient
) -> None:
    started = time.monotonic()
    for seconds in (6, 60):  # until the limit strikes after the step has begun
        (tmp_path / str(seconds)).mkdir()
        fake = FakeDocker(tmp_path / str(seconds), registry, build_timeout=float(seconds))
        fake.behave(step="echo started; sleep 600")
        error = fake.failure()
        assert error.code == "build-timed-out"
        assert f"{seconds} seconds" in error.message
        if "started" in error.message:
            break
    assert "started" in error.message
    cancelled = threading.Event()
    cancelled.set()
    assert fake.failure(cancelled=cancelled).code == "build-cancelled"
    assert time.monotonic() - started < LONG_WAIT


def test_a_push_that_hangs_meets_its_limit_and_a_cancelled_one_ends_soon(
    tmp_path: Path, registry: RegistryClient
) -> None:
    fake = FakeDocker(tmp_path, registry, push_timeout=0.5)
    fake.behave(push="sleep 600")
    built = fake.build()
    cancelled = threading.Event()
    for code in ("push-timed-out", "build-cancelled"):
        with pytest.raises(BuildError) as caught:
            fake.bench.push(built, "a/b", cancelled)
        assert caught.value.code == code
        assert fake.calls("rmi")[-1].startswith(
            f"rmi --force --no-prune {settings.REGISTRY_PUSH_REGISTRY}/a/b:v1 "
        )
        assert fake.bench.is_clean()
        cancelled.set()


def test_a_pull_that_hangs_meets_its_limit_and_a_cancelled_one_ends_soon(
    tmp_path: Path, registry: RegistryClient
) -> None:
    fake = FakeDocker(tmp_path, registry, build_timeout=0.5)
    fake.behave(image="exit 1", pull="echo waiting for the mirror; sleep 600")
    cancelled = threading.Event()
    for code, message in (
        ("build-timed-out", "Pulling the base image debian:gone took longer than 0.5 seconds"),
        ("build-cancelled", "cancelled"),
    ):
        with pytest.raises(BuildError, match=message) as caught:
            fake.bench.base_image_id("debian:gone", cancelled=cancelled)
        assert caught.value.code == code
        cancelled.set()
    assert fake.bench.programs == [("docker pull", ["docker", "pull", "debian:gone"])] * 2


def test_of_endless_output_the_end_is_kept(fake: FakeDocker) -> None:
    fake.behave(step="yes 'a line' | head -c 1000000; echo the end; exit 1")
    error = fake.failure()
    assert len(fake.bench.printed) > 1_000_000
    assert error.message.endswith("the end")
    assert len(error.message) < 9000


def test_a_reader_of_the_output_that_fails_ends_the_build(fake: FakeDocker) -> None:
    fake.behave(step="echo hello; sleep 600")

    class Gone(Bench):
        def feed(self, stream: str, chunk: bytes) -> None:
            raise ConnectionError("the record is gone")

    gone = Gone(fake.folder / "gone", fake.bench.registry)
    started = time.monotonic()
    with pytest.raises(ConnectionError):
        fake.build(log=gone)
    assert time.monotonic() - started < LONG_WAIT
    assert fake.bench.is_clean()


def test_a_context_that_cannot_be_written_has_its_own_code(
    tmp_path: Path, registry: RegistryClient
) -> None:
    (tmp_path / "builds").write_text("in the way")
    fake = FakeDocker(tmp_path, registry)
    with pytest.raises(BuildError) as caught:
        fake.build()
    assert caught.value.code == "build-write-context-failed"
    assert fake.calls("start") == []


def test_the_registrys_account_is_in_a_private_file_during_the_push_only(
    tmp_path: Path, registry: RegistryClient
) -> None:
    fake = FakeDocker(tmp_path, registry, username="joe", password="hunter2 hunter2")
    fake.behave(
        push=f"cp $DOCKER_CONFIG/config.json {tmp_path}/seen;"
        f" stat -c '%a' $DOCKER_CONFIG $DOCKER_CONFIG/config.json > {tmp_path}/modes;"
        " echo denied for hunter2 hunter2; exit 1"
    )
    built = fake.build()
    with pytest.raises(BuildError) as caught:
        fake.bench.push(built, "a/b")
    assert "denied for [redacted]" in caught.value.message
    expected = base64.b64encode(b"joe:hunter2 hunter2").decode()
    assert expected in (tmp_path / "seen").read_text()
    assert (tmp_path / "modes").read_text().split() == ["700", "600"]
    assert "hunter2" not in fake.log.read_text()
    assert expected not in fake.log.read_text()
    for call in fake.calls("start"):
        assert str(fake.bench.temp_root) not in call.partition("[config=")[2]
    assert fake.bench.is_clean()


def test_an_engine_that_does_not_tell_the_digest_or_lies_about_it_is_not_believed(
    fake: FakeDocker,
) -> None:
    built = fake.build()
    digest = f"sha256:{'0' * 64}"
    stated = f"echo v1: digest: {digest} size: 1"
    for push, image, message in [
        ("echo done", "", "did not report the digest"),
        (stated, """echo '["a/b@sha256:another"]'""", "Another image was pushed"),
        (stated, f"""echo '["a/b@{digest}"]'""", "does not have the image that was pushed"),
    ]:
        fake.behave(push=push, image=image)
        with pytest.raises(BuildError, match=message) as caught:
            fake.bench.push(built, f"tests/none-{uuid4().hex}")
        assert caught.value.code == "push-failed"


@pytest.mark.parametrize(
    ("repository", "tag"), [("A", "v1"), ("a/../b", "v1"), ("-a", "v1"), ("a", "-v"), ("a", "v 1")]
)
def test_a_malformed_name_is_never_pushed(fake: FakeDocker, repository: str, tag: str) -> None:
    with pytest.raises(BuildError, match="malformed"):
        fake.bench.compiler.push(
            BuiltImage("sha256:abc", f"svc-build/{uuid4()}:1"),
            repository=repository,
            tag=tag,
            log=fake.bench,
            cancelled=NEVER,
        )
    assert fake.calls("tag") == []


def test_a_command_line_that_is_missing_is_named(tmp_path: Path, registry: RegistryClient) -> None:
    bench = Bench(tmp_path / "builds", registry, docker_cli="/no/such/docker")
    with pytest.raises(BuildError) as caught:
        bench.build(replace(PLAN, sources=()))
    assert caught.value.code == "build-command-failed"
    assert "docker is not installed" in caught.value.message
    assert bench.is_clean()
