"""A whole control plane of the tests' own, whose every part may be killed.

PostgreSQL and RabbitMQ are private, so that they can be restarted; the Docker Engine and the
registry are those of the machine, told apart by an instance id and by repositories of our own. What
happened is asked over HTTP, of the database, the broker, the engine and the registry: never of the
product's own code.
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

import psycopg
import requests

from deploy.services.postgres import PrivatePostgres
from deploy.services.rabbitmq import PrivateRabbitMQ
from tests.stack.broker import DEAD_LETTERS, QUEUE, RUN_QUEUE, Broker
from tests.stack.database import Database
from tests.stack.engine import Engine
from tests.stack.free_ports import free_port
from tests.stack.gates import build_gates
from tests.stack.processes import Child, Worker, wait_for
from tests.stack.registry import Registry
from tests.stack.sandboxes import Started, blueprint, started
from tests.support.waiting import LONG_WAIT

OWNER = "usr_chaos"

QUICK = {
    "WORKER_HEARTBEAT_INTERVAL_MS": "500",
    "WORKER_HEARTBEAT_STALE_MS": "2500",
    "WORKER_SWEEP_INTERVAL_MS": "300",
    "WORKER_RECONCILE_INTERVAL_MS": "1000",
    "WORKER_RECONCILE_GRACE_MS": "1000",
    "WORKSPACE_BUILD_JOB_QUEUED_OVERDUE_MS": "1500",
    "WORKSPACE_STOP_GRACE_MS": "1000",
    "WORKSPACE_KEEP_ENDED_MS": "1000",
    "RUN_QUEUED_OVERDUE_MS": "1500",
    "RUN_STOP_GRACE_MS": "1000",
    "DATABASE_IDLE_TRANSACTION_TIMEOUT_MS": "4000",
    "RABBITMQ_CONNECT_TIMEOUT_MS": "5000",
    "PACKAGE_SYNC_FAMILIES": "",
}
"""Times that keep the suite quick; one test uses the defaults, and holds them to their promise.

And nobody reads a distribution's index half a minute after a worker's start: that takes long, and
meanwhile there is a container of ours that is no workspace.
"""

UNSUSPICIOUS = {"WORKER_HEARTBEAT_STALE_MS": "60000"}
"""For workers of which none dies: one that a busy machine keeps from beating is not replaced."""


class PrivateStack:
    """The services with a view on each, the product's processes, and the API as clients see it."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="svc-chaos-"))
        self.root.chmod(0o755)
        self.postgres = PrivatePostgres(self.root / "postgres", None, secrets.token_hex(8))
        self.rabbitmq = PrivateRabbitMQ(self.root / "rabbitmq", None, secrets.token_hex(8))
        self.database = Database(self.postgres)
        self.broker = Broker(self.rabbitmq)
        self.instance_id = f"chaos-{uuid.uuid4().hex[:12]}"
        self.registry = Registry(
            os.environ.get("REGISTRY_BASE_URL", "http://127.0.0.1:5000"),
            os.environ.get("REGISTRY_PUSH_REGISTRY", "127.0.0.1:5000"),
        )
        socket_path = os.environ.get("CONTAINER_SOCKET_PATH", "/var/run/docker.sock")
        docker_host = os.environ.get("DOCKER_HOST", f"unix://{socket_path}")
        self.engine = Engine(docker_host, self.instance_id, self.registry.push_name)
        self.api_port = free_port()  # also while the API is killed and not yet started again
        self.processes: list[Child] = []
        self._api: Child | None = None
        self._count = 0
        self._seed_workspace = str(uuid.UUID(int=0))

    # ------------------------------------------------------------ life

    def build(self) -> None:
        """Start everything once and let a first sandbox build the image that others reuse."""
        self.postgres.start()
        self.rabbitmq.start()
        self.manage("migrate")
        with psycopg.connect(self.postgres.url) as connection:
            build_gates(connection)
        self.begin()
        worker = self.start_worker()
        seed = self.post(blueprint())
        self.wait_status(seed, "ready")
        worker.kill()
        # Nothing looks for the container of the first sandbox any more, which goes with the test's.
        self.database.execute(
            "update workspaces_runtimeinstance set status = 'stopped', finished_at = now()"
            " where run_id = %s",
            seed.run_id,
        )
        self._seed_workspace = seed.workspace_id
        self.end()

    def begin(self) -> None:
        """Make sure, before a test, that the services and the API are up."""
        self.postgres.start()
        self.rabbitmq.start()
        self.start_api()

    def end(self) -> None:
        """Remove, after a test, its processes, containers, rows and messages."""
        for child in self.processes:
            if child is not self._api:
                child.kill_group()
        self.processes = [child for child in self.processes if child is self._api]
        self.engine.remove_containers()
        self.engine.remove_volumes()
        self.postgres.start()
        self.rabbitmq.start()
        self.database.forget(except_workspace=self._seed_workspace)
        for name in (QUEUE, DEAD_LETTERS, RUN_QUEUE):
            self.broker.purge(name)
        shutil.rmtree(self.data, ignore_errors=True)

    def close(self) -> None:
        """Leave nothing on the machine."""
        for child in self.processes:
            child.kill_group()
        self.engine.remove_containers()
        self.engine.remove_volumes()
        self.engine.remove_images()
        self.engine.close()
        self.rabbitmq.stop()
        self.postgres.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    # ------------------------------------------------------------ processes

    @property
    def data(self) -> Path:
        """The data directory of the processes."""
        return self.root / "data"

    def folders(self) -> list[str]:
        """Return what is left in the folder of builds."""
        return [entry.name for entry in (self.data / "builds").glob("*")]

    def environment(self, **overrides: str) -> dict[str, str]:
        """Return the environment of a process."""
        inherited = {name: value for name, value in os.environ.items() if name not in _SECRET_FILES}
        return (
            inherited
            | QUICK
            | {
                **self.postgres.settings,
                **self.rabbitmq.settings,
                "REGISTRY_BASE_URL": self.registry.url,
                "REGISTRY_PUSH_REGISTRY": self.registry.push_name,
                "SVC_INSTANCE_ID": self.instance_id,
                "SVC_NETWORK_GUARD": "external",  # no container for it beside those of each test
                "SVC_WORKSPACE_MAX_DISK_BYTES": "0",  # nor one that counts
                "WORKSPACE_BUILD_QUEUE": QUEUE,
                "WORKSPACE_RUN_QUEUE": RUN_QUEUE,
                "SVC_DATA_DIR": str(self.data),
                "SVC_API_WORKERS": "1",
                "SVC_LOG_FORMAT": "json",
                "WEB_AUTH_SECRET": "only-for-the-tests-of-this-machine-0123",
                "SVC_CREDENTIALS_KEY": base64.b64encode(bytes(range(32))).decode(),
                "PYTHONUNBUFFERED": "1",
                "PYTHONFAULTHANDLER": "1",
            }
            | overrides
        )

    def _log(self, name: str) -> Path:
        self._count += 1
        return self.root / f"{name}-{self._count}.log"

    def manage(self, *arguments: str, **overrides: str) -> None:
        """Run a management command to its end."""
        environment = self.environment(**overrides)
        child = Child(["manage.py", *arguments], environment, self._log(arguments[0]))
        code = child.wait(LONG_WAIT)
        assert code == 0, child.log.read_text()

    def start_api(self, **overrides: str) -> None:
        """Start the API unless it runs, and wait until it answers."""
        if self._api is None or self._api.exit_code is not None:
            self._api = Child(
                [
                    *("-m", "gunicorn", "controlplane.wsgi", "-c", "deploy/gunicorn.conf.py"),
                    *("--bind", f"127.0.0.1:{self.api_port}"),
                ],
                self.environment(**overrides),
                self._log("api"),
            )
            self.processes.append(self._api)
        wait_for(self._api_answers, "the API answers")

    def kill_api(self) -> None:
        """SIGKILL every process of the API."""
        assert self._api is not None
        self._api.kill_group()
        self.processes.remove(self._api)
        self._api = None

    def _api_answers(self) -> bool:
        try:
            return requests.get(f"{self.api}/healthz", timeout=LONG_WAIT).ok
        except requests.RequestException:
            return False

    def launch_worker(
        self, *arguments: str, command: str = "buildworker", **overrides: str
    ) -> Worker:
        """Start a build worker, or a run worker, without waiting for it."""
        worker = Worker(
            ["manage.py", command, *arguments], self.environment(**overrides), self._log(command)
        )
        self.processes.append(worker)
        return worker

    def start_worker(self, *arguments: str, **overrides: str) -> Worker:
        """Start a worker and wait until it consumes."""
        worker = self.launch_worker(*arguments, **overrides)
        worker.wait_consuming()
        return worker

    def start_run_worker(self, **overrides: str) -> Worker:
        """Start a run worker and wait until it consumes."""
        worker = self.launch_worker(command="runworker", **overrides)
        worker.wait_consuming()
        return worker

    def dump_stacks(self) -> None:
        """End the workers that still run, and let them log where each of their threads is."""
        for child in self.processes:
            if isinstance(child, Worker):
                child.abort()

    def start_workers(self, number: int, **overrides: str) -> list[Worker]:
        """Start several workers at once and wait until all of them consume."""
        workers = [self.launch_worker(**overrides) for _ in range(number)]
        for worker in workers:
            worker.wait_consuming()
        return workers

    def holder(self, job: Started) -> Worker:
        """Return the worker that the job's row names."""
        (worker_id,) = self.database.one(
            "select worker_id from workspaces_buildjob where id = %s", job.job_id
        )
        for child in self.processes:
            if isinstance(child, Worker) and f"-{child.pid}-" in worker_id:
                return child
        raise AssertionError(f"{worker_id} is not one of ours")

    # ------------------------------------------------------------ HTTP

    @property
    def api(self) -> str:
        """URL of the API."""
        return f"http://127.0.0.1:{self.api_port}"

    def request_body(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return a request for a sandbox in a repository of its own."""
        repository = f"{self.instance_id}/{uuid.uuid4().hex[:8]}"
        target = {"registryId": "default", "repository": repository, "tag": "latest"}
        return {"ownerUserId": OWNER, **target, "spec": spec}

    def send(self, body: dict[str, Any], *, key: str | None = None) -> requests.Response:
        """POST a request for a sandbox."""
        headers = {"idempotency-key": key} if key else {}
        return requests.post(
            f"{self.api}/v1/sandboxes", json=body, headers=headers, timeout=LONG_WAIT
        )

    def post(self, spec: dict[str, Any], *, key: str | None = None, **members: Any) -> Started:
        """Start a sandbox."""
        answer = self.send({**self.request_body(spec), **members}, key=key)
        assert answer.status_code == 202, answer.text
        return started(answer.json())

    def get(self, path: str) -> Any:
        """Return the JSON of one answer."""
        answer = requests.get(f"{self.api}{path}", timeout=LONG_WAIT)
        assert answer.ok, answer.text
        return answer.json()

    def sandbox(self, job: Started) -> Any:
        """Return the sandbox as the API shows it."""
        return self.get(f"/v1/sandboxes/{job.sandbox_id}")

    def wait_status(self, job: Started, status: str, seconds: float = LONG_WAIT) -> Any:
        """Wait until the API shows ``status``, and return the sandbox."""
        seen: Any = None

        def reached() -> bool:
            nonlocal seen
            seen = self.sandbox(job)
            ended = seen["status"] in {"failed", "cancelled", "stopped"}
            assert seen["status"] == status or not ended, seen
            return bool(seen["status"] == status)

        wait_for(reached, f"the sandbox is {status}", seconds)
        return seen

    def events(self, job: Started) -> list[str]:
        """Return the types of the workspace's events, oldest first."""
        items = self.get(f"/v1/workspaces/{job.workspace_id}/events?limit=100")["items"]
        return [item["type"] for item in reversed(items)]


_SECRET_FILES = {
    f"{name}_FILE" for name in ("DATABASE_URL", "RABBITMQ_URL", "REGISTRY_PASSWORD")
} | {"PYTEST_CURRENT_TEST"}
