"""A git server that shows its repositories to the holder of a token only, over real HTTP."""

from __future__ import annotations

import base64
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.scm.conftest import GitHttpHandler


@dataclass
class PrivateGit:
    """The server: what it wants to see, and what it was shown."""

    url: str = ""
    tokens: set[str] = field(default_factory=set)
    """Tokens that open the repositories now."""
    moved_to: str = ""
    """Where a path that begins with ``/away/`` redirects to."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Path and ``Authorization`` of every request, in order."""
    on_request: Callable[[], None] = lambda: None
    """Called while the client waits for its answer."""

    @property
    def shown(self) -> list[str]:
        """What was shown as authorization."""
        return [authorization for _, authorization in self.requests if authorization]


def basic(token: str) -> str:
    """Return the header that a token is shown in."""
    return "Basic " + base64.b64encode(f"x-access-token:{token}".encode()).decode()


class PrivateGitHandler(GitHttpHandler):
    """Everything below ``/`` is for the holders of a token; ``/here`` and ``/away`` redirect."""

    private: PrivateGit

    def do_GET(self) -> None:  # noqa: N802
        authorization = self.headers.get("authorization") or ""
        self.private.requests.append((self.path, authorization))
        self.private.on_request()
        kind, _, rest = self.path.lstrip("/").partition("/")
        if authorization not in {basic(token) for token in self.private.tokens}:
            self._answer(401, WWW_Authenticate='Basic realm="private"')
        elif kind == "here":
            self._answer(301, Location=f"/{rest}")
        elif kind == "away":
            self._answer(301, Location=f"{self.private.moved_to}/{rest}")
        elif kind == "gone":
            self._answer(404)
        else:
            self._backend(self.path, modern=True)

    do_POST = do_GET  # noqa: N815


@contextmanager
def serving_privately(
    root: Path, *tokens: str, certificate: Path | None = None
) -> Iterator[PrivateGit]:
    """Serve the bare repositories of a folder to whoever shows one of the tokens.

    With a file that holds a certificate for ``localhost`` and its key, over HTTPS.
    """
    private = PrivateGit(tokens=set(tokens))
    handler = type(
        "Handler", (PrivateGitHandler,), {"root": root, "requests": [], "private": private}
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    private.url = f"http://127.0.0.1:{server.server_address[1]}"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        private.url = f"https://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield private
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
