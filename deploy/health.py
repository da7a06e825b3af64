"""Health checks of our containers: exit code 0 when the process there does its work.

``python -m deploy.health NAME``, where NAME is a part of the service (``api``, ``buildworker``,
``engineworkers``, …). No Django, so that asking often costs little. On Kubernetes ``alive`` says
whether a worker's main loop goes on, whatever its database does, and ``api-ready``,
``build-ready`` and ``run-ready`` whether the process has its database; ``database`` asks nothing
else.
"""

from __future__ import annotations

import http.client
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import LiteralString

_SECONDS = 5.0
_ALIVE_SECONDS = 60.0


def main(argv: list[str]) -> int:
    """Check the one that is named; say on standard error what is wrong with it."""
    if len(argv) != 1 or argv[0] not in CHECKS:
        print(f"usage: python -m deploy.health {'|'.join(CHECKS)}", file=sys.stderr)
        return 2
    try:
        fault = CHECKS[argv[0]]()
    except (OSError, http.client.HTTPException) as error:
        fault = f"{type(error).__name__}: {error}"
    if fault:
        print(fault, file=sys.stderr)
    return 1 if fault else 0


def api() -> str:
    """Return what is wrong with the API of this container, if anything."""
    port = int(os.environ.get("SVC_API_PORT", "4000"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    finally:
        connection.close()
    return "" if status == 200 else f"it answers {status}"


def sshgateway() -> str:
    """Return what is wrong with the SSH gateway of this container, if anything."""
    port = int(os.environ.get("SVC_SSH_PORT", "2222"))
    with socket.create_connection(("127.0.0.1", port), timeout=_SECONDS) as connection:
        greeting = connection.recv(64)
    return "" if greeting.startswith(b"SSH-2.0-") else "it does not send a greeting"


def previewgateway() -> str:
    """Return what is wrong with the preview gateway of this container, if anything."""
    if not os.environ.get("SVC_PREVIEW_DOMAIN", "localhost"):
        return ""
    port = int(os.environ.get("SVC_PREVIEW_PORT", "4080"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
    try:
        connection.request("GET", "/", headers={"Host": "health"})
        status = connection.getresponse().status
    finally:
        connection.close()
    # It knows no preview of this name.
    return "" if status == 404 else f"it answers {status}"


def e2bfacade() -> str:
    """Return what is wrong with the E2B facade of this container, if anything."""
    port = int(os.environ.get("SVC_E2B_PORT", "0"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
    try:
        connection.request("GET", "/sandboxes")
        status = connection.getresponse().status
    finally:
        connection.close()
    # This is none of E2B's SDKs.
    return "" if status == 400 else f"it answers {status}"


def buildworker() -> str:
    """Return what is wrong with the build worker of this container, or with its engine proxy."""
    connection = http.client.HTTPConnection("engine-proxy", timeout=_SECONDS)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(_SECONDS)
        connection.sock.connect("/run/svc-engineproxy/engine.sock")
        connection.request("GET", "/_ping")
        status = connection.getresponse().status
    finally:
        connection.close()
    return f"its engine proxy answers {status}" if status != 200 else _heartbeat("build")


def runworker() -> str:
    """Return what is wrong with the run worker of this container, if anything."""
    return _heartbeat("run")


def alive() -> str:
    """Return what is wrong with the loop of the worker of this container, if anything."""
    age = time.time() - Path(os.environ["WORKER_ALIVE_FILE"]).stat().st_mtime
    return "" if age < _ALIVE_SECONDS else f"its loop has not gone on for {age:.0f} s"


def api_ready() -> str:
    """Return what is wrong with the API of this container or its database, if anything."""
    return api() or database()


def build_ready() -> str:
    """Return what is wrong with the build worker of this container; it has no engine proxy."""
    return _heartbeat("build")


def engineworkers() -> str:
    """Return what is wrong with the keeper of this container: it does nothing without a database.

    How its workers are is said by ``manage.py engine list``: one engine that is away is no reason
    to start the workers of the others again.
    """
    return database()


def database() -> str:
    """Return what is wrong with the database, if anything."""
    return _asked("SELECT 1", (), "the database says nothing")


def _heartbeat(kind: str) -> str:
    """Look for the heartbeat that the worker of this container writes into the database."""
    stale = int(os.environ.get("WORKER_HEARTBEAT_STALE_MS", "20000"))
    return _asked(
        "SELECT count(*) FROM work_heartbeat WHERE kind = %s AND hostname = %s"
        " AND seen_at > clock_timestamp() - %s * interval '1 millisecond'",
        (kind, socket.gethostname(), stale),
        "it has written no heartbeat",
    )


def _asked(query: LiteralString, values: tuple[object, ...], fault: str) -> str:
    """Return the fault unless the database answers with anything but nothing."""
    # Only where it is needed, as is the driver itself.
    import psycopg

    try:
        with psycopg.connect(_database_url(), connect_timeout=int(_SECONDS)) as connection:
            found = connection.execute(query, values).fetchone()
    except psycopg.OperationalError as error:
        return f"the database does not answer: {type(error).__name__}"
    return "" if found and found[0] else fault


def _database_url() -> str:
    path = os.environ.get("DATABASE_URL_FILE")
    return Path(path).read_text().strip() if path else os.environ.get("DATABASE_URL", "")


CHECKS: dict[str, Callable[[], str]] = {
    "api": api,
    "buildworker": buildworker,
    "runworker": runworker,
    "engineworkers": engineworkers,
    "sshgateway": sshgateway,
    "previewgateway": previewgateway,
    "e2bfacade": e2bfacade,
    "alive": alive,
    "api-ready": api_ready,
    "database": database,
    "build-ready": build_ready,
    "run-ready": runworker,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
