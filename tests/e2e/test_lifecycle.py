"""Stopping, starting again and deleting workspaces, with real containers and records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import docker
import pytest
import requests
from django.conf import settings as django_settings
from django.db.models.functions import Now
from django.test import override_settings

from registries.services import configured_registry
from tests.conftest import OWNER
from tests.registries.account import BASIC
from tests.stack.pausing import pause_beside
from tests.stack.processes import end_until
from tests.stack.run_worker_process import RunWorkerProcess
from tests.stack.runs import GATEWAY_TOKEN, Place
from tests.stack.sandboxes import hold
from tests.stack.service import Stack, Started, install
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from workspaces.models import Attempt, Workspace, WorkspaceEvent

pytestmark = pytest.mark.docker


@dataclass
class Lives:
    """The service, with what its users do to their workspaces."""

    stack: Stack
    runs: RunWorkerProcess

    def path(self, started: Started) -> str:
        return f"/v1/workspaces/{started.answer['workspaceId']}"

    def read(self, started: Started) -> Any:
        return self.stack.api.get(f"{self.path(started)}?ownerUserId={OWNER}").body

    def stop(self, started: Started) -> Any:
        body = {"ownerUserId": OWNER}
        return self.stack.api.post(f"{self.path(started)}/stop", body).body

    def delete(self, started: Started) -> Any:
        path = f"{self.path(started)}?ownerUserId={OWNER}"
        return self.stack.api.request("DELETE", path, expect=202).body

    def begin(self, started: Started, **members: Any) -> Started:
        """Start a workspace again; return its next attempt, with nothing waited for."""
        body = {"ownerUserId": OWNER, **members}
        return Started(self.stack.api.post(f"{self.path(started)}/start", body).body, [])

    def again(self, started: Started, **members: Any) -> Started:
        """Start a workspace again and wait until it is ready."""
        begun = self.begin(started, **members)
        self.until(begun, "ready", timeout=LONG_WAIT)
        return begun

    def until(self, started: Started, status: str, timeout: float = LONG_WAIT) -> Any:
        """Wait until the workspace is what it is to be; return it.

        At the moment it is stopped or deleted its container is gone already.
        """
        seen: list[Any] = []

        def there() -> bool:
            seen.append(self.read(started))
            return bool(seen[-1]["status"] == status)

        try:
            eventually(there, what=f"the workspace is {status}", timeout=timeout)
        except AssertionError as error:
            told = self.stack.worker.told[-4000:]
            raise AssertionError(f"{error}\n{seen[-1]}\n{told}") from None
        if status in ("stopped", "deleted"):
            assert self.left(started) == []
        return seen[-1]

    def left(self, started: Started) -> list[str]:
        """Return the names of the workspace's containers, with those that ended."""
        mine = f"svc.workspace={started.answer['workspaceId']}"
        found = self.stack.engine.containers.list(
            all=True, filters={"label": mine}, ignore_removed=True
        )
        return [str(container.name) for container in found]

    def volumes(self, started: Started) -> list[str]:
        mine: dict[str, Any] = {"label": f"svc.workspace={started.answer['workspaceId']}"}
        return sorted(str(volume.name) for volume in self.stack.engine.volumes.list(filters=mine))

    def events(self, started: Started) -> list[str]:
        return [event["type"] for event in self.stack.events(started)]

    def place(self, started: Started) -> Place:
        return Place(self.stack, started, self.runs)


@pytest.fixture(scope="module")
def lives(
    stack: Stack, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lives]:
    """The service with a worker for runs."""
    folder = tmp_path_factory.mktemp("lives")
    with override_settings(WORKSPACE_RUN_QUEUE=run_queue):
        worker = RunWorkerProcess(folder / "run-worker.log", RUN_STOP_GRACE_MS="10000")
        try:
            yield Lives(stack, worker)
        finally:
            worker.stop()
            mine = {"label": f"svc.instance={django_settings.SVC_INSTANCE_ID}"}
            for volume in stack.engine.volumes.list(filters=mine):
                volume.remove(force=True)


def test_a_workspace_is_stopped_resumed_and_deleted(lives: Lives) -> None:
    first = lives.stack.ready({})
    image = lives.stack.container(first).attrs["Config"]["Image"]

    answer = lives.stop(first)
    assert answer["status"] != "ready"
    shown = lives.until(first, "stopped")
    assert shown["reason"]["code"] == "stopped"
    assert shown["reason"]["message"] == "The owner asked to stop the workspace."
    assert "runtime" in shown

    second = lives.again(first)
    assert second.answer["sandboxId"] == first.answer["sandboxId"]
    assert second.answer["runId"] != first.answer["runId"]
    assert lives.stack.container(second).attrs["Config"]["Image"] == image
    assert second.job.reused
    attempt = Attempt.objects.get(pk=second.answer["attemptId"])
    assert attempt.relation == "resume"

    lives.delete(second)
    shown = lives.until(second, "deleted")
    assert shown["reason"]["code"] == "deleted"
    assert lives.stack.engine.networks.list(filters={"name": f"svc-{second.answer['runId']}"}) == []
    told = lives.events(second)
    for step in (
        "workspace.stop-requested",
        "runtime.stopping",
        "runtime.stopped",
        "workspace.stopped",
        "workspace.delete-requested",
        "workspace.deleted",
    ):
        assert step in told
    assert told.index("workspace.stop-requested") < told.index("runtime.stopping")
    assert told.index("runtime.stopped") < told.index("workspace.stopped")
    assert told[-1] == "workspace.deleted"
    listed = lives.stack.api.get(f"/v1/workspaces?ownerUserId={OWNER}").body["items"]
    assert second.answer["workspaceId"] not in [one["workspaceId"] for one in listed]


# ---------------------------------------------------------------- records


def test_the_record_of_a_command_that_runs_is_complete_after_a_stop(lives: Lives) -> None:
    started = lives.stack.ready({})
    place = lives.place(started)
    run = place.shell("echo it began; trap 'echo told to end; exit 0' TERM; sleep 300 & wait")
    place.wait_output(run, b"it began\n")
    queued = place.shell("echo never")

    lives.stop(started)
    lives.until(started, "stopped")

    shown = place.ended(run)
    assert shown["status"] == "cancelled"
    assert place.output(run) == b"it began\ntold to end\n"
    assert place.loss(run)["complete"]
    place.verify(run)
    assert place.ended(queued)["status"] in {"cancelled", "completed"}
    boot = started.answer["runId"]
    assert place.ended(boot)["status"] == "completed"
    assert place.loss(boot)["complete"]
    place.verify(boot)


def test_the_record_of_a_session_is_complete_after_a_delete(lives: Lives, settings: Any) -> None:
    settings.WORKSPACE_SSH_GATEWAY_TOKEN = GATEWAY_TOKEN
    started = lives.stack.ready({})
    place = lives.place(started)
    session = place.session("bash", "-c", "echo sat down; sleep 300")
    session.until_said(b"sat down\n")

    lives.delete(started)
    lives.until(started, "deleted")

    session.close()
    shown = place.ended(session.run)
    assert shown["status"] == "cancelled"
    assert place.output(session.run) == b"sat down\n"
    assert place.loss(session.run)["complete"]
    place.verify(session.run)


def test_what_ignores_the_request_to_end_is_killed_and_its_record_says_so(lives: Lives) -> None:
    started = lives.stack.ready({})
    place = lives.place(started)
    run = place.shell("trap '' TERM; echo deaf; while :; do sleep 0.2; done")
    place.wait_output(run, b"deaf\n")
    lives.stop(started)
    lives.until(started, "stopped")
    shown = place.ended(run)
    assert shown["status"] == "cancelled"
    assert place.loss(run)["complete"]


# ---------------------------------------------------------------- what is kept


def persistent(**spec: Any) -> dict[str, Any]:
    return {"runtime": {"persistence": "persistent"}, **spec}


def test_home_and_working_tree_of_a_persistent_workspace_are_kept_until_it_is_deleted(
    lives: Lives,
) -> None:
    first = lives.stack.ready(persistent())
    seeded = lives.stack.inside(first, "stat -c %U ~ /workspace /workspace/repo; ls -A ~")
    assert seeded.splitlines()[:3] == ["workspace"] * 3
    assert ".bashrc" in seeded  # the image's own content
    lives.stack.inside(first, "echo mine > ~/note; echo ours > /workspace/repo/note")
    lives.stack.inside(first, "sudo touch /etc/not-kept")
    place = lives.place(first)
    boot = first.answer["runId"]

    lives.stop(first)
    lives.until(first, "stopped")
    assert place.ended(boot)["status"] == "completed"
    assert place.loss(boot)["complete"]
    kept = lives.volumes(first)
    assert len(kept) == 2
    for name in kept:
        labels = lives.stack.engine.volumes.get(name).attrs["Labels"]
        assert labels["svc.instance"] == django_settings.SVC_INSTANCE_ID

    second = lives.again(first)
    assert lives.stack.inside(second, "cat ~/note /workspace/repo/note") == "mine\nours"
    assert lives.stack.inside(second, "ls /etc/not-kept 2>&1 || true").startswith("ls: cannot")
    lives.stop(second)
    lives.until(second, "stopped")
    third = lives.again(second, relation="rebuild")
    assert lives.stack.inside(third, "cat ~/note /workspace/repo/note") == "mine\nours"

    lives.delete(third)
    lives.until(third, "deleted")
    assert lives.volumes(first) == []


def test_nothing_is_kept_of_an_ephemeral_workspace(lives: Lives) -> None:
    first = lives.stack.ready({})
    lives.stack.inside(first, "echo mine > ~/note")
    assert lives.volumes(first) == []
    lives.stop(first)
    lives.until(first, "stopped")
    second = lives.again(first)
    assert lives.stack.inside(second, "ls ~/note 2>&1 || true").startswith("ls: cannot")


def test_a_first_start_that_failed_leaves_nothing_behind_in_what_is_kept(lives: Lives) -> None:
    step = {"run": "test -e ~/second && exit 0; touch ~/second ~/rubbish; exit 1"}
    failed = lives.stack.failed(persistent(lifecycle={"setup": [step]}))
    eventually(lambda: lives.left(failed) == [], what="its container is gone")
    begun = lives.begin(failed)
    lives.until(begun, "failed", timeout=LONG_WAIT)
    lives.delete(begun)
    lives.until(begun, "deleted")
    assert lives.volumes(failed) == []


# ---------------------------------------------------------------- on the way


def test_a_stop_cancels_a_build_and_a_start_begins_it_anew(lives: Lives) -> None:
    script, argument = hold()
    blueprint = {"harness": install(f"echo slow; {script}")}
    started = lives.stack.ask(blueprint)
    path = f"/v1/sandboxes/{started.answer['sandboxId']}"
    eventually(
        lambda: lives.stack.api.get(path).body["status"] == "running", what="the build begins"
    )
    answer = lives.stop(started)
    assert (answer["status"], answer["reason"]["code"]) == ("cancelled", "stopping")
    eventually(lambda: lives.read(started)["reason"]["code"] != "stopping", what="it is done")
    assert lives.left(started) == []
    assert lives.place(started).ended(started.answer["runId"])["status"] == "cancelled"

    again = lives.begin(started)
    end_until(argument, lambda: lives.read(again)["status"] == "ready", "it is ready")
    assert Attempt.objects.get(pk=again.answer["attemptId"]).relation == "retry"


def test_a_delete_while_the_workspace_starts_leaves_no_container(lives: Lives) -> None:
    started = lives.stack.ask(persistent(lifecycle={"setup": [{"run": "sleep 300"}]}))
    eventually(lambda: lives.left(started), what="there is a container", timeout=LONG_WAIT)
    lives.delete(started)
    lives.until(started, "deleted")
    assert lives.volumes(started) == []
    assert lives.place(started).ended(started.answer["runId"])["status"] == "cancelled"


def test_an_image_that_the_registry_lost_is_built_again(lives: Lives) -> None:
    started = lives.stack.ready({"harness": install("echo to be lost")})
    digest = lives.stack.digest(started)
    assert digest is not None
    lives.stop(started)
    lives.until(started, "stopped")
    configured_registry().delete_manifest(started.answer["repository"], digest)
    again = lives.again(started)
    assert Attempt.objects.get(pk=again.answer["attemptId"]).relation == "resume"
    assert not again.job.reused


def test_an_image_of_which_the_registry_lost_a_layer_is_built_again(lives: Lives) -> None:
    started = lives.stack.ready({"harness": install("echo to be lost in part")})
    repository, digest = started.answer["repository"], lives.stack.digest(started)
    assert digest is not None
    lives.stop(started)
    lives.until(started, "stopped")
    manifest = configured_registry().get_manifest(repository, digest)
    assert manifest is not None
    layer = manifest.parsed()["layers"][-1]["digest"]
    blob = f"{django_settings.REGISTRY_BASE_URL}/v2/{repository}/blobs/{layer}"
    assert requests.delete(blob, auth=BASIC, timeout=LONG_WAIT).status_code == 202
    assert requests.head(blob, auth=BASIC, timeout=LONG_WAIT).status_code == 404

    again = lives.again(started)
    assert not again.job.reused
    assert requests.head(blob, auth=BASIC, timeout=LONG_WAIT).status_code == 200


def test_what_ended_by_itself_is_resumed_too(lives: Lives) -> None:
    foreground = {"kind": "command", "run": "sleep 1"}
    started = lives.stack.ready({"lifecycle": {"startup": {"foreground": foreground}}})
    eventually(lambda: lives.read(started)["status"] == "stopped", what="it ends by itself")
    assert lives.stop(started)["status"] == "stopped"
    lives.again(started)


def test_a_paused_workspace_is_stopped(lives: Lives) -> None:
    started = lives.stack.ready({})
    pause_beside(lives.stack.container(started), "tail")
    lives.stop(started)
    lives.until(started, "stopped")


def test_a_workspace_whose_time_is_over_is_stopped(lives: Lives) -> None:
    started = lives.stack.ready({}, ttlSeconds=3600)
    workspace = Workspace.objects.filter(pk=started.answer["workspaceId"])
    assert lives.read(started)["expiresAt"]
    workspace.update(expires_at=Now())
    shown = lives.until(started, "stopped")
    assert shown["reason"]["code"] == "expired"
    event = WorkspaceEvent.objects.get(
        workspace_id=started.answer["workspaceId"], type="workspace.stop-requested"
    )
    assert event.data["cause"] == "expired"


def test_a_container_that_was_removed_behind_our_back_is_no_obstacle(lives: Lives) -> None:
    started = lives.stack.ready({})
    with suppress(docker.errors.APIError):
        lives.stack.container(started).remove(force=True, v=True)
    lives.delete(started)
    lives.until(started, "deleted")
