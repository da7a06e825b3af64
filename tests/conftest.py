"""Fixtures of the whole suite: real services, isolated per test session."""

from __future__ import annotations

import gc
import json
import os
import signal
import tempfile
import uuid
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from django.conf import settings as django_settings
from django.db import connection
from django.test import Client
from pytest_django.fixtures import Settings
from pytest_django.plugin import DjangoDbBlocker

from controlplane.work import amqp
from tests import tiers
from tests.conformance import assert_described, assert_media_described
from tests.stack import cluster
from tests.stack.sdk_output import read_all_output
from tests.support import queues
from tests.support.empty_tables import quick_flush
from tests.support.left_sessions import end_left_sessions
from tests.support.patient_database import wait_for_connections

OWNER = "usr_test"
JSON_TYPES = {"application/json", "application/problem+json"}
__all__ = ["OWNER", "Answer", "Api"]

# The same examples in every run, however slow the machine is.
hypothesis.settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("suite")

read_all_output()
wait_for_connections()


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the API, already held against its description."""

    status: int
    headers: Any
    content: bytes

    @property
    def body(self) -> Any:
        """The JSON body."""
        return json.loads(self.content)

    @property
    def codes(self) -> dict[str, str]:
        """The code of each fault by where it is."""
        return {
            fault.get("pointer") or fault.get("parameter") or fault.get("header") or "": fault[
                "code"
            ]
            for fault in self.body["errors"]
        }


class Api:
    """A client that checks every answer against ``openapi.json``; ``expect`` checks the status."""

    def __init__(self) -> None:
        self._client = Client(raise_request_exception=False)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        expect: int | None = None,
        raw: bytes | None = None,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send one request; ``raw`` instead of ``body`` sends bytes as they are."""
        data = raw if raw is not None else (b"" if body is None else json.dumps(body).encode())
        response = self._client.generic(
            method, path, data, content_type=content_type, headers=headers or {}
        )
        content = response.content if not response.streaming else response.getvalue()
        answer = Answer(response.status_code, response.headers, content)
        shown = content[:2000].decode("utf-8", "replace")
        if expect is not None:
            assert answer.status == expect, f"{method} {path}: {answer.status} {shown}"
        if method not in {"HEAD", "OPTIONS"}:
            content_type = response.headers.get("content-type", "")
            place = (method, path.split("?")[0], answer.status, content_type)
            if content_type.partition(";")[0] in JSON_TYPES:
                assert_described(*place, json.loads(content))
            elif answer.status not in {204, 304}:  # they have no content
                assert_media_described(*place)
        return answer

    def get(self, path: str, *, expect: int = 200, **kwargs: Any) -> Answer:
        """GET ``path``."""
        return self.request("GET", path, expect=expect, **kwargs)

    def post(self, path: str, body: Any = None, *, expect: int = 202, **kwargs: Any) -> Answer:
        """POST ``body`` to ``path``."""
        return self.request("POST", path, body, expect=expect, **kwargs)

    def patch(self, path: str, body: Any = None, *, expect: int = 200, **kwargs: Any) -> Answer:
        """PATCH ``path`` with ``body``."""
        return self.request("PATCH", path, body, expect=expect, **kwargs)


@pytest.fixture
def api() -> Api:
    """A client of the API."""
    return Api()


@pytest.fixture(scope="session")
def instance_id() -> str:
    """The installation's id of this test session: nothing of another one is touched."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def build_queue(instance_id: str) -> Iterator[str]:
    """A build queue of this test session's own, removed afterwards."""
    name = f"sandbox-image-builds-{instance_id}"
    yield name
    queues.purge_and_delete(django_settings.RABBITMQ_URL, amqp.Topology(name), timeout=60)


@pytest.fixture(scope="session")
def run_queue(instance_id: str) -> Iterator[str]:
    """A run queue of this test session's own, removed afterwards."""
    name = f"workspace-run-executions-{instance_id}"
    yield name
    queues.purge_and_delete(django_settings.RABBITMQ_URL, amqp.Topology(name), timeout=60)


@pytest.fixture(scope="session")
def django_db_setup(
    django_db_setup: None, django_db_keepdb: bool, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """Have the test database emptied quickly after each test, and left by everybody at the end.

    One that is used again lets others in.
    """
    with django_db_blocker.unblock():
        flush = quick_flush()
    with flush:
        yield
    if django_db_keepdb:
        return
    with django_db_blocker.unblock():
        end_left_sessions(connection.settings_dict["NAME"])


@pytest.fixture(autouse=True)
def _isolated(settings: Settings, instance_id: str) -> None:
    """Give the test session its own queues, instance id and quick passwords."""
    settings.SVC_INSTANCE_ID = instance_id
    settings.WORKSPACE_BUILD_QUEUE = f"sandbox-image-builds-{instance_id}"
    settings.WORKSPACE_RUN_QUEUE = f"workspace-run-executions-{instance_id}"
    settings.SVC_NETWORK_GUARD = "external"  # tests of it say what they want
    settings.PASSWORD_HASHERS = ["tests.support.quick_passwords.QuickHasher"]
    settings.WHITENOISE_AUTOREFRESH = True  # else each new client reads all static files


@pytest.fixture
def request_body() -> dict[str, Any]:
    """The smallest sound request that starts a sandbox."""
    return {
        "ownerUserId": OWNER,
        "registryId": "default",
        "repository": f"tests/{uuid.uuid4().hex[:12]}",
        "tag": "latest",
        "spec": {"harness": {"id": "shell"}},
    }


@pytest.fixture
def unreachable_broker(settings: Settings) -> None:
    """Point the application at a port where no broker listens."""
    settings.RABBITMQ_URL = "amqp://nobody:nothing@127.0.0.1:1/"


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory below which a service of another account finds its files.

    pytest's own temporary directories are closed to everyone else.
    """
    with tempfile.TemporaryDirectory(prefix="svc-test-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


def pytest_configure(config: pytest.Config) -> None:
    """Tell the tests' children where they are, whatever started pytest."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    # A shell that starts pytest in the background has it ignore SIGINT, and so its children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not part of this run."""
    if not cluster.where():
        terminalreporter.write_line(tiers.WITHOUT_CLUSTER, yellow=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Mark the tests; one of several processes begins with what takes long.

    The marks are there before pytest selects by them. The order is ours, whatever plugins have made
    of it: pytest-django puts tests that commit last, and with them those that take longest.
    """
    tiers.mark(items)
    tiers.leave_out_kubernetes(config, items)
    yield
    if hasattr(config, "workerinput"):
        tiers.sort(items)
    else:
        tiers.refuse_repeated_ids(item.nodeid for item in items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(ids: list[str]) -> None:
    """Refuse repeated ids here, where it can be said: nobody hears what a worker raises."""
    tiers.refuse_repeated_ids(ids)


def pytest_collection_finish() -> None:
    """Have the collector of garbage never look at the thousands of tests again."""
    gc.collect()
    gc.freeze()
