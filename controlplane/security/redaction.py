"""Takes secrets out of captured text, and makes captured bytes safe to store and show.

Two kinds of secret are found: values that are known (also inside base64, percent-encoding and JSON)
and tokens whose shape gives them away. :func:`redact` works on a whole text, :class:`Redactor` on a
stream whose chunks may cut a secret anywhere, :func:`bounded_tail` turns the end of arbitrary bytes
into text for an error message.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import TypeVar
from urllib.parse import quote, quote_plus

MARK = b"[redacted]"

_LEFT_IN_URLS = ("", "/", "!'()*", ";,/?:@&=+$#!'()*")
"""RFC 3986; Python's ``quote``; ``encodeURIComponent``; ``encodeURI``."""
_ESCAPE = re.compile("%[0-9A-F]{2}")

_SHORTEST_SECRET = 4
"""Shorter values are part of ordinary words; taking them out would only tell what they are."""
_LONGEST_HELD = 8 * 1024
"""A stream holds back about this much at most; a longer token is not recognised as one."""

# An alternative replaces its whole match, except for the part in a group named "keep".
_SHAPES = rb"""
    (?<![A-Za-z0-9_]) (?: gh[pousr]_[A-Za-z0-9]{20,255} | github_pat_[A-Za-z0-9_]{20,255} )
  | (?<![A-Za-z0-9_-]) gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat)-[A-Za-z0-9_.-]{16,300}
  | (?<![A-Za-z0-9_-]) sk-[A-Za-z0-9_-]{16,512}
  | (?<![A-Za-z0-9]) (?: AKIA | ASIA ) [A-Z0-9]{16} (?![A-Za-z0-9])
  | (?<![A-Za-z0-9_-]) xox[a-z]-[A-Za-z0-9-]{10,255}
  | (?<![A-Za-z0-9_-]) npm_[A-Za-z0-9]{36} (?![A-Za-z0-9])
  | (?<![A-Za-z0-9_-]) AIza[A-Za-z0-9_-]{35} (?![A-Za-z0-9_-])
  | (?<![A-Za-z0-9_-]) eyJ[A-Za-z0-9_-]{6,4096} \. eyJ[A-Za-z0-9_-]{4,4096} \. [A-Za-z0-9_-]{0,2048}
  | (?P<keep> \b (?i:authorization) \\?["']? [ \t]* [:=] [ \t]* \\?["']?
        (?: (?i:basic|bearer|token|digest|negotiate) [ \t]+ )? ) [^\s"',;\\]{1,4096}
  | (?<=://) [^\s/?\#@"'<>]{1,2048} (?=@)
  | -----BEGIN[ ][A-Z ]{0,20}PRIVATE[ ]KEY----- (?: [^-] | -(?!----) ){0,8192}
    -----END[ ][A-Z ]{0,20}PRIVATE[ ]KEY-----
"""
_HINTS = (
    *(b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_", b"gl", b"sk-", b"AKIA", b"ASIA"),
    *(b"xox", b"npm_", b"AIza", b"eyJ", b"uthorization", b"UTHORIZATION", b"://", b"PRIVATE KEY"),
)
"""A text without any of these holds no token; finding that out is far quicker than the pattern."""

_TOKEN_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~+/=:%-"
# Headers and keys whose end has not arrived; each is looked for only after its last beginning.
_BEGINS_NOTHING = re.compile(rb"[0-9.+%~=/]*")
_OPEN_HEADER = re.compile(
    rb"""authorization \\?["']? [ \t]*
        (?: [:=] [ \t]* \\?["']? (?: [a-z]+ [ \t]+ )? [^\s"',;]* )? \Z""",
    re.VERBOSE | re.IGNORECASE,
)
_OPEN_USERINFO = re.compile(rb"""://[^\s/?\#@"'<>]*\Z""")
_OPEN_KEY = re.compile(rb"-----BEGIN (?!.*-----END [A-Z ]{0,20}PRIVATE KEY-----)", re.DOTALL)

Text = TypeVar("Text", bytes, str)


def _base64_forms(value: bytes) -> Iterator[bytes]:
    """Yield what ``value`` looks like inside longer base64, at each of the three alignments."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + value)
        # The first characters mix with what stands before, the last ones with what follows.
        first = (0, 2, 3)[before]
        last = len(encoded) - (0, 3, 2)[(before + len(value)) % 3]
        core = encoded[first:last]
        if len(core) >= 2 * _SHORTEST_SECRET:
            yield core
            yield core.translate(bytes.maketrans(b"+/", b"-_"))


def _wrapped_forms(value: bytes) -> Iterator[bytes]:
    """Yield the lines in which programs print the base64 of a longer ``value``."""
    encoded = base64.b64encode(value)
    for width in (64, 76):
        for start in range(0, len(encoded) if len(encoded) > width else 0, width):
            line = encoded[start : start + width]
            # The last characters mix with what follows, such as the end of a line.
            line = line if start + width < len(encoded) else line[:-4]
            if len(line) >= 2 * _SHORTEST_SECRET:
                yield line


def _percent_forms(value: bytes) -> Iterator[bytes]:
    """Yield what ``value`` looks like in URLs: programs differ in what they leave as it is."""
    for kept in _LEFT_IN_URLS:
        for escaped in (quote(value, safe=kept), quote_plus(value, safe=kept)):
            yield escaped.encode()
            yield _ESCAPE.sub(lambda match: match[0].lower(), escaped).encode()


def _forms(secret: str) -> Iterator[bytes]:
    """Yield every spelling of a secret that is looked for."""
    secret = secret.strip()
    values = {secret, *(line.strip() for line in secret.splitlines() if len(line.strip()) >= 16)}
    for text in values:
        raw = text.encode("utf-8", "surrogatepass")
        if len(raw) < _SHORTEST_SECRET:
            continue
        yield raw
        yield from _percent_forms(raw)
        for ascii_only in (True, False):
            escaped = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
            yield escaped.encode("utf-8", "surrogatepass")
            yield escaped.replace("/", "\\/").encode("utf-8", "surrogatepass")
        yield from _base64_forms(raw)
        yield from _wrapped_forms(raw)


class _Finder:
    """Finds known values and token shapes in bytes."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self.known = sorted({form for secret in secrets for form in _forms(secret)}, key=len)[::-1]
        known = b"|".join(re.escape(form) for form in self.known)
        # The pattern is verbose, and re.escape escapes white space, so a value keeps its own.
        self._pattern = re.compile((known + b"|" if known else b"") + _SHAPES, re.VERBOSE)

    def replace(self, data: bytes) -> bytes:
        """Return ``data`` with a mark in the place of each secret."""
        if not self._may_match(data):
            return data
        return self._pattern.sub(lambda match: (match["keep"] or b"") + MARK, data)

    def _may_match(self, data: bytes) -> bool:
        return any(hint in data for hint in _HINTS) or any(form in data for form in self.known)

    def decided(self, data: bytes) -> int:
        """Return how many first bytes of ``data`` no later byte can make part of a secret."""
        word = len(data.rstrip(_TOKEN_BYTES))
        # Dots and numbers alone begin no token: a progress bar is shown as it grows.
        cut = len(data) if _BEGINS_NOTHING.fullmatch(data, word) else word
        lowered = data[-_LONGEST_HELD:].lower()
        offset = len(data) - len(lowered)
        for begin, still_open in (
            (lowered.rfind(b"authorization"), _OPEN_HEADER),
            (lowered.rfind(b"://"), _OPEN_USERINFO),
            (lowered.rfind(b"-----begin "), _OPEN_KEY),
        ):
            if begin >= 0 and still_open.match(data, offset + begin):
                cut = min(cut, offset + begin)
        cut = max(cut, offset)
        for form in self.known:
            first = data.find(form[:1], max(0, len(data) - len(form) + 1))
            while 0 <= first < cut:
                if form.startswith(data[first:]):
                    cut = first
                    break
                first = data.find(form[:1], first + 1)
        if self._may_match(data):
            for match in self._pattern.finditer(data):
                if match.start() < cut < match.end():
                    cut = match.start()
        return cut


def redact(data: Text, secrets: Iterable[str] = ()) -> Text:
    """Return ``data`` with every known secret and every token of a known shape replaced."""
    finder = _Finder(secrets)
    if isinstance(data, str):
        return finder.replace(data.encode("utf-8", "surrogatepass")).decode(
            "utf-8", "surrogatepass"
        )
    return finder.replace(data)


class Redactor:
    """Redacts a stream: what :meth:`feed` and :meth:`flush` return together is the redacted whole.

    Only what may turn out to be a secret is held back, so a line appears as soon as it is complete.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._finder = _Finder(secrets)
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be shown now that ``chunk`` is known."""
        data = self._held + chunk
        cut = self._finder.decided(data)
        self._held = data[cut:]
        return self._finder.replace(data[:cut])

    def flush(self) -> bytes:
        """Return the rest; the stream is over."""
        rest, self._held = self._held, b""
        return self._finder.replace(rest)


_ANSI = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor movements
    rb"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # strings: titles, hyperlinks
    rb"|\x1b[ -/]*[0-~]"  # two-character escapes
    rb"|\x1b"
)
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters except newline and tab, and those that reorder the text around them."""


def bounded_tail(data: bytes, limit: int) -> str:
    """Return the end of ``data`` as text that is safe to store and show.

    At most ``limit`` bytes of UTF-8, a first line that says so when something was cut, no escape
    sequence, no control character except newline and tab, U+FFFD for what is no UTF-8. Redact
    before calling: a cut through a secret leaves a half that nothing recognises any more.
    """
    plain = _ANSI.sub(b"", data).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    text = _UNSAFE.sub("", plain.decode("utf-8", "replace"))
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    mark = f"[{len(encoded)} bytes, shown from near the end]\n"
    room = limit - len(mark)
    if room <= 0:
        return encoded[len(encoded) - limit :].decode("utf-8", "ignore") if limit > 0 else ""
    tail = encoded[-room:]
    line = tail.find(b"\n") + 1
    # A whole first line reads better, unless that costs most of what there is to show.
    if 0 < line <= room // 4:
        tail = tail[line:]
    return mark + tail.decode("utf-8", "ignore")
