"""Which engine a worker says that it is of, and whose jobs it claims, as the settings have it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from pytest_django.fixtures import Settings

from builds.build_worker_setup import build_worker
from controlplane.work.models import Heartbeat
from runs.recording.run_worker_setup import run_worker
from tests.factories import LEASE, make_job
from tests.support.engines import make_engine
from workspaces.engines.runtime_adapters import placement_engine
from workspaces.models import BuildJob, Engine

pytestmark = pytest.mark.django_db

UID = "the-namespace"


class _OneNamespace(BaseHTTPRequestHandler):
    """What an API server says of a namespace."""

    def do_GET(self) -> None:
        body = json.dumps({"metadata": {"name": "svc", "uid": UID}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def _on_kubernetes(settings: Settings, tmp_path: Path) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _OneNamespace)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    access = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [
            {"name": "it", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "users": [{"name": "it", "user": {}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(access))
    settings.DEFAULT_RUNTIME_ADAPTER = "kubernetes"
    settings.KUBERNETES_KUBECONFIG = str(kubeconfig)
    settings.SVC_DATA_DIR = tmp_path
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


@pytest.mark.usefixtures("_on_kubernetes")
def test_on_kubernetes_workers_are_of_the_cluster_and_not_of_the_engine_that_builds(
    settings: Settings,
) -> None:
    """Readiness asks whether what live workers are of keeps workspaces away."""
    settings.DOCKER_HOST = "unix:///nonexistent/docker.sock"
    for worker in (build_worker(), run_worker()):
        worker._remember_engine()
        worker._beat()
    assert list(Heartbeat.objects.values_list("engine_id", flat=True)) == [UID, UID]
    assert not Engine.objects.exists()


@pytest.mark.usefixtures("_on_kubernetes")
def test_on_kubernetes_nothing_waits_to_be_placed_whatever_engines_are_known() -> None:
    make_engine("second")
    job = make_job()
    claimed = BuildJob.objects.claim(job.pk, worker_id="w", lease=LEASE, engine=placement_engine())
    assert claimed is not None
    assert claimed.engine_name == ""


def test_elsewhere_workers_claim_what_is_placed_on_the_engine_that_they_serve(
    settings: Settings,
) -> None:
    settings.SVC_ENGINE = "second"
    assert placement_engine() == "second"
    make_engine("second")
    for worker in (build_worker(), run_worker()):
        worker._beat()
    assert list(Heartbeat.objects.values_list("engine_name", flat=True)) == ["second", "second"]


@pytest.mark.usefixtures("_on_kubernetes")
def test_no_engine_is_added_on_kubernetes() -> None:
    with pytest.raises(CommandError, match="run on Kubernetes"):
        call_command("engine", "add", "second", "unix:///run/second.sock")
