"""What readiness asks of the parts that the API depends on.

Apps register the parts that they know: :func:`register`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import Error as AnyDatabaseError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from controlplane.checks import OPEN_TO_PAGES, open_to_pages, read_by_all_pages
from controlplane.errors import ControlPlaneError
from controlplane.work.models import Heartbeat, heartbeat_stale, serves


@dataclass(frozen=True, slots=True)
class Check:
    """The state of one part; ``required`` ones decide whether the API is ready."""

    name: str
    ok: bool
    detail: str
    required: bool = True


_registered: dict[str, tuple[Callable[[], str], Callable[[], bool]]] = {}
_engines: list[Callable[[], Collection[str]]] = []


def register(
    name: str, ask: Callable[[], str], *, required: bool | Callable[[], bool] = True
) -> None:
    """Add a part; ``ask`` says how it is, or raises ``ControlPlaneError``."""
    _registered[name] = (ask, required if callable(required) else lambda: required)


def register_engines(names: Callable[[], Collection[str]]) -> None:
    """Add engines each of which needs workers of its own; ``names`` is asked each time."""
    _engines.append(names)


def check_all() -> list[Check]:
    """Ask every part, each within its own time limit; none of them raises."""
    return [
        _database(),
        _broker(),
        *(
            _outcome(name, ask, required=required())
            for name, (ask, required) in _registered.items()
        ),
        _workers("buildWorker", Heartbeat.Kind.BUILD),
        _workers("runWorker", Heartbeat.Kind.RUN),
        _consumer_timeout(),
        _pages(),
    ]


def needs_setup() -> bool:
    """Whether nobody can use the admin pages yet."""
    return not get_user_model().objects.filter(is_staff=True, is_active=True).exists()


def _outcome(name: str, ask: Callable[[], str], *, required: bool = True) -> Check:
    try:
        return Check(name, True, ask(), required)
    except AnyDatabaseError:
        return Check(name, False, "It cannot be reached.", required)
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
        return "It answers, and no migrations are pending."

    return _outcome("database", ask)


def _broker() -> Check:
    # Every process registers parts here; only the API asks them.
    from controlplane.work import amqp

    def ask() -> str:
        try:
            amqp.ping(settings.RABBITMQ_URL, timeout=settings.RABBITMQ_CONNECT_TIMEOUT_MS / 1000)
        except amqp.BrokerError as exc:
            raise ControlPlaneError(str(exc)) from exc
        return "It answers."

    return _outcome("broker", ask)


def _workers(name: str, kind: Heartbeat.Kind) -> Check:
    def ask() -> str:
        stale = heartbeat_stale()
        alive = Heartbeat.objects.filter(kind=kind).by_engine(stale=stale)
        if not alive:
            raise ControlPlaneError(
                f"No {kind} worker is alive; start one (manage.py {kind}worker)."
            )
        wanted = sorted({name for names in _engines for name in names()})
        lacking = [name for name in wanted if not any(serves(one, name) for one in alive)]
        if lacking:
            raise ControlPlaneError(
                f"{alive.total()} alive, but no {kind} worker of {', '.join(lacking)}; start one "
                f"(manage.py {kind}worker with SVC_ENGINE; for engines that were added manage.py "
                "engineworkers does)."
            )
        return f"{alive.total()} alive."

    return _outcome(name, ask, required=False)


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


def _pages() -> Check:
    """Whether web pages of everywhere read what only this machine is meant to reach."""
    if open_to_pages():
        return Check("corsOrigins", False, OPEN_TO_PAGES, False)
    detail = (
        "Pages of every origin may read answers."
        if read_by_all_pages()
        else "Limited to the origins that were named."
    )
    return Check("corsOrigins", True, detail, False)
