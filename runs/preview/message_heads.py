"""What is passed on of the head of a message, and what the other side is told beside it."""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.security.preview_links import TOKEN_HEADER
from runs.preview.admission import Admission
from runs.preview.http_messages import RawHeaders

_HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"transfer-encoding"),
        *(b"upgrade", b"trailer", b"http2-settings", b"proxy-authorization"),
        b"proxy-authenticate",
    }
)
_FROM_US = frozenset(
    {
        *(b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"),
        *(b"x-forwarded-port", b"x-real-ip", TOKEN_HEADER.encode()),
    }
)
_NOT_FOR_BROWSERS = frozenset({b"alt-svc", b"clear-site-data", b"nel", b"report-to"})
"""These reach beyond one answer: they would have the browser ask somebody else in the name of this
origin, or forget the cookies of the domain that all previews share."""
_NOT_PASSED_ON = _HOP_BY_HOP | _FROM_US
_NOT_PASSED_BACK = _HOP_BY_HOP | _NOT_FOR_BROWSERS
_NOBODY: frozenset[bytes] = frozenset()


def request_headers(
    given: Iterable[tuple[bytes, bytes]],
    admission: Admission,
    *,
    owner_header: str,
    upgrade: bytes,
    forwarded: dict[bytes, bytes],
) -> RawHeaders:
    """Return the head that the workspace's server gets: without the gateway's own secrets.

    ``upgrade`` is the protocol that is asked for, if that is passed on.
    """
    headers = list(given)
    left_out = _NOT_PASSED_ON | _named_in_connection(headers)
    if owner_header:
        left_out |= {owner_header.encode()}
    passed: RawHeaders = []
    for name, value in headers:
        if name in left_out:
            continue
        if name == b"cookie":
            kept = [
                each.strip()
                for each in value.decode("latin-1").split(";")
                if each.strip() and not admission.is_ours(each)
            ]
            if not kept:
                continue
            value = "; ".join(kept).encode("latin-1")
        passed.append((name, value))
    passed += forwarded.items()
    # A length beside the chunks that were sent would be a second opinion on where a body ends.
    if any(name == b"transfer-encoding" for name, _ in headers):
        passed = [pair for pair in passed if pair[0] != b"content-length"]
        passed.append((b"transfer-encoding", b"chunked"))
    if upgrade:
        passed += [(b"connection", b"upgrade"), (b"upgrade", upgrade)]
    return passed


def response_headers(
    given: Iterable[tuple[bytes, bytes]], admission: Admission, *, upgrade: bytes = b""
) -> RawHeaders:
    """Return the head that the client gets: cookies stay with the preview that set them."""
    headers = list(given)
    left_out = _NOT_PASSED_BACK | _named_in_connection(headers)
    chunked = any(name == b"transfer-encoding" for name, _ in headers)
    if chunked:
        left_out |= {b"content-length"}
    passed: RawHeaders = []
    for name, value in headers:
        if name in left_out:
            continue
        if name == b"set-cookie":
            parts = value.decode("latin-1").split(";")
            if admission.is_ours(parts[0]):
                continue
            kept = [part for part in parts if part.partition("=")[0].strip().lower() != "domain"]
            value = ";".join(kept).encode("latin-1")
        passed.append((name, value))
    if upgrade:
        passed += [(b"connection", b"upgrade"), (b"upgrade", upgrade)]
    return passed


def page_headers(answered: RawHeaders) -> RawHeaders:
    """Return what a browser is told besides, where the workspace's server has not decided it.

    Previews below one domain are one site to a browser, cookies included: without this, a page of
    one workspace could show another one's in a frame, or hold on to its window.
    """
    told = {name for name, _ in answered}
    policies = [value.lower() for name, value in answered if name == b"content-security-policy"]
    added: RawHeaders = []
    if b"x-frame-options" not in told and not any(b"frame-ancestors" in each for each in policies):
        # Beside another policy it holds as well: a browser keeps to all of them.
        added.append((b"content-security-policy", b"frame-ancestors 'self'"))
    if b"cross-origin-opener-policy" not in told:
        added.append((b"cross-origin-opener-policy", b"same-origin-allow-popups"))
    return added


def _named_in_connection(headers: RawHeaders) -> frozenset[bytes]:
    found = [value for name, value in headers if name == b"connection"]
    if not found:
        return _NOBODY
    return frozenset(word.strip().lower() for value in found for word in value.split(b",")) - {
        b"cookie",
        b"host",
        b"content-length",
    }
