"""What the gateway asks the control plane, over its HTTP API and nothing else.

::

    ControlPlaneError            the message is one line for the person at the client
    ├── Unavailable              it cannot be reached, or does not answer as it should
    ├── Refused                  it says no: ``status`` and ``code`` say why
    └── NotConfigured            it does not take the gateway's token

Answers are not trusted to have the right shape. What changes nothing when it is asked twice is
asked a second time when a connection breaks; a run is never created twice.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import requests
import structlog
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from runs.gateway.texts import one_line

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 15.0
MOST_SECONDS = 25.0
"""An answer that comes drop by drop is given up on, whatever is still coming."""
LOGIN_THREADS = 8
SESSION_THREADS = 16
MAX_ANSWER_BYTES = 1024 * 1024
UNREACHABLE = "the control plane cannot be reached; try again in a moment"
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

T = TypeVar("T")

logger = structlog.get_logger(__name__)


class ControlPlaneError(Exception):
    """The control plane did not do what it was asked for; see the tree above."""


class Unavailable(ControlPlaneError):
    """It cannot be reached, or answers what no control plane does."""


class Refused(ControlPlaneError):
    """It says no."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code


class NotConfigured(ControlPlaneError):
    """Gateway and control plane do not share a token."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose key this is."""

    id: str
    ssh_key_id: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Target:
    """Where a workspace runs."""

    workspace_id: str
    attempt_id: str
    endpoint: str


class ControlPlane:
    """The API, for one event loop. ``close`` ends its threads."""

    def __init__(self, base_url: str, token: str) -> None:
        self._base_url = base_url
        self._token = token
        self._local = threading.local()
        # Whoever is not logged in yet cannot keep the others waiting.
        self._logins = ThreadPoolExecutor(LOGIN_THREADS, "api-login")
        self._sessions = ThreadPoolExecutor(SESSION_THREADS, "api-session")

    def close(self) -> None:
        """Ask nothing any more; what is being asked ends by itself."""
        self._logins.shutdown(wait=False, cancel_futures=True)
        self._sessions.shutdown(wait=False, cancel_futures=True)

    async def resolve_principal(self, algorithm: str, key_base64: str) -> Principal | None:
        """Return whose active key this is; None when it is nobody's."""
        body = {"algo": algorithm, "publicKeyBase64": key_base64}
        asking = functools.partial(
            self._call, "POST", "/v1/ssh-keys/resolve-principal", body, again=True
        )
        try:
            answer = await self._run(self._logins, asking)
        except Refused as error:
            if error.status == 404:
                return None
            raise
        return Principal(
            _text(answer, "principalId", 512),
            _text(answer, "sshKeyId"),
            _text(answer, "fingerprint"),
        )

    async def ssh_target(self, principal: str, workspace_id: str) -> Target:
        """Return where the workspace runs. Raises ``Refused`` with 404 or 409."""
        headers = {"x-svc-principal-id": principal}
        answer = await self._run(
            self._sessions,
            functools.partial(
                self._call,
                "GET",
                f"/v1/workspaces/{workspace_id}/ssh-target",
                headers=headers,
                again=True,
            ),
        )
        runtime = answer.get("runtime")
        if not isinstance(runtime, dict):
            raise _nonsense("runtime")
        return Target(
            _id(answer, "workspaceId"), _id(answer, "attemptId"), _text(runtime, "endpoint", 512)
        )

    async def create_run(self, principal: str, target: Target, *, recorded: bool) -> str:
        """Announce a session; return its run's id. Never asked twice."""
        body = {
            "ownerUserId": principal,
            "workspaceId": target.workspace_id,
            "attemptId": target.attempt_id,
            "harnessId": "ssh",
            "mode": "interactive",
        }
        headers = {} if recorded else {"x-svc-record": "none"}
        asking = functools.partial(self._call, "POST", "/v1/runs", body, headers=headers)
        return _id(await self._run(self._sessions, asking), "runId")

    async def report_run(self, principal: str, run_id: str, status: str, **members: object) -> None:
        """Say that a session is ``running``, or that it was ``cancelled`` or ``completed``."""
        body = {"ownerUserId": principal, "status": status, **members}
        path = f"/v1/runs/{run_id}"
        try:
            await self._run(
                self._sessions,
                functools.partial(self._call, "PATCH", path, body, again=True),
            )
        except Refused as error:
            if error.status != 409 or await self.run_status(principal, run_id) != status:
                raise

    async def run_status(self, principal: str, run_id: str) -> str:
        """Return the status of a session's run."""
        asking = functools.partial(
            self._call,
            "GET",
            f"/v1/runs/{run_id}",
            query={"ownerUserId": principal},
            again=True,
        )
        return _text(await self._run(self._sessions, asking), "status")

    async def _run(self, pool: ThreadPoolExecutor, ask: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(MOST_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(pool, ask)
        except TimeoutError as error:
            raise Unavailable(UNREACHABLE) from error
        except RuntimeError as error:  # the pool is closed
            raise Unavailable("the gateway is being stopped") from error

    # ------------------------------------------------------------------------------- in the threads

    def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        again: bool = False,
    ) -> dict[str, Any]:
        shown = {name: value.encode() for name, value in (headers or {}).items()}
        shown["x-svc-gateway-token"] = self._token.encode()
        for attempt in (1, 2) if again else (2,):
            try:
                with self._session(kept=again).request(
                    method,
                    self._base_url + path,
                    json=body,
                    params=query,
                    headers=shown,
                    timeout=(CONNECT_SECONDS, ANSWER_SECONDS),
                    allow_redirects=False,
                    stream=True,
                ) as response:
                    content = response.raw.read(MAX_ANSWER_BYTES + 1, decode_content=True)
                    return _answer(response.status_code, content)
            except (OSError, HTTPError) as error:
                # A kept connection that was closed meanwhile fails at once, a busy API does not.
                if attempt == 2 or isinstance(error, (requests.Timeout, TimeoutError)):
                    logger.warning("api_unreachable", path=path, error=type(error).__name__)
                    raise Unavailable(UNREACHABLE) from error
        raise AssertionError("unreachable")

    def _session(self, *, kept: bool) -> requests.Session:
        """Return this thread's own session; one that keeps its connection, or one that never."""
        name = "kept" if kept else "fresh"
        session: requests.Session | None = getattr(self._local, name, None)
        if session is None:
            session = requests.Session()
            # No proxies and no .netrc of whoever started the gateway.
            session.trust_env = False
            session.mount("http://", HTTPAdapter(pool_connections=1, pool_maxsize=1))
            session.mount("https://", HTTPAdapter(pool_connections=1, pool_maxsize=1))
            if not kept:
                session.headers["Connection"] = "close"
            setattr(self._local, name, session)
        return session


def _answer(status: int, content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content) if len(content) <= MAX_ANSWER_BYTES else None
    except (ValueError, RecursionError):
        body = None
    if status in (200, 201) and isinstance(body, dict):
        return body
    said = body if isinstance(body, dict) else {}
    code = said.get("code")
    if code in ("gateway-token-invalid", "gateway-token-unset"):
        logger.error("gateway_token_refused", code=code)
        raise NotConfigured(
            "the gateway and the control plane do not have the same token; tell the operator"
        )
    detail = said.get("detail")
    if 400 <= status < 500 and isinstance(code, str) and isinstance(detail, str):
        raise Refused(status, code, one_line(detail.partition("\n")[0], 200))
    logger.warning("api_answer_unusable", status=status)
    raise Unavailable(f"the control plane answers with an error ({status}); try again in a moment")


def _text(answer: dict[str, Any], name: str, limit: int = 128) -> str:
    value = answer.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= limit:
        raise _nonsense(name)
    return value


def _id(answer: dict[str, Any], name: str) -> str:
    value = _text(answer, name)
    if not _ID.fullmatch(value):
        raise _nonsense(name)
    return value


def _nonsense(name: str) -> Unavailable:
    logger.warning("api_answer_unusable", member=name)
    return Unavailable("the control plane sent an invalid answer")
