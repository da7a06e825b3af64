"""Takes secrets out of captured text, and makes captured bytes safe to store and show.

What is a secret is decided in one place, the agent's masking: values that are known, in all their
spellings, and tokens whose shape gives them away. A record keeps its offsets, so the agent writes a
``*`` for each byte; a message is for people, so here each secret becomes one mark. Two things are
stricter than in a record, because nobody needs what is lost: values of four and five bytes are
taken out too, and so is everything between the first and the last line of a private key, since
builders write a prefix of their own before each line.

:func:`redact` works on a whole text, :class:`Redactor` on a stream whose chunks may cut a secret
anywhere, :func:`bounded_tail` turns the end of arbitrary bytes into text for an error message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

from runs.agent.masking.masker import Masker, Spans

MARK = b"[redacted]"

_SHORTEST_SECRET = 4
"""Shorter values are part of ordinary words; taking them out would only tell what they are."""
_SHORTEST_LINE = 8
_LONGEST_HEADING = 64
_KEY_BEGINS = re.compile(rb"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----")
_KEY_BODY = re.compile(rb"(?:[^-]|-(?!----)){0,8192}")
_KEY_ENDS = re.compile(rb"-----END [A-Z ]{0,20}PRIVATE KEY-----")
_KEY_MAY_END = re.compile(rb"-{0,5}|-----E|-----EN|-----END(?: [A-Z ]{0,31}-{0,4})?")

Text = TypeVar("Text", bytes, str)


class _PrivateKeys:
    """Finds private keys in a stream, from their first line to their last.

    A key whose last line does not follow within 8 KiB is left to its shape.
    """

    def __init__(self) -> None:
        self._kept = b""
        self._base = 0

    def feed(self, data: bytes, *, final: bool = False) -> tuple[Spans, int]:
        """Return the keys that are complete now, and the offset up to which that is certain."""
        kept = self._kept + data
        spans: Spans = []
        at = decided = 0
        while begun := _KEY_BEGINS.search(kept, at):
            body = _KEY_BODY.match(kept, begun.end())
            end = body.end() if body else begun.end()
            if ended := _KEY_ENDS.match(kept, end):
                at = ended.end()
                spans.append((self._base + begun.start(), self._base + at))
            elif not final and _KEY_MAY_END.fullmatch(kept, end):
                at = decided = begun.start()
                break
            else:
                at = begun.end()
        else:
            at = max(at, len(kept) - _LONGEST_HEADING)
            decided = len(kept)
        decided += self._base
        self._kept = kept[at:]
        self._base += at
        return spans, decided


class Redactor:
    """Redacts a stream: what :meth:`feed` and :meth:`flush` return together is the redacted whole.

    Only what may turn out to be a secret is held back, so a line appears as soon as it is complete.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        values = [secret.encode("utf-8", "surrogatepass") for secret in secrets]
        masker = Masker(values, shortest=_SHORTEST_SECRET, shortest_line=_SHORTEST_LINE)
        self._stream = masker.stream()
        self._keys = _PrivateKeys()
        # What waits, masked, from the offset `_base` of the stream on.
        self._waiting = b""
        self._base = 0
        self._secret: Spans = []

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be shown now that ``chunk`` is known."""
        return self._shown(self._stream.feed(chunk), self._keys.feed(chunk))

    def flush(self) -> bytes:
        """Return the rest; the stream is over."""
        return self._shown(self._stream.flush(), self._keys.feed(b"", final=True))

    def _shown(self, given: tuple[bytes, Spans], keys: tuple[Spans, int]) -> bytes:
        base = self._base
        self._waiting += given[0]
        until = min(base + len(self._waiting), keys[1])
        shown, at = b"", base
        spans = _joined(self._secret + given[1] + keys[0])
        for start, end in spans:
            if start >= until:
                break
            if start >= base:  # otherwise it has its mark
                shown += self._waiting[at - base : start - base] + MARK
            at = max(at, min(end, until))
        shown += self._waiting[at - base : until - base]
        self._secret = [span for span in spans if span[1] >= until]
        self._waiting = self._waiting[until - base :]
        self._base = until
        return shown


def _joined(spans: Spans) -> Spans:
    """Return the spans in their order; those that touch or overlap become one."""
    joined: Spans = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def redact(data: Text, secrets: Iterable[str] = ()) -> Text:
    """Return ``data`` with every known secret and every token of a known shape replaced."""
    redactor = Redactor(secrets)
    if isinstance(data, str):
        whole = data.encode("utf-8", "surrogatepass")
        return (redactor.feed(whole) + redactor.flush()).decode("utf-8", "surrogatepass")
    return redactor.feed(data) + redactor.flush()


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
