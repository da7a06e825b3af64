"""The URLs and refs a source may be named by, checked before they come near a command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from controlplane.errors import JobError

DEFAULT_PORTS = {"https": 443, "http": 80, "git": 9418}
_LONGEST = 2048
_SHAPE = re.compile(
    r"""
    (?P<scheme> https? | git ) ://
    (?: (?P<userinfo> [^/?\#]* ) @ )?
    (?P<host> \[ [0-9A-Fa-f:.]+ \] | [A-Za-z0-9._-]+ )
    (?: : (?P<port> [0-9]{1,5} ) )?
    (?P<path> / [^?\#]* )
    """,
    re.VERBOSE,
)
_FILE = re.compile(r"file://(?:localhost)?(?P<path>/[^?#]*)")
_REF = re.compile(r"[^\x00-\x20\x7f~^:?*\[\\\ud800-\udfff]+")
_FORBIDDEN_IN_REF = re.compile(r"\.\.|@\{|//|/\.|\.lock(?:/|$)|^[-./]|[./]$")
COMMIT_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
SHORT_COMMIT_ID = re.compile(r"[0-9a-f]{4,39}")


class SourceError(JobError):
    """A source cannot be had; ``code`` says why.

    ``source-url-invalid`` the URL is malformed or holds credentials; ``source-url-forbidden`` the
    operator does not allow its scheme or its host; ``source-ref-not-found``; ``source-unreachable``
    nobody answers or there is no repository; ``source-auth-required``; ``source-timed-out``;
    ``source-too-large``; ``source-checkout-failed``; ``source-cancelled``.
    """


@dataclass(frozen=True, slots=True)
class SourceUrl:
    """A URL whose form is sound. ``str()`` gives the text for git and for messages."""

    scheme: str
    host: str
    """Lower case, without the brackets of an IPv6 address; empty for ``file``."""
    port: int
    path: str

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file://{self.path}"
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host_in_url}{port}{self.path}"

    @property
    def host_in_url(self) -> str:
        """The host with brackets where a URL needs them."""
        return f"[{self.host}]" if ":" in self.host else self.host


def parse_url(url: str) -> SourceUrl:
    """Return the parts of ``url`` or raise :class:`SourceError` ``source-url-invalid``.

    Nothing of the URL is repeated in a message before it is known to hold no credentials.
    """
    if len(url) > _LONGEST:
        raise _invalid(f"it is longer than {_LONGEST} characters")
    if re.search(r"[\x00-\x20\x7f\\]", url):
        raise _invalid("it contains whitespace, control characters or backslashes")
    match = _SHAPE.fullmatch(url) or _FILE.fullmatch(url)
    if match is None:
        if "?" in url or "#" in url:
            raise _invalid("it must not have a query or a fragment")
        raise _invalid(
            "it must look like https://host/path; https, http, git and file URLs are understood"
        )
    parts = match.groupdict()
    if parts.get("userinfo") is not None:
        raise _invalid("it must not contain a user name or a password")
    # Characters beyond ASCII are what a browser shows; git and servers want them encoded.
    path = quote(parts["path"], safe="/%:@!$&'()*+,;=~-._")
    if re.search(r"%(?![0-9A-Fa-f]{2})", path) or re.search(
        rb"[\x00-\x1f\x7f]", unquote_to_bytes(path)
    ):
        raise _invalid("its path is not encoded properly")
    scheme = parts.get("scheme", "file")
    if scheme == "file":
        return SourceUrl("file", "", 0, path)
    host = parts["host"].lower().strip("[]")
    port = int(parts["port"] or DEFAULT_PORTS[scheme])
    if not 0 < port < 65536:
        raise _invalid("its port does not exist")
    if ":" not in host and not all(
        re.fullmatch(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", label) for label in host.split(".")
    ):
        raise _invalid("its host name is malformed")
    return SourceUrl(scheme, host, port, path)


def _invalid(why: str) -> SourceError:
    return SourceError("source-url-invalid", f"The source URL is not valid: {why}.")


def is_ref(ref: str) -> bool:
    """Whether ``ref`` follows git's rules for names (``git check-ref-format``) and is no option."""
    return (
        len(ref) <= 1024
        and _REF.fullmatch(ref) is not None
        and _FORBIDDEN_IN_REF.search(ref) is None
        and ref != "@"
    )
