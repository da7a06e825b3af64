# ruff: noqa: N999 - gunicorn reads a file of this name by itself

"""How gunicorn serves the API: a few workers with threads, behind one listening address.

Requests wait for the database and for the broker, not for the processor, so threads carry them; two
processes keep one slow request's Python from holding up everything else. Each thread keeps one
database connection, and a process that serves streams has three more for all of them: processes x
threads stays far below PostgreSQL's `max_connections`.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
from typing import Any

# Here, before there is a process that serves: settings that are wrong end gunicorn itself, with all
# that is wrong told once, instead of one process of it after the other.
from controlplane import settings
from controlplane.checks import OPEN_TO_PAGES, open_to_pages
from controlplane.logging import logging_config

_ISOLATION_SECONDS = 180.0  # a build worker that makes its image for this first takes a minute
_host = settings.SVC_BIND_HOST
# The admin is a web page, so it answers where the web is expected too; 0 for nowhere else.
bind = [
    f"[{_host}]:{port}" if ":" in _host else f"{_host}:{port}"
    for port in dict.fromkeys([settings.SVC_API_PORT, settings.SVC_WEB_PORT])
    if port
]
if settings.SVC_ADMIN_PORT not in (0, settings.SVC_API_PORT, settings.SVC_WEB_PORT):
    _host = settings.SVC_ADMIN_BIND_HOST
    _bracketed = f"[{_host}]" if ":" in _host else _host
    bind.append(f"{_bracketed}:{settings.SVC_ADMIN_PORT}")
worker_class = "controlplane.serving.worker.RequestWorker"
# An answer goes through the worker's loop, whatever it is made of.
sendfile = False
workers = settings.SVC_API_WORKERS
# Loaded once, by the process that all others are forked from: they are there at once, after a kill
# too, and share its memory. Nothing is connected and no thread runs until they are forked.
preload_app = True
threads = settings.SVC_API_THREADS
# A thread that waits for an upstream longer than this is stuck; upstream time limits are shorter.
timeout = 60
graceful_timeout = 30
keepalive = 75
# The path of a file takes thrice its bytes in a query. The worker's loop limits the whole head.
limit_request_line = 0
# No header sets what a request asks for: gunicorn would take a prefix of its path from one, sent by
# any client on this machine or behind a proxy that hands all headers on.
forwarder_headers = ""
# The heartbeat file of each worker: memory where there is some, so that a busy disk kills nobody.
worker_tmp_dir = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
# The application logs every request itself, with its request id.
accesslog = None
errorlog = "-"
# What gunicorn itself says has the same shape.
_level = settings.LOG_LEVEL
logconfig_dict = logging_config(level=_level, log_format=settings.LOG_FORMAT)
logconfig_dict["loggers"]["gunicorn.error"] = {"handlers": [], "level": _level, "propagate": True}
logconfig_dict["loggers"]["gunicorn.access"] = {"handlers": [], "level": _level, "propagate": False}
# Nothing of ours listens to gunicorn's control socket.
control_socket_disable = True


def on_starting(server: Any) -> None:
    """End with a clear word when a port is taken, instead of trying again and again."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    if open_to_pages():
        server.log.warning(OPEN_TO_PAGES)
    _refuse_wide_bind()
    if "GUNICORN_FD" in os.environ or "GUNICORN_PID" in os.environ:
        return  # a successor takes the listening sockets over
    for address in server.cfg.address:
        if not isinstance(address, tuple):
            continue
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                place = f"{address[0]} port {address[1]}"
                raise SystemExit(
                    f"Cannot listen on {place}: {error.strerror or error}. SVC_API_PORT, "
                    "SVC_WEB_PORT (0: none) and SVC_ADMIN_PORT say where; deploy/README.md "
                    "explains them."
                ) from None


def _refuse_wide_bind() -> None:
    """End when workspaces would reach what others than this machine reach."""
    # The application is loaded by now; its connection must not be that of those forked from here.
    from django.db import connections

    from workspaces.lifecycle.enforcement.isolation import refuse_wide_bind

    reason = refuse_wide_bind(seconds=_ISOLATION_SECONDS)
    connections.close_all()
    if reason:
        raise SystemExit(reason)


def when_ready(server: Any) -> None:
    """Leave what was loaded alone: looking for garbage in it would copy it for each process."""
    gc.collect()
    gc.freeze()


_PR_SET_PDEATHSIG = 1


def post_fork(server: Any, worker: Any) -> None:
    """Have the kernel end each process with the one that started it, however that one ends.

    An orphan would hold the listening sockets until the last of its connections is over, accept
    nothing there and keep its successor from listening.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker.ppid:
        os._exit(1)  # it ended before the kernel was asked


def post_worker_init(worker: Any) -> None:
    """Remove what killed processes left; have each process write what it counts."""
    from controlplane.folders import sweep_scratch
    from controlplane.metrics.services import (
        Flusher,  # settings are read once the application is loaded
    )

    sweep_scratch()
    worker.flusher = Flusher()
    worker.flusher.start()


def worker_exit(server: Any, worker: Any) -> None:
    """Write the counts of the last seconds."""
    flusher = getattr(worker, "flusher", None)
    if flusher is not None:
        flusher.stop()
