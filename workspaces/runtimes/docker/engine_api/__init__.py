"""Calls to one Docker Engine on behalf of one installation.

Every call has a time limit, and what goes wrong inside ``EngineConnections.connect`` comes out as a
``LaunchError``.

- :mod:`.kept_connections`  connections that are kept for the next caller
- :mod:`.open_engine`  containers, images and networks that launches of this installation made;
  :mod:`.labels`  how those are known, and which run they are of
- :mod:`.asking`  what the agent in a container answers; :mod:`.outputs`  what a command prints
- :mod:`.own_containers`  containers that run one command for us
- :mod:`.engine_failures`  what the engine refuses or fails to do
"""

from .asking import EXEC_GRACE_SECONDS, STATUS_WAIT_SECONDS, TICK_SECONDS
from .engine_failures import engine_errors, refused
from .kept_connections import MAX_IDLE, MAX_SOCKETS, EngineConnections
from .labels import (
    RUN_LABEL,
    WARM_LABEL,
    container_name,
    is_of_a_launch,
    labels_of,
    launched_as,
    observed,
    run_of,
)
from .open_engine import OLDEST_API, STOP_SECONDS, SUBNET_TRIES, Engine

__all__ = [
    "EXEC_GRACE_SECONDS",
    "MAX_IDLE",
    "MAX_SOCKETS",
    "OLDEST_API",
    "RUN_LABEL",
    "STATUS_WAIT_SECONDS",
    "STOP_SECONDS",
    "SUBNET_TRIES",
    "TICK_SECONDS",
    "WARM_LABEL",
    "Engine",
    "EngineConnections",
    "container_name",
    "engine_errors",
    "is_of_a_launch",
    "labels_of",
    "launched_as",
    "observed",
    "refused",
    "run_of",
]
