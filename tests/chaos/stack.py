"""A whole control plane of the tests' own, whose every part may be killed.

PostgreSQL and RabbitMQ are private, so that they can be restarted; the Docker Engine and the
registry are those of the machine, told apart by an instance id and by repositories of our own. What
happened is asked over HTTP, in plain SQL, of the engine and of the registry: never of the product's
own code.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pika
import psycopg
import requests
from docker.models.containers import Container
from docker.models.networks import Network
from pika.exceptions import ChannelClosedByBroker

from deploy.services.ports import is_free
from deploy.services.postgres import PrivatePostgres
from deploy.services.rabbitmq import PrivateRabbitMQ
from tests.chaos.gates import build_gates
from tests.chaos.processes import Child, Worker, wait_for

OWNER = "usr_chaos"
QUEUE = "chaos-builds"

QUICK = {
    "WORKER_HEARTBEAT_INTERVAL_MS": "500",
    "WORKER_HEARTBEAT_STALE_MS": "2500",
    "WORKER_SWEEP_INTERVAL_MS": "300",
    "WORKER_RECONCILE_INTERVAL_MS": "1000",
    "WORKER_RECONCILE_GRACE_MS": "1000",
    "WORKSPACE_BUILD_JOB_QUEUED_OVERDUE_MS": "1500",
    "WORKSPACE_STOP_GRACE_MS": "1000",
    "WORKSPACE_KEEP_ENDED_MS": "1000",
    "DATABASE_IDLE_TRANSACTION_TIMEOUT_MS": "4000",
}
"""Times that keep the suite quick; one test uses the defaults, and holds them to their promise."""


@dataclass(frozen=True, slots=True)
class Started:
    """A sandbox that was started, with all its ids."""

    sandbox_id: str
    workspace_id: str
    attempt_id: str
    run_id: str
    job_id: str
    repository: str
    tag: str


def nap(seconds: int) -> tuple[str, str]:
    """Return a script that sleeps, and an argument that tells its process from all others."""
    argument = f"{seconds}.{random.randrange(10**8, 10**9)}"
    return f"sleep {argument}", argument


def blueprint(
    *, install: str | None = None, setup: str = "true", foreground: str = "", **runtime: Any
) -> dict[str, Any]:
    """Return a small blueprint. With ``install`` its image has to be built anew."""
    harness: dict[str, Any] = {"id": "shell"}
    if install is not None:
        script = f"{install}\n: {uuid.uuid4()}"
        harness = {"id": "custom", "install": script, "command": ["true"]}
    spec: dict[str, Any] = {
        "harness": harness,
        "lifecycle": {
            "setup": [{"id": "prepare", "run": f'echo ran >> "$HOME/setup.log"\n{setup}'}]
        },
    }
    if foreground:
        spec["lifecycle"]["startup"] = {"foreground": {"kind": "command", "run": foreground}}
    if runtime:
        spec["runtime"] = runtime
    return spec


class Stack:
    """The services, the processes and the views on them."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="svc-chaos-"))
        self.root.chmod(0o755)
        self.postgres = PrivatePostgres(self.root / "postgres", None, secrets.token_hex(8))
        self.rabbitmq = PrivateRabbitMQ(self.root / "rabbitmq", None, secrets.token_hex(8))
        self.instance_id = f"chaos-{uuid.uuid4().hex[:12]}"
        self.registry = os.environ.get("REGISTRY_BASE_URL", "http://127.0.0.1:5000")
        self.push_registry = os.environ.get("REGISTRY_PUSH_REGISTRY", "127.0.0.1:5000")
        socket_path = os.environ.get("CONTAINER_SOCKET_PATH", "/var/run/docker.sock")
        docker_host = os.environ.get("DOCKER_HOST", f"unix://{socket_path}")
        self.engine = docker.DockerClient(docker_host, timeout=60)
        self.api_port = next(port for port in iter(_any_port, 0) if is_free(port))
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
        self.wait_status(seed, "ready", 180)
        worker.kill()
        # Nothing looks for the container of the first sandbox any more, which goes with the test's.
        self.execute(
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
        self.remove_containers()
        self.postgres.start()
        self.rabbitmq.start()
        self._forget_rows()
        for name in (QUEUE, f"{QUEUE}.dlq"):
            self.purge(name)
        shutil.rmtree(self.data, ignore_errors=True)

    def close(self) -> None:
        """Leave nothing on the machine."""
        for child in self.processes:
            child.kill_group()
        self.remove_containers()
        for image in self.engine.images.list(
            all=True, filters={"label": f"svc.instance={self.instance_id}", "dangling": False}
        ):
            self.engine.images.remove(str(image.id), force=True)
        self.engine.close()
        self.rabbitmq.stop()
        self.postgres.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def remove_containers(self) -> None:
        """Remove the containers and networks of this instance."""
        for container in self.containers():
            container.remove(force=True, v=True)
        for network in self.networks():
            network.remove()

    def _forget_rows(self) -> None:
        tables = {
            "builds_sandboxrequest": "sandbox_id in (select id from workspaces_sandbox"
            " where workspace_id <> %s)",
            "builds_buildjob": "attempt_id in (select id from workspaces_attempt"
            " where workspace_id <> %s)",
            "workspaces_runtimeinstance": "attempt_id in (select id from workspaces_attempt"
            " where workspace_id <> %s)",
            "workspaces_workspaceevent": "workspace_id <> %s",
            "workspaces_attempt": "workspace_id <> %s",
            "workspaces_sandbox": "workspace_id <> %s",
            "workspaces_workspace": "id <> %s",
        }
        with psycopg.connect(self.postgres.url) as connection:
            connection.execute("delete from builds_worker")
            for table, condition in tables.items():
                connection.execute(
                    f"delete from {table} where {condition}",  # noqa: S608
                    [self._seed_workspace],
                )

    # ------------------------------------------------------------ processes

    @property
    def data(self) -> Path:
        """The data directory of the processes."""
        return self.root / "data"

    def environment(self, **overrides: str) -> dict[str, str]:
        """Return the environment of a process."""
        inherited = {name: value for name, value in os.environ.items() if name not in _SECRET_FILES}
        return (
            inherited
            | QUICK
            | {
                **self.postgres.settings,
                **self.rabbitmq.settings,
                "REGISTRY_BASE_URL": self.registry,
                "REGISTRY_PUSH_REGISTRY": self.push_registry,
                "SVC_INSTANCE_ID": self.instance_id,
                "WORKSPACE_BUILD_QUEUE": QUEUE,
                "SVC_DATA_DIR": str(self.data),
                "SVC_API_WORKERS": "1",
                "SVC_LOG_FORMAT": "json",
                "WEB_AUTH_SECRET": "only-for-the-tests-of-this-machine-0123",
                "PYTHONUNBUFFERED": "1",
                "PYTHONFAULTHANDLER": "1",
            }
            | overrides
        )

    def _log(self, name: str) -> Path:
        self._count += 1
        return self.root / f"{name}-{self._count}.log"

    def manage(self, *arguments: str) -> None:
        """Run a management command to its end."""
        child = Child(["manage.py", *arguments], self.environment(), self._log(arguments[0]))
        code = child.wait(60)
        assert code == 0, child.log.read_text()

    def start_api(self) -> None:
        """Start the API unless it runs, and wait until it answers."""
        if self._api is None or self._api.exit_code is not None:
            self._api = Child(
                [
                    *("-m", "gunicorn", "controlplane.wsgi", "-c", "deploy/gunicorn.conf.py"),
                    *("--bind", f"127.0.0.1:{self.api_port}"),
                ],
                self.environment(),
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
            return requests.get(f"{self.api}/healthz", timeout=5).ok
        except requests.RequestException:
            return False

    def launch_worker(self, *arguments: str, **overrides: str) -> Worker:
        """Start a worker without waiting for it."""
        worker = Worker(
            ["manage.py", "buildworker", *arguments],
            self.environment(**overrides),
            self._log("worker"),
        )
        self.processes.append(worker)
        return worker

    def start_worker(self, *arguments: str, **overrides: str) -> Worker:
        """Start a worker and wait until it consumes."""
        worker = self.launch_worker(*arguments, **overrides)
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
        (worker_id,) = self.one("select worker_id from builds_buildjob where id = %s", job.job_id)
        for child in self.processes:
            if isinstance(child, Worker) and f"-{child.pid}-" in worker_id:
                return child
        raise AssertionError(f"{worker_id} is not one of ours")

    # ------------------------------------------------------------ HTTP

    @property
    def api(self) -> str:
        """Where the API is."""
        return f"http://127.0.0.1:{self.api_port}"

    def request_body(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return a request for a sandbox in a repository of its own."""
        repository = f"{self.instance_id}/{uuid.uuid4().hex[:8]}"
        target = {"registryId": "default", "repository": repository, "tag": "latest"}
        return {"ownerUserId": OWNER, **target, "spec": spec}

    def send(self, body: dict[str, Any], *, key: str | None = None) -> requests.Response:
        """POST a request for a sandbox."""
        headers = {"idempotency-key": key} if key else {}
        return requests.post(f"{self.api}/v1/sandboxes", json=body, headers=headers, timeout=30)

    def post(self, spec: dict[str, Any], *, key: str | None = None) -> Started:
        """Start a sandbox."""
        answer = self.send(self.request_body(spec), key=key)
        assert answer.status_code == 202, answer.text
        return started(answer.json())

    def get(self, path: str) -> Any:
        """Return the JSON of one answer."""
        answer = requests.get(f"{self.api}{path}", timeout=30)
        assert answer.ok, answer.text
        return answer.json()

    def sandbox(self, job: Started) -> Any:
        """Return the sandbox as the API shows it."""
        return self.get(f"/v1/sandboxes/{job.sandbox_id}")

    def wait_status(self, job: Started, status: str, seconds: float = 60.0) -> Any:
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

    # ------------------------------------------------------------ SQL

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            return connection.execute(query.encode(), values).fetchall()

    def one(self, query: str, *values: Any) -> tuple[Any, ...]:
        """Return the only row of a query."""
        (row,) = self.rows(query, *values)
        return row

    def execute(self, statement: str, *values: Any) -> None:
        """Run a statement."""
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            connection.execute(statement.encode(), values)

    def job_status(self, job: Started) -> str:
        """Return the status of the job's row."""
        return str(self.one("select status from builds_buildjob where id = %s", job.job_id)[0])

    def claims(self, job: Started) -> int:
        """Return how often the job was claimed."""
        return int(
            self.one("select attempt_count from builds_buildjob where id = %s", job.job_id)[0]
        )

    def wait_claims(self, job: Started, count: int, seconds: float = 30.0) -> float:
        """Wait for the claim of that number and return when it happened, in UTC."""
        wait_for(lambda: self.claims(job) >= count, f"claim {count}", seconds)
        query = "select extract(epoch from claimed_at) from builds_buildjob where id = %s"
        return float(self.one(query, job.job_id)[0])

    # ------------------------------------------------------------ broker, engine, registry

    def channel(self) -> pika.BlockingConnection:
        """Return a connection to the broker; the caller closes it."""
        return pika.BlockingConnection(pika.URLParameters(self.rabbitmq.url))

    def publish(self, body: bytes) -> None:
        """Put a message on the build queue."""
        with self.channel() as connection:
            connection.channel().basic_publish("", QUEUE, body)

    def depth(self, queue: str = QUEUE) -> int:
        """Return how many messages wait in a queue."""
        with self.channel() as connection:
            try:
                answer = connection.channel().queue_declare(queue, passive=True)
            except ChannelClosedByBroker:
                return 0
            return int(answer.method.message_count)

    def dead_letters(self) -> list[bytes]:
        """Take the dead letters."""
        found: list[bytes] = []
        with self.channel() as connection:
            channel = connection.channel()
            while True:
                method, _, body = channel.basic_get(f"{QUEUE}.dlq", auto_ack=True)
                if method is None:
                    return found
                found.append(body or b"")

    def purge(self, queue: str) -> None:
        """Empty a queue."""
        with self.channel() as connection:
            try:
                connection.channel().queue_purge(queue)
            except ChannelClosedByBroker:
                return

    def containers(self, job: Started | None = None) -> list[Container]:
        """Return the containers of the instance, or of one run, ended ones included."""
        labels = [f"svc.instance={self.instance_id}"]
        if job is not None:
            labels.append(f"svc.run={job.run_id}")
        found: list[Container] = self.engine.containers.list(
            all=True, filters={"label": labels}, ignore_removed=True
        )
        return found

    def networks(self) -> list[Network]:
        """Return the networks of the instance."""
        label = f"svc.instance={self.instance_id}"
        found: list[Network] = self.engine.networks.list(filters={"label": label})
        return found

    def local_names(self, job: Started) -> list[str]:
        """Return the names that the job's images have in the engine."""
        listed = self.engine.api.images()
        names = [name for image in listed for name in image["RepoTags"] or ()]
        wanted = (f"svc-build/{job.job_id}:", f"{self.push_registry}/{job.repository}:")
        return [name for name in names if name.startswith(wanted)]

    def folders(self) -> list[str]:
        """Return what is left in the folder of builds."""
        return [entry.name for entry in (self.data / "builds").glob("*")]

    def tags(self, job: Started) -> dict[str, str]:
        """Return the tags of the job's repository with their digests."""
        base = f"{self.registry}/v2/{job.repository}"
        answer = requests.get(f"{base}/tags/list", timeout=10)
        if answer.status_code == 404:
            return {}
        kinds = (
            "application/vnd.docker.distribution.manifest.v2+json",
            "application/vnd.oci.image.manifest.v1+json",
        )
        return {
            tag: requests.head(
                f"{base}/manifests/{tag}", headers={"accept": ", ".join(kinds)}, timeout=10
            ).headers["docker-content-digest"]
            for tag in answer.json()["tags"] or ()
        }


def started(answer: dict[str, Any]) -> Started:
    """Return the ids in an answer to ``POST /v1/sandboxes``."""
    return Started(
        answer["sandboxId"],
        answer["workspaceId"],
        answer["attemptId"],
        answer["runId"],
        answer["jobId"],
        answer["repository"],
        answer["tag"],
    )


def _any_port() -> int:
    return random.randrange(20000, 32000)


_SECRET_FILES = {
    f"{name}_FILE" for name in ("DATABASE_URL", "RABBITMQ_URL", "REGISTRY_PASSWORD")
} | {"PYTEST_CURRENT_TEST"}
