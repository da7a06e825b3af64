"""The compiler on a test bench: with the operator's docker, or with one that does as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from django.conf import settings

from builds.images.compiler import BuildError, BuiltImage, Compiler, PublishedImage
from builds.images.docker_program import ProgramLog
from builds.planner import ImagePlan, PlannedSource
from controlplane.subprocesses import ProcessResult
from registries.client import RegistryClient
from tests.support.waiting import BUILD_WAIT
from workspaces.runtimes.docker.build.build_steps import StepLimits

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
LIMITS = StepLimits(
    network=lambda egress: nullcontext("bridge"), memory_mb=2048, cpus=2.0, pids=2048
)
"""For steps that reach what any container does."""
NEVER = threading.Event()
"""Nobody cancels."""


class Bench:
    """A compiler, what it printed, and short ways to call it."""

    def __init__(self, temp_root: Path, registry: RegistryClient, **changed: object) -> None:
        options: dict[str, object] = {
            "docker_cli": settings.DOCKER_CLI,
            "docker_host": settings.DOCKER_HOST,
            "push_registry": settings.REGISTRY_PUSH_REGISTRY,
            "limits": LIMITS,
            "username": settings.REGISTRY_USERNAME or None,
            "password": settings.REGISTRY_PASSWORD or None,
            "build_timeout": BUILD_WAIT,
            "push_timeout": BUILD_WAIT,
        }
        self.temp_root = temp_root
        self.registry = registry
        self.compiler = Compiler(
            registry=registry,
            temp_root=temp_root,
            **(options | changed),  # type: ignore[arg-type]
        )
        self.printed = b""
        self.on_output: Callable[[bytes], object] = lambda printed: None
        self.programs: list[tuple[str, list[str]]] = []
        self.endings: list[ProcessResult | None] = []
        self.built: list[BuiltImage] = []

    def started(self, name: str, argv: Sequence[str]) -> Bench:
        """Take notice of a program that the compiler starts."""
        self.programs.append((name, list(argv)))
        return self

    def feed(self, stream: str, chunk: bytes) -> None:
        """Take what the compiler's programs print."""
        self.printed += chunk
        self.on_output(self.printed)

    def not_started(self) -> None:
        """Nobody asks."""

    def ended(self, result: ProcessResult | None) -> None:
        """Take how a program ended."""
        self.endings.append(result)

    def build(
        self,
        image_plan: ImagePlan,
        checkouts: Mapping[str, Path] | None = None,
        *,
        job_id: UUID | None = None,
        log: ProgramLog | None = None,
        cancelled: threading.Event = NEVER,
        agent: bytes = b"#!/bin/sh\necho agent\n",
        ca: bytes = b"",
    ) -> BuiltImage:
        """Build for a job of its own, unless the test names one."""
        built = self.compiler.build(
            image_plan,
            checkouts=checkouts or {},
            agent=agent,
            extra_ca=ca,
            job_id=job_id or uuid4(),
            attempt_count=1,
            labels={"svc.instance": "tests"},
            log=log or self,
            cancelled=cancelled,
        )
        self.built.append(built)
        return built

    def base_image_id(
        self,
        reference: str = BASE_IMAGE,
        *,
        cancelled: threading.Event = NEVER,
        before_pull: Callable[[], None] = lambda: None,
    ) -> str:
        """Ask for a base image in the engine."""
        return self.compiler.base_image_id(
            reference, log=self, cancelled=cancelled, before_pull=before_pull
        )

    def discard_all(self) -> None:
        """Take back the names of everything that was built."""
        for built in self.built:
            self.compiler.discard(built)

    def push(
        self, built: BuiltImage, repository: str, cancelled: threading.Event = NEVER
    ) -> PublishedImage:
        """Push with the tag ``v1``."""
        return self.compiler.push(
            built, repository=repository, tag="v1", log=self, cancelled=cancelled
        )

    def is_clean(self) -> bool:
        """Whether no temporary folder is left."""
        return not self.temp_root.exists() or list(self.temp_root.iterdir()) == []


def running(script: str) -> ImagePlan:
    """A plan of the base image and one step, which runs a script of bash."""
    step = json.dumps(["/bin/bash", "-c", script])
    return replace(PLAN, sources=(), dockerfile=f"FROM {BASE_IMAGE}\nRUN {step}\n")


class FakeDocker:
    """A command line that records how it is called and does what the test says.

    The containers of its steps are real ones, though it starts none.
    """

    def __init__(self, folder: Path, registry: RegistryClient, **changed: object) -> None:
        self.folder = folder
        self.log = folder / "calls"
        self.log.touch()
        self.program = folder / "docker"
        self.base = Bench(folder, registry).base_image_id()
        self.behave()
        self.bench = Bench(folder / "builds", registry, docker_cli=str(self.program), **changed)

    def behave(self, step: str = "", push: str = "", image: str = "", pull: str = "") -> None:
        """Do this, in shell, when asked for a step, to push, for an image or to pull one."""
        write_program(
            self.program,
            f'echo "$@ [config=$DOCKER_CONFIG]" >> {self.log}\n'
            'case "$1" in\n'
            f"start) {step}\n;;\n"
            "commit) echo sha256:abc ;;\n"
            f"push) {push}\n;;\n"
            f"pull) {pull}\n;;\n"
            f"image) {image or f'echo {self.base}'}\n;;\n"
            "esac\nexit 0\n",
        )

    def calls(self, command: str) -> list[str]:
        """Return the calls whose arguments begin like this, oldest first."""
        return [line for line in self.log.read_text().splitlines() if line.startswith(command)]

    def build(self, **options: object) -> BuiltImage:
        """Build an image with a step that no earlier build has carried out."""
        return self.bench.build(running(f": {uuid4()}"), **options)  # type: ignore[arg-type]

    def failure(self, **options: object) -> BuildError:
        """Return why a build fails, of which nothing is left."""
        job_id = uuid4()
        with pytest.raises(BuildError) as caught:
            self.build(job_id=job_id, **options)
        assert self.bench.is_clean()
        steps = self.bench.compiler.step_containers()
        assert job_id not in {step.owner[0] for step in steps}
        return caught.value


def write_program(path: Path, body: str) -> str:
    """Write a shell script and return how to call it."""
    path.write_text(f"#!/bin/sh\n{body}")
    path.chmod(0o755)
    return str(path)
