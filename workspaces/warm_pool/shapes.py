"""Which launches a container of the pool could serve, and what such a container is made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.conf import settings

from workspaces.runtimes import boot
from workspaces.runtimes.base import LaunchRequest, PoolingAdapter

_MEMBERS = ("image", "outbound", "memory_mb", "cpus", "pids", "sudo", "oci_runtime")


def is_served(request: LaunchRequest) -> bool:
    """Whether the pool serves a launch: not with volumes of its own, nor a policy for its egress.

    Both are the workspace's, and given to a container when it is made.
    """
    return not (request.volumes or request.restart or request.egress)


def shape_of(request: LaunchRequest) -> dict[str, Any]:
    """Return what there is to know to make a container like the one that is asked for."""
    return {name: getattr(request, name) for name in _MEMBERS}


def key_of(adapter: PoolingAdapter, request: LaunchRequest) -> str:
    """Return what stands for all of it; a member of another release serves nobody."""
    return f"{settings.SVC_VERSION[:80]}/{adapter.warm_key(request)}"


def member_request(
    shape: Mapping[str, Any], member_id: UUID, *, instance_id: str, timeout: float
) -> LaunchRequest:
    """Return the launch of a member. Nothing in it is any owner's but the image's repository."""
    return LaunchRequest(
        instance_id=instance_id,
        run_id=member_id,
        attempt_id=member_id,
        workspace_id=member_id,
        job_id=member_id,
        attempt_count=0,
        boot=boot.UNBOUND_CONFIGURATION,
        working_directory="/",
        restart=False,
        timeout=timeout,
        unbound=True,
        **{name: shape[name] for name in _MEMBERS},
    )
