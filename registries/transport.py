"""One HTTP exchange with a registry, within its limits.

Promises: an answer arrives as a whole within the read time-out, however it trickles, and everything
a question takes within its deadline; no more of it is read than the limit; no redirect is followed
and no cookie kept, so the account is told to the registry alone.
"""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from registries.errors import Reason, RegistryError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_REPEATED_STATUSES = (502, 503, 504)
_PAUSES = (0.1, 0.2)
"""Seconds before a repetition; as many as there are."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the registry answered; ``content`` is as it was sent."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def expect(self, *statuses: int) -> None:
        """Raise :class:`RegistryError` unless the status is one of these."""
        if self.status in statuses:
            return
        if 300 <= self.status < 400:
            reason, more = Reason.REDIRECTED, " (a redirect, which is not followed)"
        elif self.status in (401, 403):
            reason, more = Reason.UNAUTHORIZED, ": it wants an account, or another one"
        else:
            reason, more = Reason.STATUS, ""
        raise RegistryError(
            f"The registry answered with status {self.status}{more}.",
            reason,
            upstream_status=self.status,
        )


class Transport:
    """Sends requests to the registry at ``base_url``; may be shared by threads.

    Time-outs are seconds. ``total_timeout`` is how far away :meth:`deadline` is.
    """

    def __init__(
        self,
        base_url: str,
        *,
        account: tuple[str, str] | None,
        connect_timeout: float,
        read_timeout: float,
        total_timeout: float,
        extra_ca_file: str | None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._connect_timeout, self._read_timeout = connect_timeout, read_timeout
        self._total_timeout = total_timeout
        session = _Session()
        # Proxies and netrc of the environment would see or change what is sent.
        session.trust_env = False
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        if account:
            # As RFC 7617 has it today; requests itself would encode it as Latin-1.
            encoded = base64.b64encode(":".join(account).encode()).decode()
            session.headers["Authorization"] = f"Basic {encoded}"
        is_tls = self.base_url.lower().startswith("https:")
        adapter = _Adapter(_trust(extra_ca_file) if is_tls else None)
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        self._session = session

    def close(self) -> None:
        """Close the connections that are kept open."""
        self._session.close()

    def deadline(self) -> float:
        """Return when a question that begins now has to be answered, in monotonic time."""
        return time.monotonic() + self._total_timeout

    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        limit: int,
        content: bytes | None = None,
        until: float | None = None,
    ) -> Answer:
        """Return the answer, whatever its status; raise :class:`RegistryError` when there is none.

        A registry that is just starting is asked again: when nobody listens, and when a reading is
        answered with 502, 503 or 504. One that hangs is not waited for three times.
        """
        until = self.deadline() if until is None else until
        pauses = iter(_PAUSES)
        while True:
            pause = next(pauses, None)
            try:
                answer = self._exchange(method, path, headers, content, limit, until)
            except _NobodyListens as exc:
                if pause is None:
                    raise exc.told from None
            else:
                again = method in ("GET", "HEAD") and answer.status in _REPEATED_STATUSES
                if pause is None or not again:
                    return answer
            time.sleep(pause)

    def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: bytes | None,
        limit: int,
        until: float,
    ) -> Answer:
        left = until - time.monotonic()
        if left <= 0:
            raise RegistryError("The registry did not answer in time.", Reason.TIMED_OUT)
        try:
            with self._session.request(
                method,
                self.base_url + path,
                headers={**headers, "Accept-Encoding": "identity"},
                data=content,
                timeout=(min(self._connect_timeout, left), min(self._read_timeout, left)),
                allow_redirects=False,
                stream=True,
            ) as response:
                return Answer(response.status_code, response.headers, _read(response, limit))
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as exc:
            raise _as_told(exc) from None


def _read(response: requests.Response, limit: int) -> bytes:
    body = bytearray()
    while chunk := response.raw.read1(16 * 1024, decode_content=False):
        body += chunk
        if len(body) > limit:
            raise RegistryError(
                "The registry's answer is too large.",
                Reason.TOO_LARGE,
                upstream_status=response.status_code,
            )
    return bytes(body)


class _NobodyListens(Exception):
    """The connection was refused; ``told`` is what to say when that stays so."""

    def __init__(self, told: RegistryError) -> None:
        super().__init__()
        self.told = told


def _as_told(exc: Exception) -> Exception:
    """Return what to raise for a failure of the network, without the addresses in its text."""
    root = _root(exc)
    text = root.strerror if isinstance(root, OSError) else ""
    cause = f"{type(root).__name__}: {text}" if text else type(root).__name__
    if isinstance(exc, requests.Timeout | urllib3.exceptions.TimeoutError | TimeoutError):
        return RegistryError("The registry did not answer in time.", Reason.TIMED_OUT, cause=cause)
    if isinstance(exc, requests.exceptions.SSLError | urllib3.exceptions.SSLError | ssl.SSLError):
        detail = (
            "The registry's certificate is not trusted."
            if isinstance(root, ssl.SSLCertVerificationError)
            else "A TLS connection to the registry cannot be made."
        )
        return RegistryError(detail, Reason.TLS_FAILED, cause=cause)
    told = RegistryError("The registry cannot be reached.", Reason.UNREACHABLE, cause=cause)
    return _NobodyListens(told) if isinstance(root, ConnectionRefusedError) else told


def _root(exc: BaseException) -> BaseException:
    """Return the exception at the bottom; each library on the way wraps in a fashion of its own."""
    for _ in range(10):
        inner = [value for value in exc.args if isinstance(value, BaseException)]
        below = exc.__cause__ or getattr(exc, "reason", None) or (inner[0] if inner else None)
        if not isinstance(below, BaseException):
            break
        exc = below
    return exc


class _Session(requests.Session):
    """A session that does not look at where a redirect leads: that would read its whole body."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return no target."""


def _trust(extra_ca_file: str | None) -> ssl.SSLContext:
    """Return the usual trust and, beside it, the operator's authority."""
    context = ssl.create_default_context()
    if extra_ca_file:
        context.load_verify_locations(extra_ca_file)
    return context


class _UntilDeadline(io.RawIOBase):
    """Reads a socket until its time-out has passed since the beginning, not since the last byte."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = time.monotonic() + (sock.gettimeout() or 0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    """An answer whose status line, headers and body share one time-out."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_UntilDeadline(sock))


class _Connection(HTTPConnection):
    response_class = _TimedResponse


class _TlsConnection(HTTPSConnection):
    response_class = _TimedResponse


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _Adapter(HTTPAdapter):
    """Connects with our trust and our time-outs, and repeats nothing by itself."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        super().__init__(max_retries=0, pool_maxsize=16)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Make the pools."""
        super().init_poolmanager(*args, ssl_context=self._context, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
