"""A source-hosting provider on the loopback interface that checks what it is asked.

It answers as the provider documents its REST API: every JWT is verified (algorithm, signature,
issuer, times), every installation token has the scope it was given and no other, lists have pages.
It remembers each request; what is wrong with one is answered as the provider does, and noted in
``refusals``. A test changes the ``installations``, or lets ``override`` answer instead.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

APP_ID = "4711"
ROOT = "/api/v3"
LEVELS = ("read", "write", "admin")

Behaviour = Callable[[BaseHTTPRequestHandler], None]
"""Answers one request, or does not."""


@cache
def app_key() -> rsa.RSAPrivateKey:
    """The app's key, made once in a process."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: Any) -> str:
    """Return a private key as the provider gives it out."""
    return str(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
    )


@dataclass
class FakeRepository:
    """A repository of the provider."""

    id: int
    name: str
    owner: str = "octo-org"
    default_branch: str = "main"
    private: bool = True
    archived: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.owner}/{self.name}"

    def shown(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "id": self.id,
            "node_id": f"R_{self.id}",
            "name": self.name,
            "full_name": self.full_name,
            "private": self.private,
            "owner": {"login": self.owner, "id": 1, "type": "Organization"},
            "default_branch": self.default_branch,
            "archived": self.archived,
            "pushed_at": "2026-01-02T03:04:05Z",
            "visibility": "private" if self.private else "public",
        }


@dataclass
class FakeInstallation:
    """An installation of the app."""

    id: int
    login: str = "octo-org"
    type: str = "Organization"
    selection: str = "all"
    repositories: list[FakeRepository] = field(default_factory=list)
    permissions: dict[str, str] = field(
        default_factory=lambda: {"contents": "write", "metadata": "read", "issues": "write"}
    )
    suspended_at: str | None = None

    def shown(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "id": self.id,
            "account": {"login": self.login, "id": 9000 + self.id, "type": self.type},
            "app_id": int(APP_ID),
            "target_type": self.type,
            "repository_selection": self.selection,
            "permissions": self.permissions,
            "events": ["push"],
            "suspended_at": self.suspended_at,
            "created_at": "2026-01-02T03:04:05Z",
            "updated_at": "2026-01-02T03:04:05Z",
        }


@dataclass(frozen=True)
class Issued:
    """An installation token that was given out; ``repository_ids`` is ``None`` for all of them."""

    token: str
    installation_id: int
    repository_ids: frozenset[int] | None
    permissions: dict[str, str]
    expires_at: datetime


@dataclass(frozen=True)
class Asked:
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class FakeProvider:
    """The provider; ``url`` is what ``SCM_API_BASE_URL`` names."""

    def __init__(self) -> None:
        self.installations: dict[int, FakeInstallation] = {}
        self.requests: list[Asked] = []
        self.refusals: list[str] = []
        self.issued: list[Issued] = []
        self.override: Callable[[Asked], Behaviour | None] = lambda asked: None
        """Answers instead of the provider when it returns a behaviour."""
        self.after: Callable[[Asked], None] = lambda asked: None
        """Called after each answer was made and before it is sent: the world changes meanwhile."""
        self.with_links = True
        self.largest_page = 100
        self.key = app_key()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet."""

            def handle_any(self) -> None:
                outer._handle(self)

            do_GET = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.host}{ROOT}"

    def close(self) -> None:
        """Stop listening; a request that hangs is not waited for."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def private_key(self) -> str:
        """The app's key as PEM."""
        return pem(self.key)

    def install(self, *names: str, id: int = 7, **members: Any) -> FakeInstallation:
        """Add an installation with repositories of these names, with ids from ``100 * id`` on."""
        owner = members.get("login", "octo-org")
        repositories = [
            FakeRepository(100 * id + number, name, owner) for number, name in enumerate(names)
        ]
        found = FakeInstallation(id, repositories=repositories, **members)
        self.installations[id] = found
        return found

    def allows(self, token: str, full_name: str, *, permission: str = "contents") -> bool:
        """Tell whether a token may read this repository now, as the git server asks."""
        found = next((issued for issued in self.issued if issued.token == token), None)
        if found is None or found.expires_at <= datetime.now(UTC):
            return False
        installation = self.installations.get(found.installation_id)
        if installation is None or installation.suspended_at:
            return False
        return permission in found.permissions and any(
            repository.full_name == full_name
            and (found.repository_ids is None or repository.id in found.repository_ids)
            for repository in installation.repositories
        )

    def paths(self) -> list[str]:
        """Return what was asked: method and path below the API, without the query."""
        return [
            f"{asked.method} {urlsplit(asked.path).path.removeprefix(ROOT)}"
            for asked in self.requests
        ]

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in request.headers.items()}
        asked = Asked(request.command, request.path, headers, body)
        self.requests.append(asked)
        behaviour = self.override(asked)
        if behaviour is not None:
            behaviour(request)
            return
        try:
            status, document, more = self._answer(asked)
        except _Refused as refused:
            self.refusals.append(refused.message)
            status, document, more = refused.status, {"message": refused.message}, {}
        self.after(asked)
        send_json(request, status, document, more)

    def _answer(self, asked: Asked) -> tuple[int, Any, dict[str, str]]:
        url = urlsplit(asked.path)
        if not url.path.startswith(f"{ROOT}/"):
            raise _Refused(404, "Not Found")
        if "user-agent" not in asked.headers:
            raise _Refused(403, "Request forbidden by administrative rules.")
        if asked.headers.get("accept") != "application/vnd.github+json":
            raise _Refused(415, "Unsupported 'Accept' header")
        match url.path.removeprefix(f"{ROOT}/").split("/"), asked.method:
            case ["app", "installations", number], "GET":
                self._require_app(asked)
                return 200, self._installation(number).shown(), {}
            case ["app", "installations", number, "access_tokens"], "POST":
                self._require_app(asked)
                return 201, self._issue(self._installation(number), asked), {}
            case ["installation", "repositories"], "GET":
                return self._list(asked, parse_qs(url.query))
        raise _Refused(404, "Not Found")

    def _installation(self, number: str) -> FakeInstallation:
        found = self.installations.get(int(number)) if number.isdecimal() else None
        if found is None:
            raise _Refused(404, "Not Found")
        return found

    def _require_app(self, asked: Asked) -> None:
        """Refuse what is not a JWT of the app that is good now."""
        scheme, _, token = asked.headers.get("authorization", "").partition(" ")
        parts = token.split(".")
        if scheme != "Bearer" or len(parts) != 3:
            raise _Refused(401, "A JSON web token could not be decoded")
        try:
            header, claims = (json.loads(decoded(part)) for part in parts[:2])
            self.key.public_key().verify(
                decoded(parts[2]),
                f"{parts[0]}.{parts[1]}".encode(),
                padding.PKCS1v15(),
                hashes.SHA256(),
            )
        except (ValueError, InvalidSignature):
            raise _Refused(401, "A JSON web token could not be decoded") from None
        now = time.time()
        if header.get("alg") != "RS256":
            raise _Refused(401, "The algorithm is not RS256")
        if str(claims.get("iss")) != APP_ID:
            raise _Refused(404, "Integration not found")
        if not isinstance(claims.get("iat"), int) or claims["iat"] > now - 30:
            raise _Refused(401, "'Issued at' claim ('iat') must be in the past")
        if not isinstance(claims.get("exp"), int) or claims["exp"] <= now:
            raise _Refused(401, "'Expiration time' claim ('exp') must be in the future")
        if claims["exp"] > now + 600 or claims["exp"] - claims["iat"] > 600:
            raise _Refused(401, "'Expiration time' claim ('exp') is too far in the future")

    def _issue(self, installation: FakeInstallation, asked: Asked) -> dict[str, Any]:
        if installation.suspended_at:
            raise _Refused(403, "This installation has been suspended")
        given = json.loads(asked.body or b"{}")
        permissions = given.get("permissions", installation.permissions)
        for name, level in permissions.items():
            held = installation.permissions.get(name)
            if held is None or LEVELS.index(level) > LEVELS.index(held):
                raise _Refused(422, "The permissions requested are not granted")
        ids = given.get("repository_ids")
        known = {repository.id: repository for repository in installation.repositories}
        if ids and not set(ids) <= set(known):
            raise _Refused(422, "There is at least one repository that does not exist")
        issued = Issued(
            f"ghs_{secrets.token_hex(18)}",
            installation.id,
            frozenset(ids) if ids else None,
            {"metadata": "read", **permissions},
            datetime.now(UTC) + timedelta(hours=1),
        )
        self.issued.append(issued)
        answer: dict[str, Any] = {
            "token": issued.token,
            "expires_at": issued.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "permissions": issued.permissions,
            "repository_selection": "selected" if ids else installation.selection,
        }
        if ids:
            answer["repositories"] = [known[number].shown() for number in ids]
        return answer

    def _list(self, asked: Asked, query: dict[str, list[str]]) -> tuple[int, Any, dict[str, str]]:
        scheme, _, token = asked.headers.get("authorization", "").partition(" ")
        issued = next((found for found in self.issued if found.token == token), None)
        if scheme not in ("Bearer", "token") or issued is None:
            raise _Refused(401, "Bad credentials")
        if "metadata" not in issued.permissions:
            raise _Refused(403, "Resource not accessible by integration")
        installation = self._installation(str(issued.installation_id))
        if installation.suspended_at:
            raise _Refused(403, "This installation has been suspended")
        shown = [
            repository
            for repository in installation.repositories
            if issued.repository_ids is None or repository.id in issued.repository_ids
        ]
        size = min(int(query.get("per_page", ["30"])[0]), self.largest_page)
        number = int(query.get("page", ["1"])[0])
        page = shown[size * (number - 1) : size * number]
        headers = {}
        last = max(1, -(-len(shown) // size))
        links = {"prev": number - 1, "next": number + 1, "last": last, "first": 1}
        if number == 1:
            links.pop("prev"), links.pop("first")
        if number >= last:
            links.pop("next"), links.pop("last")
        if self.with_links and links:
            place = f"{self.url}/installation/repositories?per_page={size}&page="
            headers["Link"] = ", ".join(f'<{place}{to}>; rel="{rel}"' for rel, to in links.items())
        document = {
            "total_count": len(shown),
            "repository_selection": installation.selection,
            "repositories": [repository.shown() for repository in page],
        }
        return 200, document, headers


def decoded(part: str) -> bytes:
    """Return what a part of a JWT holds."""
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def send_json(
    request: BaseHTTPRequestHandler,
    status: int,
    document: object,
    headers: dict[str, str] | None = None,
) -> None:
    """Answer with a JSON document."""
    body = json.dumps(document).encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/json; charset=utf-8")
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


@contextmanager
def running_provider() -> Iterator[FakeProvider]:
    """Run a provider while the block runs."""
    provider = FakeProvider()
    try:
        yield provider
    finally:
        provider.close()


def configure(settings: Any, provider: FakeProvider) -> None:
    """Make ``provider`` the one that the settings name."""
    settings.SCM_APP_ID = APP_ID
    settings.SCM_APP_PRIVATE_KEY = provider.private_key
    settings.SCM_API_BASE_URL = provider.url
