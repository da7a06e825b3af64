"""Everything real at once: API, PostgreSQL, RabbitMQ, registry, engine and a build worker.

One worker serves all tests of a module, because starting one takes longer than most of them, and
rows stay until the module's end, because the worker looks at them all the time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.test import override_settings
from pytest_django.plugin import DjangoDbBlocker

from controlplane.work.models import Heartbeat
from tests.scm.conftest import GitHttpHandler
from tests.stack.service import GitServer, Stack, remove_all
from tests.stack.worker_process import WorkerProcess, eventually


@pytest.fixture(scope="module")
def transactional_db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Committed rows, as pytest-django's fixture of this name, but for a whole module."""
    with django_db_blocker.unblock():
        yield
        assert connection.settings_dict["NAME"].startswith("test_")
        call_command("flush", verbosity=0, interactive=False)
        connections.close_all()


@pytest.fixture(scope="module")
def stack(
    transactional_db: None,
    instance_id: str,
    build_queue: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    """The service with a running worker; afterwards nothing of it is left."""
    with stack_of(instance_id, build_queue, tmp_path_factory.mktemp("worker")) as whole:
        yield whole


@contextlib.contextmanager
def stack_of(instance_id: str, build_queue: str, folder: Path, **told: str) -> Iterator[Stack]:
    """The service with a worker that is ``told`` some settings beside the rest."""
    with override_settings(SVC_INSTANCE_ID=instance_id, WORKSPACE_BUILD_QUEUE=build_queue):
        worker = WorkerProcess(
            folder / "worker.log",
            SVC_SOURCE_ALLOW_FILE="true",
            SVC_SOURCE_ALLOW_PRIVATE="true",
            max_jobs=None,
            **{"SVC_DATA_DIR": str(folder / "data"), **told},
        )
        whole = Stack(worker)
        try:
            eventually(
                Heartbeat.objects.exists, what=f"a worker's heartbeat\n{worker.told[-4000:]}"
            )
            yield whole
        finally:
            worker.stop()
            remove_all(whole.engine, instance_id)
            whole.engine.close()


@pytest.fixture(scope="module")
def git_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitServer]:
    """A git server on the loopback interface."""
    folder = tmp_path_factory.mktemp("repositories")
    handler = type("Handler", (GitHttpHandler,), {"root": folder, "requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield GitServer(f"http://127.0.0.1:{server.server_address[1]}", folder, {})
    server.shutdown()
    server.block_on_close = False
    server.server_close()
    thread.join()
