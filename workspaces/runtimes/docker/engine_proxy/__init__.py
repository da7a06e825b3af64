"""A restricting proxy of the Docker Engine, for processes that must not have all of it.

Whoever may open the engine's socket is root on its machine. The run worker and the SSH gateway need
a small part: to start the recorder agent in a workspace of this installation, to talk to it, and to
read a workspace's files. The proxy listens on a socket of its own and lets just that through.

``policy`` decides what a request may be and knows nothing of sockets; ``http_wire`` reads and
writes HTTP; ``server`` puts them together.
"""

from workspaces.runtimes.docker.engine_proxy.server import EngineProxy, EngineProxyLimits

__all__ = ["EngineProxy", "EngineProxyLimits"]
