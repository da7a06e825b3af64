# ruff: noqa: N999 - gunicorn reads a file of this name by itself

"""How gunicorn serves the API: a few workers with threads, behind one listening address.

Requests wait for the database and for the broker, not for the processor, so threads carry them; two
processes keep one slow request's Python from holding up everything else. Each thread keeps one
database connection: processes x threads stays far below PostgreSQL's `max_connections`.
"""

from __future__ import annotations

import os
from typing import Any

from controlplane.logging import logging_config

bind = f"{os.environ.get('SVC_BIND_HOST', '127.0.0.1')}:{os.environ.get('SVC_API_PORT', '4000')}"
worker_class = "gthread"
workers = int(os.environ.get("SVC_API_WORKERS", "2"))
threads = int(os.environ.get("SVC_API_THREADS", "8"))
# A thread that waits for an upstream longer than this is stuck; upstream time limits are shorter.
timeout = 60
graceful_timeout = 30
keepalive = 75
# The heartbeat file of each worker: memory where there is some, so that a busy disk kills nobody.
worker_tmp_dir = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
# The application logs every request itself, with its request id.
accesslog = None
errorlog = "-"
# What gunicorn itself says has the same shape; settings that are wrong are told by the settings.
_level = os.environ.get("SVC_LOG_LEVEL", "INFO")
_level = _level if _level in {"DEBUG", "INFO", "WARNING", "ERROR"} else "INFO"
logconfig_dict = logging_config(level=_level, log_format=os.environ.get("SVC_LOG_FORMAT", "auto"))
logconfig_dict["loggers"]["gunicorn.error"] = {"handlers": [], "level": _level, "propagate": True}
logconfig_dict["loggers"]["gunicorn.access"] = {"handlers": [], "level": _level, "propagate": False}
# Nothing of ours listens to gunicorn's control socket.
control_socket_disable = True


def post_worker_init(worker: Any) -> None:
    """Have each process write what it counts for ``/metrics``."""
    from metrics.services import Flusher  # settings are read once the application is loaded

    worker.flusher = Flusher()
    worker.flusher.start()


def worker_exit(server: Any, worker: Any) -> None:
    """Write the counts of the last seconds."""
    flusher = getattr(worker, "flusher", None)
    if flusher is not None:
        flusher.stop()
