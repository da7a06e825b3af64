"""A workspace with its SSH gateway, and the runs that become of connections."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from django.db import connection
from django.test import override_settings

from tests.conftest import OWNER
from tests.stack.gateway_process import ApiProcess, GatewayProcess
from tests.stack.runs import GATEWAY_TOKEN, Place, place_of
from tests.stack.service import GitServer, Stack
from tests.stack.ssh import Client, short_folder
from tests.stack.worker_process import eventually


@dataclass
class NewRun:
    """The run of the one connection of a block; known at the block's end."""

    id: str = ""


@dataclass
class SshAccess:
    """A ready workspace that people enter."""

    place: Place
    api: ApiProcess
    gateway: GatewayProcess
    folder: Path
    _clients: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def workspace_id(self) -> str:
        """The workspace's id."""
        return str(self.place.started.answer["workspaceId"])

    @property
    def user(self) -> str:
        """The name under which the gateway lets people into the workspace."""
        return f"ws-{self.workspace_id}"

    def client(
        self,
        owner: str | None = OWNER,
        *,
        user: str | None = None,
        gateway: GatewayProcess | None = None,
    ) -> Client:
        """Return a client with a new key, which is registered unless nobody is its owner."""
        at = gateway or self.gateway
        client = Client(
            self._clients.enter_context(short_folder()),
            port=at.port,
            known_host=at.known_host,
            user=user or self.user,
        )
        if owner is not None:
            body = {"ownerUserId": owner, "publicKey": client.public_key}
            self.place.stack.api.post("/v1/ssh-keys", body, expect=201)
        return client

    def runs(self) -> list[str]:
        """Return the interactive runs of the workspace, newest first."""
        found: list[str] = []
        path = f"/v1/runs?ownerUserId={OWNER}&workspaceId={self.workspace_id}&limit=100"
        cursor = ""
        while True:
            page = self.place.stack.api.get(path + cursor).body
            found += [run["runId"] for run in page["items"] if run["mode"] == "interactive"]
            if not page.get("nextCursor"):
                return found
            cursor = f"&cursor={page['nextCursor']}"

    @contextlib.contextmanager
    def run(self) -> Iterator[NewRun]:
        """Make one connection in the block; its run is there afterwards."""
        before = set(self.runs())
        new = NewRun()
        yield new
        (new.id,) = set(self.runs()) - before

    @contextlib.contextmanager
    def another_gateway(self, **changes: str) -> Iterator[GatewayProcess]:
        """Run a second gateway, with the same host key unless another is told."""
        log = self.folder / f"gateway-{uuid.uuid4().hex[:8]}.log"
        settings = {"WORKSPACE_SSH_GATEWAY_TOKEN": GATEWAY_TOKEN, **changes}
        api = settings.pop("SSH_GATEWAY_API_BASE_URL", self.api.url)
        gateway = GatewayProcess(log, api=api, host_key=self.gateway.host_key, **settings)
        try:
            yield gateway
        finally:
            gateway.stop()

    def close(self) -> None:
        """Forget the clients."""
        self._clients.close()


@contextlib.contextmanager
def access_of(
    stack: Stack, git_server: GitServer, run_queue: str, folder: Path
) -> Iterator[SshAccess]:
    """A workspace that people can enter; what was logged is shown when the block fails."""
    token = {"WORKSPACE_SSH_GATEWAY_TOKEN": GATEWAY_TOKEN}
    with contextlib.ExitStack() as rest:
        rest.enter_context(override_settings(**token))
        place = rest.enter_context(place_of(stack, git_server, run_queue, folder))
        api = ApiProcess(folder / "api.log", **token)
        rest.callback(api.stop)
        gateway = GatewayProcess(
            folder / "gateway.log", api=api.url, host_key=folder / "ssh" / "key", **token
        )
        rest.callback(gateway.stop)
        access = SshAccess(place, api, gateway, folder)
        rest.callback(access.close)
        yield access


TEXTS = """
    select table_name, column_name, data_type from information_schema.columns
     where table_schema = 'public'
       and data_type in ('text', 'character varying', 'bytea', 'jsonb', 'json', 'ARRAY')
"""


def found_in_database(secret: bytes) -> list[str]:
    """Return every column of every table in some row of which these bytes are."""
    found = []
    with connection.cursor() as cursor:
        cursor.execute(TEXTS)
        columns = cursor.fetchall()
        for table, column, kind in columns:
            value = f'"{column}"' if kind == "bytea" else f"convert_to(\"{column}\"::text, 'UTF8')"
            cursor.execute(
                f'select count(*) from "{table}" where position(%s in {value}) > 0',  # noqa: S608
                [secret],
            )
            if cursor.fetchone() != (0,):
                found.append(f"{table}.{column}")
    return found


def gone(place: Place, pid: str) -> None:
    """Wait until a process of the workspace has ended."""
    eventually(
        lambda: place.inside(f"test -e /proc/{pid} || echo gone") == "gone",
        what=f"process {pid} has ended",
    )
