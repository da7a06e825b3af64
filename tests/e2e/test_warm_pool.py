"""A workspace out of the warm pool is a workspace like any other: tests of those, in one of these.

The tests that are imported ask for a place, a client or an access, which here is a warm workspace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests
from django.test import override_settings

from runs.exec.waiting import stop_listening
from tests.conftest import OWNER
from tests.e2e import test_preview
from tests.e2e.conftest import stack_of
from tests.e2e.preview_server import SERVER
from tests.e2e.test_exec import (
    test_a_command_that_takes_too_long_is_ended as test_a_command_that_takes_too_long_is_ended,
)
from tests.e2e.test_ssh_commands import (
    test_a_command_reads_its_input_to_the_end as test_a_command_reads_its_input_to_the_end,
)
from tests.stack.preview_process import PreviewAccess, PreviewProcess
from tests.stack.runs import GATEWAY_TOKEN, Place
from tests.stack.service import GitServer, Stack, Started
from tests.stack.ssh import Client
from tests.stack.ssh_access import SshAccess, access_of
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from workspaces.models import WarmMember

pytestmark = pytest.mark.docker


@dataclass
class WarmStack(Stack):
    """Starts each plan twice: the first start makes it known, the second one finds it waiting."""

    def ready(self, spec: dict[str, Any], **members: Any) -> Started:
        """Ask for a sandbox that takes a container out of the pool."""
        first = super().ready(spec, **members)
        eventually(
            lambda: waiting_for(first), what=f"a container waits\n{self.worker.told[-4000:]}"
        )
        again = super().ready(spec, **members)
        member = WarmMember.objects.get(run_id=again.answer["runId"])
        container = self.container(again)
        assert container.labels["svc.run"] == str(member.pk)
        return again


def waiting_for(started: Started) -> bool:
    """Whether a container waits for the next start of the same plan."""
    digest = started.job.published_digest
    waiting = WarmMember.objects.filter(status=WarmMember.Status.READY)
    return waiting.filter(plan__shape__image__endswith=digest).exists()


@pytest.fixture(scope="module")
def stack(
    transactional_db: None,
    instance_id: str,
    build_queue: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    """The service with a warm pool."""
    told = {"WORKSPACE_WARM_POOL_SIZE": "2", "WORKER_RECONCILE_INTERVAL_MS": "1000"}
    with stack_of(instance_id, build_queue, tmp_path_factory.mktemp("worker"), **told) as whole:
        yield whole


@pytest.fixture(scope="module")
def access(
    stack: Stack, git_server: GitServer, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SshAccess]:
    """One warm workspace for all tests here."""
    warm = WarmStack(stack.worker)
    with (
        contextlib.closing(warm.engine),
        access_of(warm, git_server, run_queue, tmp_path_factory.mktemp("warm")) as made,
    ):
        yield made
    stop_listening()


@pytest.fixture(scope="module")
def client(access: SshAccess) -> Client:
    return access.client()


@pytest.fixture(scope="module")
def place(access: SshAccess) -> Place:
    return access.place


def test_a_port_is_a_web_page(access: SshAccess, tmp_path_factory: pytest.TempPathFactory) -> None:
    token = {"WORKSPACE_SSH_GATEWAY_TOKEN": GATEWAY_TOKEN, "SVC_PREVIEW_DOMAIN": "localhost"}
    log = tmp_path_factory.mktemp("preview") / "preview.log"
    gateway = PreviewProcess(log, api=access.api.url, **token)
    authority = f"localhost:{gateway.port}"
    try:
        with override_settings(SVC_PREVIEW_DOMAIN="localhost", SVC_PREVIEW_AUTHORITY=authority):
            preview = PreviewAccess(access.place, gateway, access.api.url)
            preview.serve(SERVER, test_preview.PORT)
            test_preview.test_requests_are_passed_on_and_answered(preview)
    finally:
        gateway.stop()


def test_files_are_written_and_read(access: SshAccess) -> None:
    workspace = access.place.started.answer["workspaceId"]
    place = f"{access.api.url}/v1/workspaces/{workspace}/files"
    query = {"ownerUserId": OWNER, "path": "a file"}
    content = bytes(range(256)) * 1024
    written = requests.put(place, params=query, data=content, timeout=LONG_WAIT)
    assert written.status_code == 201, written.text
    assert requests.get(place, params=query, timeout=LONG_WAIT).content == content


def test_the_boot_is_recorded_from_its_first_event_to_ready(place: Place) -> None:
    run = place.started.answer["runId"]
    *_, started = place.timeline(run, "recordStarted")  # the build has one, too
    assert started["ref"]["mode"] == "boot"
    states = [each["ref"]["state"] for each in place.timeline(run, "runtimeStateChanged")]
    assert states[0] == "starting"
    assert states[-1] == "ready"


def test_nothing_is_left_of_one_that_was_stopped(stack: Stack) -> None:
    started = WarmStack(stack.worker, engine=stack.engine).ready({})
    member = WarmMember.objects.get(run_id=started.answer["runId"])
    path = f"/v1/workspaces/{started.answer['workspaceId']}"

    def status(of: str) -> bool:
        return bool(stack.api.get(f"{path}?ownerUserId={OWNER}").body["status"] == of)

    stack.api.post(f"{path}/stop", {"ownerUserId": OWNER})
    eventually(lambda: status("stopped"), what="stopped")
    eventually(
        lambda: not stack.engine.networks.list(filters={"label": f"svc.run={member.pk}"}),
        what="its network is gone",
    )
    assert not stack.engine.containers.list(all=True, filters={"name": started.answer["runId"]})
    eventually(lambda: not WarmMember.objects.filter(pk=member.pk).exists(), what="its row is gone")
