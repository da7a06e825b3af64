"""Which containers and networks a launch made, and of which run they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import structlog
from docker.models.containers import Container
from docker.models.networks import Network

from workspaces.runtimes.base import ObservedRuntime

RUN_LABEL = "svc.run"
"""On what a launch made, and on nothing else. The label of the installation alone says less: images
have it too, so whatever somebody starts from one by hand inherits it, and the containers that read
an index of packages have it.
"""
WARM_LABEL = "svc.warm"
"""On what was made for the warm pool. Labels stay as they are, so once such a container is a run's,
its name says of which, and ``RUN_LABEL`` what it was launched as; its network has that, too.
"""

_RUN_NAME = re.compile(r"svc-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-discarded-|\Z)")

logger = structlog.get_logger(__name__)


def run_of(labels: Mapping[str, str], name: str) -> UUID:
    """Return the run that a container of ours belongs to; raises KeyError or ValueError."""
    if WARM_LABEL not in labels:
        return UUID(labels[RUN_LABEL])
    named = _RUN_NAME.match(name)
    if named is None:
        raise ValueError("no name of a run")
    return UUID(named[1])


def launched_as(container: Container) -> UUID:
    """Return the run that a container of ours was launched as; its network has that one's label."""
    labels = container.attrs.get("Labels") or labels_of(container)
    return UUID(labels[RUN_LABEL])


def is_of_run(summary: Mapping[str, Any], run_id: UUID) -> bool:
    """Whether a line of the engine's list is of a container of that run."""
    try:
        return run_of(summary.get("Labels") or {}, _shortest_name(summary)) == run_id
    except (KeyError, ValueError):
        return False


def _shortest_name(summary: Mapping[str, Any]) -> str:
    # Links of others are longer.
    names = [str(name).removeprefix("/") for name in summary.get("Names") or ()]
    return min(names, key=len, default="")


def container_name(run_id: UUID) -> str:
    """Return the name that a run's container has."""
    return f"svc-{run_id}"


def is_of_a_launch(container: Container, instance_id: str) -> bool:
    """Whether a launch of that installation made the container."""
    labels = labels_of(container)
    return labels.get("svc.instance") == instance_id and RUN_LABEL in labels


def labels_of(thing: Container | Network) -> dict[str, str]:
    """Return a container's or network's labels."""
    if isinstance(thing, Container):
        return thing.labels or {}
    return cast("dict[str, str]", thing.attrs.get("Labels") or {})


def observed(container: Container) -> ObservedRuntime | None:
    """Return what is known of a container of ours; None when its labels make no sense."""
    labels, state = labels_of(container), container.attrs["State"]
    try:
        return ObservedRuntime(
            run_id=run_of(labels, str(container.name)),
            job_id=UUID(labels["svc.job"]),
            attempt_count=int(labels["svc.attempt-count"]),
            resource_id=str(container.id),
            reference=str(container.name),
            running=bool(state["Running"]),
            exit_code=state["ExitCode"] if state["Status"] in ("exited", "dead") else None,
            oom_killed=bool(state["OOMKilled"]),
            # In whole seconds, as a list has it: both are the same container.
            created_at=_timestamp(container.attrs["Created"]).replace(microsecond=0),
        )
    except (KeyError, ValueError):
        logger.warning("foreign_container_passed_over", container=container.name)
        return None


def observed_in_list(summary: Mapping[str, Any]) -> ObservedRuntime | None:
    """Return what a line of the engine's list says of a container that runs."""
    name = _shortest_name(summary)
    labels: Mapping[str, str] = summary.get("Labels") or {}
    try:
        return ObservedRuntime(
            run_id=run_of(labels, name),
            job_id=UUID(labels["svc.job"]),
            attempt_count=int(labels["svc.attempt-count"]),
            resource_id=str(summary["Id"]),
            reference=name,
            running=True,
            exit_code=None,
            oom_killed=False,
            created_at=datetime.fromtimestamp(int(summary["Created"]), UTC),
        )
    except (KeyError, ValueError):
        logger.warning("foreign_container_passed_over", container=name)
        return None


def _timestamp(text: Any) -> datetime:
    # Nanoseconds and a Z; Python keeps microseconds.
    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,6})?", str(text))
    if match is None:
        raise ValueError("not a time of the engine")
    return datetime.fromisoformat(match[1] + (match[2] or "")).replace(tzinfo=UTC)
