"""HTTP exchanges with another system, within limits: what our clients of such systems stand on.

Promises: an answer arrives as a whole within the read time-out, however it trickles, and everything
a question takes within its deadline; no more of it is read than the limit; no redirect is followed
and no cookie kept, so what the request carries is told to that one host alone; neither proxies nor
accounts of the environment are used.

::

    OutboundError      there is no answer that could be read; `reason` says why

It holds no address and no part of an answer: whoever catches it words what people are told.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_REPEATED_STATUSES = (502, 503, 504)
_PAUSES = (0.1, 0.2)
"""Seconds before a repetition; as many as there are."""


class OutboundReason(StrEnum):
    """Why there is no answer."""

    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed-out"
    TLS_FAILED = "tls-failed"
    TOO_LARGE = "too-large"


class OutboundError(Exception):
    """There is no answer; ``status`` is that of one that was too large, ``cause`` for our log."""

    def __init__(
        self, reason: OutboundReason, detail: str, *, status: int | None = None, cause: str = ""
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.status = status
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Answer:
    """What the other system answered; ``content`` is as it was sent."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Outbound:
    """Sends requests to the system at ``base_url``, which ``upstream`` names in details.

    One may be shared by threads. Time-outs are seconds; ``total_timeout`` is how far away
    :meth:`deadline` is. ``headers`` go with every request.
    """

    def __init__(
        self,
        base_url: str,
        *,
        upstream: str,
        connect_timeout: float,
        read_timeout: float,
        total_timeout: float,
        extra_ca_file: str | None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._upstream = upstream
        self._connect_timeout, self._read_timeout = connect_timeout, read_timeout
        self._total_timeout = total_timeout
        session = _Session()
        # Proxies and netrc of the environment would see or change what is sent.
        session.trust_env = False
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        session.headers.update(headers or {})
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
        """Return the answer, whatever its status; raise :class:`OutboundError` when there is none.

        A system that is just starting is asked again: when nobody listens, and when a reading is
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
            raise self._timed_out()
        try:
            with self._session.request(
                method,
                self.base_url + path,
                headers={**headers, "Accept-Encoding": "identity"},
                data=content,
                timeout=urllib3.Timeout(  # type: ignore[arg-type]  # its stubs know no total
                    connect=self._connect_timeout, read=self._read_timeout, total=left
                ),
                allow_redirects=False,
                stream=True,
            ) as response:
                return Answer(response.status_code, response.headers, self._read(response, limit))
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as exc:
            raise self._as_told(exc) from None

    def _read(self, response: requests.Response, limit: int) -> bytes:
        body = bytearray()
        while chunk := response.raw.read1(16 * 1024, decode_content=False):
            body += chunk
            if len(body) > limit:
                raise OutboundError(
                    OutboundReason.TOO_LARGE,
                    f"The {self._upstream}'s answer is too large.",
                    status=response.status_code,
                )
        return bytes(body)

    def _timed_out(self, cause: str = "") -> OutboundError:
        detail = f"The {self._upstream} did not answer in time."
        return OutboundError(OutboundReason.TIMED_OUT, detail, cause=cause)

    def _as_told(self, exc: Exception) -> Exception:
        """Return what to raise for a failure of the network, without the addresses in its text."""
        root = _root(exc)
        text = root.strerror if isinstance(root, OSError) else ""
        cause = f"{type(root).__name__}: {text}" if text else type(root).__name__
        if isinstance(exc, requests.Timeout | urllib3.exceptions.TimeoutError | TimeoutError):
            return self._timed_out(cause)
        tls = (requests.exceptions.SSLError, urllib3.exceptions.SSLError, ssl.SSLError)
        if isinstance(exc, tls):
            detail = (
                f"The {self._upstream}'s certificate is not trusted."
                if isinstance(root, ssl.SSLCertVerificationError)
                else f"A TLS connection to the {self._upstream} cannot be made."
            )
            return OutboundError(OutboundReason.TLS_FAILED, detail, cause=cause)
        detail = f"The {self._upstream} cannot be reached."
        told = OutboundError(OutboundReason.UNREACHABLE, detail, cause=cause)
        return _NobodyListens(told) if isinstance(root, ConnectionRefusedError) else told


class _NobodyListens(Exception):
    """The connection was refused; ``told`` is what to say when that stays so."""

    def __init__(self, told: OutboundError) -> None:
        super().__init__()
        self.told = told


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
        self._deadline = time.monotonic() + (sock.gettimeout() or 0.0)

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
