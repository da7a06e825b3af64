"""What readiness asks of the parts that the API depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db import Error as AnyDatabaseError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from builds.models import Worker
from controlplane import amqp
from controlplane.errors import ControlPlaneError
from registries.services import configured_registry
from runs.readiness import run_workers


@dataclass(frozen=True, slots=True)
class Check:
    """The state of one part; ``required`` ones decide whether the API is ready."""

    name: str
    ok: bool
    detail: str
    required: bool = True


def check_all() -> list[Check]:
    """Ask every part, each within its own time limit; none of them raises."""
    return [_database(), _broker(), _registry(), _workers(), _run_workers(), _consumer_timeout()]


def _outcome(name: str, ask: Callable[[], str], *, required: bool = True) -> Check:
    try:
        return Check(name, True, ask(), required)
    except (AnyDatabaseError, amqp.BrokerError) as exc:
        detail = str(exc) if isinstance(exc, amqp.BrokerError) else "It cannot be reached."
        return Check(name, False, detail, required)
    except ControlPlaneError as exc:
        return Check(name, False, exc.detail, required)


def _database() -> Check:
    def ask() -> str:
        executor = MigrationExecutor(connection)
        pending = executor.migration_plan(executor.loader.graph.leaf_nodes())
        if pending:
            raise ControlPlaneError(
                f"{len(pending)} migrations are pending; run manage.py migrate."
            )
        return "It answers, and no migration is pending."

    return _outcome("database", ask)


def _broker() -> Check:
    def ask() -> str:
        amqp.ping(settings.RABBITMQ_URL, timeout=settings.RABBITMQ_CONNECT_TIMEOUT_MS / 1000)
        return "It answers."

    return _outcome("broker", ask)


def _registry() -> Check:
    def ask() -> str:
        client = configured_registry(read_timeout=settings.REGISTRY_CONNECT_TIMEOUT_MS / 1000)
        client.ping()
        return "It answers."

    return _outcome("registry", ask)


def _workers() -> Check:
    def ask() -> str:
        stale = timedelta(milliseconds=settings.WORKER_HEARTBEAT_STALE_MS)
        alive = Worker.objects.alive(stale=stale).count()
        if not alive:
            raise ControlPlaneError("No build worker is alive; start one (manage.py buildworker).")
        return f"{alive} alive."

    return _outcome("buildWorker", ask, required=False)


def _run_workers() -> Check:
    return _outcome("runWorker", run_workers, required=False)


def _consumer_timeout() -> Check:
    """RabbitMQ takes a message back that is not acknowledged in time, job or no job."""
    longest = (
        settings.WORKSPACE_SOURCE_TIMEOUT_MS
        + settings.WORKSPACE_BUILD_TIMEOUT_MS
        + settings.WORKSPACE_PUSH_TIMEOUT_MS
        + settings.WORKSPACE_LAUNCH_TIMEOUT_MS
    )
    allowed = settings.RABBITMQ_CONSUMER_TIMEOUT_MS
    if allowed >= longest:
        return Check("brokerAcknowledgement", True, "Longer than the longest job.", False)
    return Check(
        "brokerAcknowledgement",
        False,
        f"The broker's consumer_timeout ({allowed} ms) is below the longest job ({longest} ms): "
        "raise consumer_timeout in rabbitmq.conf and RABBITMQ_CONSUMER_TIMEOUT_MS with it.",
        False,
    )
