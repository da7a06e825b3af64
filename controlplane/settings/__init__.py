"""Settings of every process, read from the environment here and nowhere else.

Names and defaults are those of the specification ("Limits"); `deploy/README.md` explains each one.
A secret ``NAME`` may also be given as ``NAME_FILE``, the path of a file that holds it. All faults
of the environment are reported at once when a process starts; values that are well-formed but
unwise are system checks (``controlplane.checks``).

Durations carry their unit in the name. ``*_MS`` values are milliseconds.
"""

# Django reads all settings of one module.
# ruff: noqa: F403
from __future__ import annotations

from typing import Any

import dj_database_url

from controlplane.logging import configure_logging
from controlplane.settings.gateways import *
from controlplane.settings.installation import *
from controlplane.settings.installation import (
    LOG_FORMAT,
    LOG_LEVEL,
    SVC_ADMIN_SESSION_MS,
    SVC_MAX_BODY_BYTES,
)
from controlplane.settings.upstream import *
from controlplane.settings.upstream import DATABASE_IDLE_TRANSACTION_TIMEOUT_MS, DATABASE_URL
from controlplane.settings.workers import *
from controlplane.settings.workspace_limits import *
from controlplane.settings_environment import tell_all_faults
from controlplane.settings_fixed import *

tell_all_faults()

DATABASES: dict[str, Any] = {
    "default": {
        **dj_database_url.parse(DATABASE_URL, conn_max_age=60, conn_health_checks=True),
        "ATOMIC_REQUESTS": False,
    }
}
_OPTIONS: dict[str, Any] = DATABASES["default"].setdefault("OPTIONS", {})
_OPTIONS.setdefault("connect_timeout", 5)
# Most statements are small and repeat: PostgreSQL takes longer to plan them than to carry them out.
_OPTIONS.setdefault("server_side_binding", True)
_OPTIONS.setdefault("prepare_threshold", 5)
# A process that stands still, or whose machine is gone, must not keep its locks: the server ends
# a transaction that waits for its client, and a connection whose other end is silent.
_OPTIONS.setdefault(
    "options",
    f"-c idle_in_transaction_session_timeout={DATABASE_IDLE_TRANSACTION_TIMEOUT_MS}"
    " -c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3",
)
DATA_UPLOAD_MAX_MEMORY_SIZE = SVC_MAX_BODY_BYTES
SESSION_COOKIE_AGE = max(1, SVC_ADMIN_SESSION_MS // 1000)

configure_logging(level=LOG_LEVEL, log_format=LOG_FORMAT)
