"""Images are built and published by the real engine; every way to fail ends clean and explained."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from django.conf import settings

from builds.compiler import BuildError, BuiltImage, Compiler, PublishedImage
from builds.planner import ImagePlan, PlannedSource, plan
from registries.client import RegistryClient
from runs.agent_archive import agent_archive
from tests.builds.images import CATALOGUE, extra_ca
from workspaces.blueprint import Blueprint

BASE_IMAGE = settings.SVC_BASE_IMAGES["debian"]
DOCKERFILE = f"""\
FROM {BASE_IMAGE}
COPY extra-ca.crt /extra-ca.crt
ADD sources.tar /
COPY svc-agent /usr/lib/svc/agent
ENTRYPOINT ["/usr/lib/svc/agent"]
"""
PLAN = ImagePlan(  # noqa: S604 - a login shell, not a command
    os_family="debian",
    base_image=BASE_IMAGE,
    dockerfile=DOCKERFILE,
    files=(),
    sources=(PlannedSource("workspace", "workspace", "https://host/a", None, "/workspace"),),
    working_directory="/workspace",
    harness_command=(),
    user="workspace",
    uid=1000,
    gid=1000,
    home="/home/workspace",
    shell="/bin/bash",
)
NEVER = threading.Event()


def docker(*arguments: str) -> str:
    """Run the operator's docker and return what it printed."""
    done = subprocess.run(
        ["docker", "--host", settings.DOCKER_HOST, *arguments], capture_output=True, check=False
    )
    return (done.stdout + done.stderr).decode().strip()


def until(condition: Callable[[], bool], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.fixture
def registry() -> Iterator[RegistryClient]:
    client = RegistryClient(settings.REGISTRY_BASE_URL)
    yield client
    client.close()


@pytest.fixture
def repository() -> str:
    return f"tests/compiler-{uuid4().hex}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "README").write_text("hello\n")
    os.utime(folder, (1_700_000_000, 1_700_000_000))
    return folder


class Bench:
    """A compiler, what it printed, and short ways to call it."""

    def __init__(self, temp_root: Path, registry: RegistryClient, **changed: object) -> None:
        options: dict[str, object] = {
            "docker_cli": settings.DOCKER_CLI,
            "docker_host": settings.DOCKER_HOST,
            "push_registry": settings.REGISTRY_PUSH_REGISTRY,
            "build_timeout": 120.0,
            "push_timeout": 120.0,
        }
        self.temp_root = temp_root
        self.compiler = Compiler(
            registry=registry,
            temp_root=temp_root,
            **(options | changed),  # type: ignore[arg-type]
        )
        self.printed = b""
        self.built: list[BuiltImage] = []

    def output(self, data: bytes) -> None:
        self.printed += data

    def build(
        self,
        image_plan: ImagePlan,
        checkouts: Mapping[str, Path] | None = None,
        *,
        job_id: UUID | None = None,
        output: Callable[[bytes], None] | None = None,
        cancelled: threading.Event = NEVER,
        agent: bytes = b"#!/bin/sh\necho agent\n",
        ca: bytes = b"",
    ) -> BuiltImage:
        built = self.compiler.build(
            image_plan,
            checkouts=checkouts or {},
            agent=agent,
            extra_ca=ca,
            job_id=job_id or uuid4(),
            attempt_count=1,
            labels={"svc.instance": "tests"},
            output=output or self.output,
            cancelled=cancelled,
        )
        self.built.append(built)
        return built

    def discard_all(self) -> None:
        for built in self.built:
            self.compiler.discard(built)

    def push(
        self, built: BuiltImage, repository: str, cancelled: threading.Event = NEVER
    ) -> PublishedImage:
        return self.compiler.push(
            built, repository=repository, tag="v1", output=self.output, cancelled=cancelled
        )

    def is_clean(self) -> bool:
        return not self.temp_root.exists() or list(self.temp_root.iterdir()) == []


@pytest.fixture
def bench(tmp_path: Path, registry: RegistryClient) -> Iterator[Bench]:
    bench = Bench(tmp_path / "builds", registry)
    yield bench
    bench.discard_all()


@pytest.fixture
def classic(tmp_path: Path, registry: RegistryClient) -> Iterator[Bench]:
    """The same engine behind a command line that has no BuildKit."""
    real = Bench(tmp_path / "probe", registry).compiler._command().program
    program = write_program(
        tmp_path / "classic-docker",
        f'[ "$DOCKER_BUILDKIT" = 1 ] && [ "$1" = build ] && exit 1\nexec {real} "$@"\n',
    )
    bench = Bench(tmp_path / "builds", registry, docker_cli=program)
    yield bench
    bench.discard_all()


def write_program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}")
    path.chmod(0o755)
    return str(path)


# The real engine


@pytest.mark.docker
@pytest.mark.parametrize("builder", ["bench", "classic"])
def test_a_plan_becomes_an_image_in_the_registry_and_leaves_no_name_behind(
    builder: str,
    repository: str,
    checkout: Path,
    registry: RegistryClient,
    request: pytest.FixtureRequest,
) -> None:
    bench: Bench = request.getfixturevalue(builder)
    built = bench.build(PLAN, {"workspace": checkout})
    assert (b"#1 [internal]" in bench.printed) == (builder == "bench")
    assert (b"\nStep 1/" in bench.printed) == (builder == "classic")
    assert docker("image", "inspect", "-f", "{{.Id}}", built.local_tag) == built.image_id
    assert built in bench.compiler.built_images()
    listing = docker(
        *("run", "--rm", "--network", "none", "--entrypoint", "/usr/bin/stat", built.local_tag),
        *("-c", "%n %u:%g %a", "/workspace", "/workspace/README", "/usr/lib/svc/agent"),
    )
    assert listing.splitlines() == [
        "/workspace 1000:1000 755",
        "/workspace/README 1000:1000 644",
        "/usr/lib/svc/agent 0:0 755",
    ]
    published = bench.push(built, repository)
    assert published.reference == f"{settings.REGISTRY_PUSH_REGISTRY}/{repository}:v1"
    assert published.digest_reference.endswith(f"/{repository}@{published.digest}")
    assert registry.head_manifest(repository, "v1") == published.digest
    assert published.digest.encode() in bench.printed
    bench.compiler.discard(built)
    bench.compiler.discard(built)
    assert built not in bench.compiler.built_images()
    assert repository not in docker("image", "ls", "--digests")
    assert bench.is_clean()


@pytest.mark.docker
def test_an_unchanged_plan_gives_the_same_digest_for_another_job(
    bench: Bench, repository: str, checkout: Path
) -> None:
    digests = set()
    for _ in range(2):
        built = bench.build(PLAN, {"workspace": checkout})
        digests.add(bench.push(built, repository).digest)
        bench.compiler.discard(built)
    assert len(digests) == 1
    assert b"CACHED" in bench.printed


@pytest.mark.docker
@pytest.mark.parametrize("builder", ["bench", "classic"])
def test_a_failing_step_is_told_with_its_exit_code_its_name_and_the_end_of_its_output(
    builder: str, request: pytest.FixtureRequest
) -> None:
    bench: Bench = request.getfixturevalue(builder)
    marker = uuid4().hex
    failing = replace(
        PLAN,
        sources=(),
        dockerfile=f"FROM {BASE_IMAGE}\nRUN echo early {marker}; echo the reason >&2; exit 42\n",
    )
    before = docker("ps", "-aq", "--no-trunc").split()
    job_id = uuid4()
    with pytest.raises(BuildError) as caught:
        bench.build(failing, job_id=job_id)
    assert caught.value.code == "build-command-failed"
    assert "ended with exit code" in caught.value.message
    assert "RUN echo early" in caught.value.message.partition("\n")[0]
    assert "the reason" in caught.value.message
    assert "42" in caught.value.message
    assert str(bench.temp_root) not in caught.value.message
    assert marker.encode() in bench.printed
    for container in set(docker("ps", "-aq", "--no-trunc").split()) - set(before):
        assert marker not in docker("inspect", container)
    assert not [image for image in bench.compiler.built_images() if image.owner[0] == job_id]
    assert bench.is_clean()


@pytest.mark.docker
@pytest.mark.parametrize("builder", ["bench", "classic"])
@pytest.mark.parametrize("reason", ["cancelled", "timed-out"])
def test_a_build_that_is_stopped_ends_in_the_engine_too(
    builder: str, reason: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bench: Bench = request.getfixturevalue(builder)
    seconds = f"3{uuid4().int % 10**6:06}"
    endless = replace(PLAN, sources=(), dockerfile=f"FROM {BASE_IMAGE}\nRUN exec sleep {seconds}\n")

    def sleeps() -> bool:
        done = subprocess.run(
            ["pgrep", "-fx", f"sleep {seconds}"], capture_output=True, check=False
        )
        return done.returncode == 0

    cancelled = threading.Event()
    if reason == "timed-out":
        bench.compiler._build_timeout = 4.0
    else:

        def cancel_once_it_runs() -> None:
            until(sleeps)
            cancelled.set()

        threading.Thread(target=cancel_once_it_runs).start()
    started = time.monotonic()
    with pytest.raises(BuildError) as caught:
        bench.build(endless, cancelled=cancelled)
    assert caught.value.code == f"build-{reason}"
    assert time.monotonic() - started < 20
    assert until(lambda: not sleeps())
    assert until(lambda: seconds not in docker("ps", "-a", "--no-trunc"))
    assert bench.is_clean()


@pytest.mark.docker
def test_pushes_of_one_name_at_the_same_time_get_their_own_digests(
    tmp_path: Path, registry: RegistryClient, repository: str
) -> None:
    lock = threading.Lock()

    @contextmanager
    def push_lock(name: str, *, patience: float, given_up: threading.Event) -> Iterator[None]:
        assert repository in name
        assert patience > 0
        assert not given_up.is_set()
        with lock:
            yield

    bench = Bench(tmp_path / "builds", registry, push_lock=push_lock)
    published: dict[int, PublishedImage] = {}

    def work(number: int) -> None:
        mine = replace(PLAN, sources=())
        built = bench.build(mine, agent=b"#!/bin/sh\n# %d\n" % number)
        published[number] = bench.push(built, repository)
        bench.compiler.discard(built)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({image.digest for image in published.values()}) == 3
    for number, image in published.items():
        manifest = registry.get_manifest(repository, image.digest)
        assert manifest is not None, number
    for number in range(3):
        # A build of the same content has the same digest, so it tells whose image is whose.
        built = bench.build(replace(PLAN, sources=()), agent=b"#!/bin/sh\n# %d\n" % number)
        again = bench.push(built, f"{repository}-again")
        bench.compiler.discard(built)
        assert again.digest == published[number].digest


@pytest.mark.docker
def test_a_registry_that_is_down_fails_the_push(
    tmp_path: Path, registry: RegistryClient, repository: str
) -> None:
    bench = Bench(tmp_path / "builds", registry, push_registry="127.0.0.1:1")
    built = bench.build(replace(PLAN, sources=()))
    with pytest.raises(BuildError) as caught:
        bench.push(built, repository)
    assert caught.value.code == "push-failed"
    assert "exit code 1" in caught.value.message
    bench.compiler.discard(built)
    assert repository not in docker("image", "ls")
    assert bench.is_clean()


@pytest.mark.docker
def test_a_base_image_has_an_id_or_a_clear_error(bench: Bench) -> None:
    expected = docker("image", "inspect", "-f", "{{.Id}}", BASE_IMAGE)
    assert bench.compiler.base_image_id(BASE_IMAGE) == expected
    with pytest.raises(BuildError) as caught:
        bench.compiler.base_image_id("127.0.0.1:1/no/such:image")
    assert caught.value.code == "build-command-failed"
    assert "127.0.0.1:1/no/such:image" in caught.value.message


@pytest.mark.docker
def test_a_base_image_that_moves_on_is_noticed_by_looking(bench: Bench) -> None:
    reference = f"svc-test/base-{uuid4().hex}:latest"
    try:
        docker("tag", BASE_IMAGE, reference)
        before = bench.compiler.base_image_id(reference)
        change = ["docker", "--host", settings.DOCKER_HOST, "build", "--tag", reference, "-"]
        newer = f"FROM {BASE_IMAGE}\nLABEL newer={reference}\n".encode()
        subprocess.run(change, input=newer, capture_output=True, check=True)
        assert bench.compiler.base_image_id(reference) == before

        bench.compiler.look_at_base_images()

        after = bench.compiler.base_image_id(reference)
        assert after == docker("image", "inspect", "--format", "{{.Id}}", reference) != before
    finally:
        docker("rmi", reference)
    bench.compiler.look_at_base_images()
    with pytest.raises(BuildError):
        bench.compiler.base_image_id(reference)


@pytest.mark.docker
@pytest.mark.slow
def test_a_blueprint_is_built_and_published_with_the_planners_own_files(
    bench: Bench, repository: str, checkout: Path, registry: RegistryClient
) -> None:
    blueprint = Blueprint.parse(
        {
            "sources": {"workspace": {"url": "https://host/a"}},
            "harness": {"id": "shell"},
        }
    )
    image_plan = plan(blueprint, "auto", CATALOGUE)
    checkouts = {source.id: checkout for source in image_plan.sources}
    built = bench.build(image_plan, checkouts, agent=agent_archive(), ca=extra_ca())
    published = bench.push(built, repository)
    assert registry.head_manifest(repository, published.digest) == published.digest
    owner = docker(
        *("run", "--rm", "--network", "none", "--entrypoint", "/usr/bin/stat", built.local_tag),
        *("-c", "%U %n", f"{image_plan.working_directory}/README"),
    )
    assert owner == f"workspace {image_plan.working_directory}/README"
    bench.compiler.discard(built)


# A command line that misbehaves


class FakeDocker:
    """A command line that records how it is called and does what the test says."""

    def __init__(self, folder: Path, registry: RegistryClient, **changed: object) -> None:
        self.folder = folder
        self.log = folder / "calls"
        self.log.touch()
        self.program = folder / "docker"
        self.behave()
        self.bench = Bench(folder / "builds", registry, docker_cli=str(self.program), **changed)

    def behave(self, build: str = "", push: str = "", image: str = "") -> None:
        write_program(
            self.program,
            f'echo "$@ [config=$DOCKER_CONFIG buildkit=$DOCKER_BUILDKIT]" >> {self.log}\n'
            'case "$1 $*" in\n'
            "*--output*) exit 1 ;;\n"
            f'build*) while [ "$1" != --iidfile ]; do shift; done; iid=$2\n{build}\n'
            "echo sha256:abc > $iid ;;\n"
            f"push*) {push}\n;;\n"
            f"image*) {image}\n;;\n"
            "esac\nexit 0\n",
        )

    def calls(self, command: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith(command)]

    def failure(self, **options: object) -> BuildError:
        with pytest.raises(BuildError) as caught:
            self.bench.build(replace(PLAN, sources=()), **options)  # type: ignore[arg-type]
        assert self.bench.is_clean()
        # Whatever happened, the name that the build may have given is taken back.
        assert any("svc-build/" in call for call in self.calls("rmi"))
        return caught.value


@pytest.fixture
def fake(tmp_path: Path, registry: RegistryClient) -> FakeDocker:
    return FakeDocker(tmp_path, registry)


def test_an_exit_code_and_the_redacted_end_of_the_output_are_told(fake: FakeDocker) -> None:
    token = "ghp_" + "a1B2c3D4e5" * 4
    fake.behave(build=f"echo 'Step 2/3 : RUN false'; echo 'used {token}' >&2; exit 7")
    error = fake.failure()
    assert error.code == "build-command-failed"
    assert "exit code 7 at the step RUN false" in error.message
    assert "used [redacted]" in error.message
    assert token.encode() not in fake.bench.printed
    assert b"used [redacted]" in fake.bench.printed


def test_a_signal_is_told_by_its_name(fake: FakeDocker) -> None:
    fake.behave(build="kill -KILL $$")
    error = fake.failure()
    assert error.code == "build-command-failed"
    assert "ended with signal SIGKILL" in error.message


def test_a_build_that_hangs_meets_its_limit_and_a_cancelled_one_ends_soon(
    tmp_path: Path, registry: RegistryClient
) -> None:
    fake = FakeDocker(tmp_path, registry, build_timeout=0.5)
    fake.behave(build="echo started; sleep 60")
    started = time.monotonic()
    error = fake.failure()
    assert error.code == "build-timed-out"
    assert "0.5 seconds" in error.message
    assert "started" in error.message
    cancelled = threading.Event()
    cancelled.set()
    assert fake.failure(cancelled=cancelled).code == "build-cancelled"
    assert time.monotonic() - started < 10


def test_a_push_that_hangs_meets_its_limit_and_a_cancelled_one_ends_soon(
    tmp_path: Path, registry: RegistryClient
) -> None:
    fake = FakeDocker(tmp_path, registry, push_timeout=0.5)
    fake.behave(push="sleep 60")
    built = fake.bench.build(replace(PLAN, sources=()))
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


def test_endless_output_is_cut_with_a_word_about_it_and_its_end_is_kept(
    tmp_path: Path, registry: RegistryClient
) -> None:
    fake = FakeDocker(tmp_path, registry, output_limit=10_000)
    fake.behave(build="yes 'a line' | head -c 1000000; echo the end; exit 1")
    error = fake.failure()
    assert len(fake.bench.printed) < 10_100
    assert fake.bench.printed.endswith(b"[output over 10000 bytes is not shown]\n")
    assert error.message.endswith("the end")
    assert len(error.message) < 9000


def test_a_reader_of_the_output_that_fails_ends_the_build(fake: FakeDocker) -> None:
    fake.behave(build="echo hello; sleep 60")

    def refuse(data: bytes) -> None:
        raise ConnectionError("the record is gone")

    started = time.monotonic()
    with pytest.raises(ConnectionError):
        fake.bench.build(replace(PLAN, sources=()), output=refuse)
    assert time.monotonic() - started < 5
    assert fake.bench.is_clean()


def test_a_context_that_cannot_be_written_has_its_own_code(
    tmp_path: Path, registry: RegistryClient
) -> None:
    (tmp_path / "builds").write_text("in the way")
    fake = FakeDocker(tmp_path, registry)
    with pytest.raises(BuildError) as caught:
        fake.bench.build(replace(PLAN, sources=()))
    assert caught.value.code == "build-write-context-failed"
    assert fake.calls("build --tag") == []


def test_the_registrys_account_is_in_a_private_file_during_the_push_only(
    tmp_path: Path, registry: RegistryClient
) -> None:
    fake = FakeDocker(tmp_path, registry, username="joe", password="hunter2 hunter2")
    fake.behave(
        push=f"cp $DOCKER_CONFIG/config.json {tmp_path}/seen;"
        f" stat -c '%a' $DOCKER_CONFIG $DOCKER_CONFIG/config.json > {tmp_path}/modes;"
        " echo denied for hunter2 hunter2; exit 1"
    )
    built = fake.bench.build(replace(PLAN, sources=()))
    with pytest.raises(BuildError) as caught:
        fake.bench.push(built, "a/b")
    assert "denied for [redacted]" in caught.value.message
    assert b"hunter2" not in fake.bench.printed
    expected = base64.b64encode(b"joe:hunter2 hunter2").decode()
    assert expected in (tmp_path / "seen").read_text()
    assert (tmp_path / "modes").read_text().split() == ["700", "600"]
    assert "hunter2" not in fake.log.read_text()
    assert expected not in fake.log.read_text()
    for call in fake.calls("build"):
        assert str(fake.bench.temp_root) not in call.partition("[config=")[2]
    assert fake.bench.is_clean()


def test_an_engine_that_does_not_tell_the_digest_or_lies_about_it_is_not_believed(
    fake: FakeDocker,
) -> None:
    built = fake.bench.build(replace(PLAN, sources=()))
    digest = f"sha256:{'0' * 64}"
    stated = f"echo v1: digest: {digest} size: 1"
    for push, image, message in [
        ("echo done", "", "did not say which digest"),
        (stated, """echo '["a/b@sha256:another"]'""", "Another image was pushed"),
        (stated, f"""echo '["a/b@{digest}"]'""", "does not have what was pushed"),
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
            output=fake.bench.output,
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


def test_of_several_command_lines_the_one_with_buildkit_is_used(
    tmp_path: Path, registry: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second writes what it was asked to build, like BuildKit.
    writes = (
        'for word; do case "$word" in type=local*) result=${word#*dest=} ;; esac; done\n'
        "mkdir -p $result; touch $result/Dockerfile\n"
    )
    for name, body in {"one": "exit 1\n", "two": writes}.items():
        (tmp_path / name).mkdir()
        write_program(tmp_path / name / "docker", body)
    monkeypatch.setenv("PATH", f"{tmp_path}/one:{tmp_path}/two:{os.environ['PATH']}")
    bench = Bench(tmp_path / "builds", registry, docker_cli="docker")
    assert bench.compiler._command().program == str(tmp_path / "two" / "docker")
    assert bench.compiler._command().buildkit
