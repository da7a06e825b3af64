"""A real gateway process and the real API, before an engine that does what a test says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.test import override_settings
from pytest_django.plugin import DjangoDbBlocker

from tests.conftest import OWNER, Api
from tests.runs.gateway.scripted_engine import CONTAINER, ScriptedEngine
from tests.runs.gateway.timed_gateway import TimedGateway
from tests.runs.ready import ready_attempt
from tests.stack.gateway_process import ApiProcess, GatewayProcess
from tests.stack.ssh import Client, short_folder
from workspaces.models import RuntimeInstance

TOKEN = "the-gateway-of-the-tests"


@dataclass
class Hall:
    """A workspace whose engine is scripted, and the gateway before it."""

    api: Api
    service: ApiProcess
    engine: ScriptedEngine
    folder: Path
    workspace_id: str
    gateway: GatewayProcess
    _rest: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def user(self) -> str:
        """The workspace's user name."""
        return f"ws-{self.workspace_id}"

    def client(
        self,
        owner: str | None = OWNER,
        *,
        user: str | None = None,
        gateway: GatewayProcess | TimedGateway | None = None,
    ) -> Client:
        """Return a client with a new key, registered unless nobody is its owner."""
        at = gateway or self.gateway
        client = Client(
            self._rest.enter_context(short_folder()),
            port=at.port,
            known_host=at.known_host,
            user=user or self.user,
        )
        if owner is not None:
            body = {"ownerUserId": owner, "publicKey": client.public_key}
            self.api.post("/v1/ssh-keys", body, expect=201)
        return client

    def another_gateway(self, **changes: str) -> GatewayProcess:
        """Start a second gateway, until the test is over."""
        gateway = gateway_of(self.folder, self.service, self.engine, **changes)
        self._rest.callback(gateway.stop)
        return gateway

    @contextlib.contextmanager
    def timed_gateway(self, **changes: Any) -> Iterator[TimedGateway]:
        """Run a gateway whose clock the test sets forward."""
        own = {"SSH_GATEWAY_API_BASE_URL": self.service.url, "DOCKER_HOST": self.engine.url}
        own["SSH_GATEWAY_HOST_KEY_PATH"] = str(self.gateway.host_key)
        with override_settings(**own, **changes), TimedGateway.running() as gateway:
            yield gateway

    def close(self) -> None:
        """Forget what was made on the way."""
        self.engine.reset()
        self._rest.close()


def gateway_of(
    folder: Path, service: ApiProcess, engine: ScriptedEngine, **changes: str
) -> GatewayProcess:
    """Start a gateway process before an engine."""
    own = {"WORKSPACE_SSH_GATEWAY_TOKEN": TOKEN, "DOCKER_HOST": engine.url, **changes}
    api = own.pop("SSH_GATEWAY_API_BASE_URL", service.url)
    return GatewayProcess(
        folder / f"gateway-{len(list(folder.glob('gateway-*')))}.log",
        api=api,
        host_key=folder / "ssh" / "key",
        **own,
    )


@pytest.fixture(scope="module")
def transactional_db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Committed rows, as pytest-django's fixture of this name, but for a whole module."""
    with django_db_blocker.unblock():
        yield
        assert connection.settings_dict["NAME"].startswith("test_")
        call_command("flush", verbosity=0, interactive=False)
        connections.close_all()


@pytest.fixture(scope="module")
def whole_hall(transactional_db: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hall]:
    """One gateway for the tests of a module."""
    folder = tmp_path_factory.mktemp("hall")
    with contextlib.ExitStack() as rest:
        rest.enter_context(override_settings(WORKSPACE_SSH_GATEWAY_TOKEN=TOKEN))
        engine = ScriptedEngine(rest.enter_context(short_folder()))
        rest.callback(engine.stop)
        attempt = ready_attempt()
        RuntimeInstance.objects.filter(attempt=attempt).update(
            resource_id=CONTAINER, endpoint=f"docker-exec://{CONTAINER}"
        )
        service = ApiProcess(folder / "api.log", WORKSPACE_SSH_GATEWAY_TOKEN=TOKEN)
        rest.callback(service.stop)
        gateway = gateway_of(folder, service, engine)
        rest.callback(gateway.stop)
        yield Hall(Api(), service, engine, folder, str(attempt.workspace_id), gateway)


@pytest.fixture
def hall(whole_hall: Hall) -> Iterator[Hall]:
    """The gateway of the module, whose engine behaves until a test says otherwise."""
    yield whole_hall
    whole_hall.close()
