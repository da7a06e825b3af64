"""A workspace as a Pod, through the API and the SSH gateway, with every process of the service."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import docker
import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from tests.conftest import OWNER
from tests.stack import cluster
from tests.stack.cluster import Namespace
from tests.stack.pod_settings import workspaces_in
from tests.stack.service import GitServer, Stack
from tests.stack.ssh_access import SshAccess, access_of
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import DOCKER_HOST, agent_image
from workspaces.lifecycle.enforcement import isolation
from workspaces.lifecycle.enforcement.cluster_isolation import ClusterIsolation
from workspaces.lifecycle.enforcement.isolation import IsolationTask
from workspaces.models import NetworkGuardReport, RuntimeInstance
from workspaces.runtimes.configured_cluster import kubernetes_adapter
from workspaces.runtimes.kubernetes.cluster import CLAIMS, PODS
from workspaces.runtimes.kubernetes.pods import PodOptions

# The first test also has the cluster set up, and the service started.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    """A namespace with the installation's Role, in which this process and its children work."""
    with closing(docker.DockerClient(base_url=DOCKER_HOST, timeout=int(LONG_WAIT))) as client:
        probe_image = agent_image(client)
    registry = os.environ["REGISTRY_PUSH_REGISTRY"]
    with cluster.namespace(registry, tmp_path_factory.mktemp("cluster")) as made:
        shown = PodOptions(pull_registry=made.pull_registry)
        with workspaces_in(made, KUBERNETES_PROBE_IMAGE=shown.image(probe_image)):
            yield made


@pytest.fixture(scope="module")
def stack(place: Namespace, stack: Stack) -> Stack:
    """The service, whose workspaces are Pods."""
    return stack


@pytest.fixture(scope="module")
def access(
    stack: Stack, git_server: GitServer, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SshAccess]:
    """One workspace for all tests here."""
    with access_of(stack, git_server, run_queue, tmp_path_factory.mktemp("pods")) as made:
        yield made


def test_a_sandbox_becomes_a_pod_and_what_runs_in_it_is_recorded(
    access: SshAccess, place: Namespace
) -> None:
    started = access.place.started
    runtime = started.body["runtime"]
    assert runtime["adapter"] == "kubernetes"
    assert runtime["reference"] == f"svc-{started.answer['runId']}"
    run = access.place.shell("echo from a Pod; cat kept; echo worried >&2; exit 5")
    assert access.place.ended(run)["exitCode"] == 5
    assert access.place.output(run) == b"from a Pod\none\n"
    assert access.place.output(run, "stderr") == b"worried\n"
    assert access.place.loss(run)["complete"]
    access.place.verify(run)
    assert [pod["metadata"]["name"] for pod in place.admin.list(PODS, {})] == [runtime["reference"]]


def test_its_files_are_read_and_written_through_the_api(access: SshAccess) -> None:
    api = access.place.stack.api
    path = f"/v1/workspaces/{access.workspace_id}/files?ownerUserId={OWNER}&path=written"
    content = bytes(range(256)) * 4096
    kind = "application/octet-stream"
    api.request("PUT", path, raw=content, content_type=kind, expect=201)
    assert api.get(path).content == content


def test_a_person_enters_it_through_the_gateway(access: SshAccess) -> None:
    client = access.client()
    given = os.urandom(256 * 1024)
    with access.run() as run:
        done = client.command("cat; echo done >&2; exit 3", given=given)
    assert (done.code, done.out, done.err) == (3, given, "done\n")
    assert access.place.ended(run.id)["exitCode"] == 3
    assert access.place.output(run.id) == given
    access.place.verify(run.id)


def test_the_operators_check_passes_and_readiness_names_what_is_not_enforced(
    access: SshAccess, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("checkcluster")
    told = capsys.readouterr().out
    assert told.count("ok      ") == 6, told
    assert "FAILED" not in told
    with pytest.raises(CommandError, match="1 of the checks failed"):
        call_command("checkcluster", image="127.0.0.1:1/none@sha256:" + "0" * 64)
    assert "FAILED  Pod, volume and pull by digest" in capsys.readouterr().out


class NoBuilds:
    """A build engine whose machine is kept away from builds."""

    problem = ""

    def look(self) -> None:
        """See nothing new."""


def test_readiness_says_whether_the_cluster_enforces_policies(
    access: SshAccess, place: Namespace
) -> None:
    task = ClusterIsolation(cast("IsolationTask", NoBuilds()))
    engine = kubernetes_adapter().engine_id()

    def look() -> NetworkGuardReport:
        kubernetes_adapter().proof.forget()
        task.look()
        return NetworkGuardReport.objects.get(pk=engine)

    with override_settings(SVC_NETWORK_GUARD="on"):
        report = look()
        assert (report.enforced, report.egress != "") == (True, True)
        assert isolation.check()
        if place.enforcer is not None:
            with place.enforcer.suspended():
                assert not look().enforced
                with pytest.raises(isolation.NotIsolatedError, match="does not enforce them"):
                    isolation.check()
    checks = access.place.stack.api.get("/readyz").body["checks"]
    assert "not enforced" in str(checks)


def test_it_is_stopped_with_its_record_sealed_and_deleted_with_all_it_had(
    access: SshAccess, place: Namespace
) -> None:
    api, started = access.place.stack.api, access.place.started
    path = f"/v1/workspaces/{access.workspace_id}"
    body: Any = {"ownerUserId": OWNER}
    api.post(f"{path}/stop", body)
    boot = started.answer["runId"]
    eventually(
        lambda: RuntimeInstance.objects.get(run_id=boot).status == "stopped", what="it is stopped"
    )
    eventually(lambda: access.place.loss(boot)["complete"], what="the record is whole")
    assert access.place.timeline(boot, "recordSealed")
    access.place.verify(boot)
    api.request("DELETE", f"{path}?ownerUserId={OWNER}")
    eventually(lambda: place.admin.list(PODS, {}) == [], what="the Pod is gone")
    eventually(lambda: place.admin.list(CLAIMS, {}) == [], what="so are all volumes")
