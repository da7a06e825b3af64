"""Waiting until our own processes answer, and saying what keeps them from it."""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from deploy.services.errors import StartError
from deploy.services.process import tail, wait_until
from deploy.up.addresses import api_url, local_host, ssh_port
from deploy.up.own_processes import OwnProcesses

_READY_SECONDS = 90.0
# A process that has not stayed up by then does not come up by waiting.
_HOPELESS_SECONDS = 15.0
_SOUND = {"RUNNING", "STARTING"}
_IDENTIFICATION = b"SSH-2.0-"
_SHOWN_CHARACTERS = 500


def wait_ready(processes: OwnProcesses, environ: Mapping[str, str]) -> None:
    """Wait until the API says that everything it needs works and that a worker is alive, and the
    SSH gateway greets. Raises StartError with the ends of the logs."""
    started = time.monotonic()
    problem = "no answer"
    failing: dict[str, str] = {}

    def settled() -> bool:
        nonlocal problem, failing
        problem = api_problem(environ) or ssh_problem(environ)
        if not problem:
            return True
        states = processes.states() or {}
        failing = {name: state for name, state in states.items() if state not in _SOUND}
        return bool(failing) and time.monotonic() - started > _HOPELESS_SECONDS

    wait_until(settled, _READY_SECONDS, every=0.3)
    if problem:
        logs = "".join(
            f"\n{name} is {failing.get(name, 'running')}; the end of {processes.log_of(name)}:\n"
            f"{tail(processes.log_of(name), 10)}"
            for name in failing or (processes.states() or {})
        )
        seconds = time.monotonic() - started
        raise StartError(f"Not ready after {seconds:.0f} s: {problem}{logs}")


def api_problem(environ: Mapping[str, str]) -> str:
    """Empty when every part works and a worker is alive, otherwise what `/readyz` says."""
    url = f"{api_url(environ)}/readyz"
    try:
        status, text = _answer(url)
    except (OSError, http.client.HTTPException) as error:
        return f"{url}: {error}"
    try:
        body = json.loads(text)
        checks = body["checks"]
    except (ValueError, KeyError, TypeError):
        # Not of the check itself: the host is not allowed, say, or something else listens there.
        said = " ".join(text.decode("utf-8", "replace").split())
        return f"{url} answers {status}: {said[:_SHOWN_CHARACTERS]}"
    told = "; ".join(
        f"{check['name']}: {check['detail']}"
        for check in checks
        if not check["ok"] and (check["required"] or check["name"] == "buildWorker")
    )
    return f"{url} says {told}" if told else ""


def _answer(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=15) as answer:  # noqa: S310 - our own address
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def ssh_problem(environ: Mapping[str, str]) -> str:
    """Empty when an SSH server greets where the gateway listens, otherwise what was found."""
    address = local_host(environ), ssh_port(environ)
    where = f"the SSH gateway, {address[0]} port {address[1]}"
    try:
        with socket.create_connection(address, timeout=5) as connection:
            greeting = connection.makefile("rb").read(len(_IDENTIFICATION))
    except OSError as error:
        return f"{where}: {error}"
    return "" if greeting == _IDENTIFICATION else f"{where}: answers, but not as an SSH server"
