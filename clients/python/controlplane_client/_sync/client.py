"""Where everything begins: the service, and whose workspaces are meant."""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import httpx

from controlplane_client._sync.connection import Connection
from controlplane_client._sync.run import Run
from controlplane_client._sync.workspace import Workspace
from controlplane_client.models import RunInfo, WorkspaceInfo


class Client:
    """A client of one installation, for one owner. Close it, or use it in a ``with`` block.

    ``base_url`` is by default ``SVC_BASE_URL`` of the environment or ``http://localhost:4000``,
    ``owner`` is ``SVC_OWNER_USER_ID`` or ``usr_local``; behind a proxy that names the caller, give
    ``""``. ``SVC_OWNER`` is the older name, and is used if the new one is not set.
    ``timeout`` is how many seconds may pass without a byte. A request that failed on its way is
    repeated up to ``retries`` times, if that does nothing twice.
    """

    def __init__(
        self,
        base_url: str | None = None,
        owner: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        retries: int = 5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.base_url = base_url or os.environ.get("SVC_BASE_URL") or "http://localhost:4000"
        self.owner = owner_of_environment() if owner is None else owner
        self._connection = Connection(
            self.base_url,
            self.owner,
            headers=headers or {},
            timeout=timeout,
            retries=retries,
            transport=transport,
        )

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def create(
        self,
        blueprint: Mapping[str, Any],
        *,
        repository: str | None = None,
        tag: str = "latest",
        registry: str | None = None,
        name: str | None = None,
        ttl: int | None = None,
        members: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
        on_output: Callable[[str], object] | None = None,
        on_status: Callable[[WorkspaceInfo], object] | None = None,
    ) -> Workspace:
        """Create a workspace from a blueprint, and wait until it is ready unless ``wait`` is False.

        Its image is published as ``repository``:``tag``; without a repository, in one of the
        owner's own. ``registry`` is a ``registryId``: by default ``SVC_REGISTRY_ID``, or else
        ``default``. It is stopped after ``ttl`` seconds. ``members``, such as ``credentials``, are
        added to the request. With the same ``idempotency_key`` it is created only once.
        ``on_output`` gets what build and boot print meanwhile.
        Raises ``NotReady`` when it fails, ``WaitTimeout`` after ``timeout`` seconds.
        """
        body: dict[str, Any] = {
            "registryId": registry or os.environ.get("SVC_REGISTRY_ID") or "default",
            "repository": repository or default_repository(self.owner),
            "tag": tag,
            "spec": dict(blueprint),
            **({} if name is None else {"name": name}),
            **({} if ttl is None else {"ttlSeconds": ttl}),
            **(members or {}),
        }
        started = self._connection.json(
            "POST",
            "/v1/workspaces",
            body,
            repeatable=True,
            headers={"idempotency-key": idempotency_key or str(uuid.uuid4())},
        )
        workspace = Workspace(self._connection, started["workspaceId"])
        if wait:
            workspace.wait_ready(timeout=timeout, on_output=on_output, on_status=on_status)
        return workspace

    def workspace(self, workspace_id: str) -> Workspace:
        """Return a workspace without checking that it exists."""
        return Workspace(self._connection, workspace_id)

    def connect(self, workspace_id: str) -> Workspace:
        """Return an existing workspace; raises ``NotFound`` when the owner has no such one."""
        workspace = Workspace(self._connection, workspace_id)
        workspace.refresh()
        return workspace

    def workspaces(self, status: str | None = None) -> Iterator[WorkspaceInfo]:
        """Yield the owner's workspaces, newest first; deleted ones with ``status="deleted"``."""
        for item in self._pages("/v1/workspaces", status=status, limit=100):
            yield WorkspaceInfo.of(item)

    def run(self, run_id: str) -> Run:
        """Return an existing run."""
        run = Run(self._connection, run_id)
        run.refresh()
        return run

    def runs(self, status: str | None = None, mode: str | None = None) -> Iterator[RunInfo]:
        """Yield the owner's runs, newest first."""
        for item in self._pages("/v1/runs", status=status, mode=mode, limit=100):
            yield RunInfo.of(item)

    def setup(self) -> dict[str, Any]:
        """Return what a new user needs to know: ``sshGateway`` is the address for SSH clients."""
        told: dict[str, Any] = self._connection.json(
            "GET", "/v1/system/setup-state", repeatable=True
        )
        return told

    def _pages(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        cursor = None
        while True:
            page = self._connection.json("GET", path, repeatable=True, cursor=cursor, **query)
            for item in page["items"]:
                yield item
            cursor = page.get("nextCursor")
            if cursor is None:
                return


def default_repository(owner: str) -> str:
    """Return the default repository for an owner's images."""
    plain = re.sub(r"[^a-z0-9]+", "-", owner.lower()).strip("-") or "owner"
    if plain != owner:
        plain = f"{plain[:60]}-{hashlib.sha256(owner.encode()).hexdigest()[:8]}"
    return f"workspaces/{plain}"


def owner_of_environment() -> str:
    """Return the default owner of a client; ``""`` if the environment says so."""
    names = ("SVC_OWNER_USER_ID", "SVC_OWNER")  # the second one is older
    given = [os.environ[name] for name in names if name in os.environ]
    return next(filter(None, given), "" if given else "usr_local")
