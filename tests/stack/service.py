"""The whole service as its clients and its operator see it, and what they ask of it."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import docker
from django.conf import settings as django_settings

from registries.services import configured_registry
from tests.conftest import OWNER, Api
from tests.scm.conftest import git
from tests.stack.worker_process import WorkerProcess, eventually, settled
from tests.support.removal import remove_container
from tests.support.waiting import LONG_WAIT
from workspaces.models import BuildJob

HARNESS = {"harness": {"id": "shell"}}


def install(script: str) -> dict[str, Any]:
    """Return a harness whose installation is part of the image, so of what is built."""
    return {"id": "custom", "install": script, "command": ["sleep", "infinity"]}


@dataclass
class Started:
    """A sandbox that was asked for, and every reading of it on the way to its end."""

    answer: dict[str, Any]
    readings: list[Any]

    @property
    def body(self) -> dict[str, Any]:
        """What a read of the sandbox shows in the end."""
        return cast("dict[str, Any]", self.readings[-1])

    @property
    def job(self) -> BuildJob:
        """The job's row as it is now."""
        return BuildJob.objects.select_related("attempt__runtime").get(pk=self.answer["jobId"])

    @property
    def statuses(self) -> list[str]:
        """The statuses in the order in which they were read."""
        seen = [reading["status"] for reading in self.readings]
        return [one for at, one in enumerate(seen) if at == 0 or seen[at - 1] != one]

    @property
    def reasons(self) -> list[str | None]:
        """The code of the reason in every reading; None where there was none."""
        return [reading.get("reason", {}).get("code") for reading in self.readings]


@dataclass
class Stack:
    """The whole service, as its clients and its operator see it."""

    worker: WorkerProcess
    api: Api = field(default_factory=Api)
    engine: docker.DockerClient = field(
        default_factory=lambda: docker.DockerClient(
            django_settings.DOCKER_HOST, timeout=int(LONG_WAIT)
        )
    )

    def start(self, spec: dict[str, Any], **members: Any) -> Started:
        """Ask for a sandbox and wait until it is ready or has ended."""
        started = self.ask(spec, **members)
        path = f"/v1/sandboxes/{started.answer['sandboxId']}"
        try:
            started.readings = settled(lambda: self.api.get(path).body, timeout=LONG_WAIT)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.worker.told[-4000:]}") from None
        return started

    def ready(self, spec: dict[str, Any], **members: Any) -> Started:
        """Ask for a sandbox that has to become ready."""
        started = self.start(spec, **members)
        assert started.body["status"] == "ready", started.body["error"]
        return started

    def failed(self, spec: dict[str, Any], **members: Any) -> Started:
        """Ask for a sandbox that has to fail, and wait for the last of the failure's writes."""
        started = self.start(spec, **members)
        assert started.body["status"] == "failed", started.body["status"]
        eventually(lambda: started.job.attempt.status == "failed", what="the attempt's failure")
        return started

    def ask(self, spec: dict[str, Any], **members: Any) -> Started:
        """Ask for a sandbox and wait for nothing."""
        body = {
            "ownerUserId": OWNER,
            "registryId": "default",
            "repository": f"tests/e2e-{uuid.uuid4().hex[:12]}",
            "tag": "latest",
            "spec": {**HARNESS, **spec},
            **members,
        }
        return Started(self.api.post("/v1/sandboxes", body).body, [])

    def events(self, started: Started) -> list[Any]:
        """Return the events of the sandbox's workspace, oldest first."""
        path = f"/v1/workspaces/{started.answer['workspaceId']}/events?ownerUserId={OWNER}"
        items: list[Any] = self.api.get(path).body["items"]
        return items[::-1]

    def container(self, started: Started) -> Any:
        """Return the sandbox's container."""
        return self.engine.containers.get(f"svc-{started.answer['runId']}")

    def inside(self, started: Started, script: str, user: str = "workspace") -> str:
        """Run a script in the workspace, where it has to succeed; return what it printed."""
        code, output = self.container(started).exec_run(
            ["bash", "-c", script],
            user=user,
            workdir="/",
            environment={"HOME": "/root" if user == "root" else "/home/workspace"},
        )
        text = cast("bytes", output).decode()
        assert code == 0, f"exit code {code}: {text}"
        return text.strip()

    def digest(self, started: Started) -> str | None:
        """Return what the registry holds under the sandbox's repository and tag."""
        answer = started.answer
        return configured_registry().head_manifest(answer["repository"], answer["tag"])


def remove_all(engine: docker.DockerClient, instance_id: str) -> None:
    """Remove what the tests' installation has in the engine."""
    mine: dict[str, str | list[str] | bool] = {"label": f"svc.instance={instance_id}"}
    for container in engine.containers.list(all=True, filters=mine, ignore_removed=True):
        remove_container(container)
    for network in engine.networks.list(filters=mine):
        network.remove()
    for image in engine.images.list(filters=mine):
        with contextlib.suppress(docker.errors.APIError):
            engine.images.remove(str(image.id), force=True)


@dataclass(frozen=True)
class GitServer:
    """Real repositories behind a real smart-HTTP server; commits by the name of their tag."""

    url: str
    folder: Path
    commits: dict[str, str]

    def publish(self, name: str, files: dict[str, str], *, executable: tuple[str, ...] = ()) -> str:
        """Make a repository of one commit on the branch ``trunk`` and return its URL."""
        work = self.folder / f"{name}.work"
        work.mkdir()
        git(work, "init", "-q", "-b", "trunk")
        for path, content in files.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(content)
            (work / path).chmod(0o755 if path in executable else 0o644)
        self.commit(name, "first")
        git(work, "clone", "-q", "--mirror", str(work), str(self.folder / f"{name}.git"))
        return f"{self.url}/git/{name}.git"

    def commit(self, name: str, tag: str) -> str:
        """Commit what changed in the working copy of a repository, and tag it."""
        work = self.folder / f"{name}.work"
        git(work, "add", "-f", ".")
        git(work, "commit", "-q", "-m", tag)
        git(work, "tag", tag)
        self.commits[f"{name}:{tag}"] = git(work, "rev-parse", "HEAD")
        bare = self.folder / f"{name}.git"
        if bare.exists():
            git(bare, "fetch", "-q", "--prune", "origin")
        return self.commits[f"{name}:{tag}"]
