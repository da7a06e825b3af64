"""Known secret values: every spelling that is looked for, and looking for them quickly."""

from __future__ import annotations

import base64
import json
import re
from typing import Iterator, List, Match, Sequence, Set, Tuple

SHORTEST_VALUE = 6
"""Shorter values are part of ordinary words; masking them would only tell what they are."""
SHORTEST_LINE = 16
_LINE_WIDTHS = (76, 64)
_SHORTEST_BASE64 = 8
_HEAD_BYTES = 64
_LONGEST_IN_HEX = 4096
# What encoders leave as it is besides unreserved characters: RFC 3986, Python's quote, JavaScript's
# encodeURIComponent and encodeURI.
_KEPT_IN_URLS = (b"", b"/", b"!'()*", b";,/?:@&=+$#!'()*")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")
# Measured, in µs for 32 KiB: one search for one value, and a look at each aligned word.
_SEARCH_COST = 4
_WORDS_COST = {8: 400, 4: 760}
# Of text, logs and programs; every other byte is rarer.
_FROM_COMMON_TO_RARE = (
    b" \netsraoni201dcml/hpufw.68:73-45Tbk,`9\"|gv_yENO)(I[]qFGZ=SAxR;PCDL'WMj>H#U{}BKz*VY$Q+XJ%"
)
_MOST_HITS = 16


class Verbatim(bytes):
    """A value of which no other spelling is looked for."""


class Sign:
    """Bytes that are looked for by the rarest one of them, which most texts do not have at all.

    A search for one byte costs a hundredth of one for a few.
    """

    __slots__ = ("_at", "_rarest", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._at = max(range(min(len(text), _HEAD_BYTES)), key=lambda at: _rarity(text[at]))
        self._rarest = text[self._at]

    def may_stand(self, data: bytes, start: int = 0) -> bool:
        """Whether it may stand in `data` at or after `start`.

        False is certain. True is not, where too many of its rarest byte stand before.
        """
        hit = data.find(self._rarest, start + self._at)
        for _ in range(_MOST_HITS):
            if hit < 0 or data.startswith(self.text, hit - self._at):
                return hit >= 0
            hit = data.find(self._rarest, hit + 1)
        return hit >= 0


class KnownValues:
    """Finds values and their other spellings in bytes.

    Values shorter than `shortest` are not looked for, nor lines of base64 below `shortest_line`.
    """

    def __init__(
        self,
        secrets: Sequence[bytes],
        shortest: int = SHORTEST_VALUE,
        shortest_line: int = SHORTEST_LINE,
    ) -> None:
        values = {value for secret in secrets for value in _values(secret, shortest)}
        forms = {form for value in values for form in _forms(value, shortest_line)}
        forms |= {bytes(secret) for secret in secrets if isinstance(secret, Verbatim)}
        self.forms = sorted(forms, key=len)
        self._word_bytes, self._stride = _sampling(self.forms)
        least = _shortest_sampled(self._word_bytes, self._stride)
        sampled = [form for form in self.forms if self._stride and len(form) >= least]
        self._searched = [
            (form, Sign(form)) for form in self.forms[: len(self.forms) - len(sampled)]
        ]
        self._words = self._words_of(sampled)
        self.longest = max(map(len, self.forms), default=0)
        """Of all spellings."""
        self._heads = {form[:end] for form in self.forms for end in _head_ends(form)}
        self._long = [form for form in self.forms if len(form) > _HEAD_BYTES]

    def _words_of(self, forms: Sequence[bytes]) -> Set[int]:
        size = self._word_bytes
        return {
            _number(form[at : at + size]) for form in forms for at in range(len(form) - size + 1)
        }

    def spans(self, data: bytes) -> List[Tuple[int, int]]:
        """Every occurrence of every form, overlapping ones too, in no particular order."""
        if not self._may_hold(data):
            return []
        found = []
        for form in self.forms:
            start = data.find(form)
            while start >= 0:
                found.append((start, start + len(form)))
                start = data.find(form, start + 1)
        return found

    def undecided(self, data: bytes) -> int:
        """Where the longest end of `data` begins that later bytes may make a form."""
        size = len(data)
        cut = size
        for form in self._long:
            start = data.find(form[:_HEAD_BYTES], max(0, size - len(form) + 1), cut + _HEAD_BYTES)
            while 0 <= start < cut:
                if form.startswith(data[start:]):
                    cut = start
                start = data.find(form[:_HEAD_BYTES], start + 1)
        for start in range(max(0, size - min(self.longest, _HEAD_BYTES)), cut):
            if data[start:] in self._heads:
                return start
        return cut

    def _may_hold(self, data: bytes) -> bool:
        """Whether any form may be there; never wrong about data that holds one.

        Of a long form every word at one of `stride` places in a row is known, so it is enough to
        look at each word that stands at a multiple of `stride` words: their number does not depend
        on how many values there are.
        """
        if any(sign.may_stand(data) and form in data for form, sign in self._searched):
            return True
        if not self._words:
            return False
        whole = len(data) // self._word_bytes * self._word_bytes
        words = memoryview(data)[:whole].cast("Q" if self._word_bytes == 8 else "I")
        return not self._words.isdisjoint(words[:: self._stride].tolist())


def _sampling(forms: Sequence[bytes]) -> Tuple[int, int]:
    """The size of words and every how many of them to look at; stride 0: search for each form."""
    best = (len(forms) * _SEARCH_COST, 8, 0)
    for word_bytes, cost in _WORDS_COST.items():
        for stride in range(1, 9):
            least = _shortest_sampled(word_bytes, stride)
            shorter = sum(len(form) < least for form in forms)
            best = min(best, (shorter * _SEARCH_COST + cost // stride, word_bytes, stride))
    return best[1], best[2]


def _shortest_sampled(word_bytes: int, stride: int) -> int:
    """From which length on a form has a whole one of every `stride` aligned words."""
    return word_bytes * (stride + 1) - 1


def _rarity(byte: int) -> int:
    place = _FROM_COMMON_TO_RARE.find(byte)
    return len(_FROM_COMMON_TO_RARE) if place < 0 else place


def _number(word: bytes) -> int:
    return memoryview(word).cast("Q" if len(word) == 8 else "I")[0]


def _head_ends(form: bytes) -> range:
    return range(1, min(len(form), _HEAD_BYTES + 1))


def _values(secret: bytes, shortest: int) -> Iterator[bytes]:
    """The secret, and each long line of it: a terminal ends lines in its own way."""
    if isinstance(secret, Verbatim):
        return
    whole = secret.strip()
    if len(whole) >= shortest:
        yield whole
    for line in whole.splitlines():
        if len(line.strip()) >= SHORTEST_LINE:
            yield line.strip()


def _forms(value: bytes, shortest_line: int) -> Iterator[bytes]:
    """How the value looks as it is, in URLs, JSON, the words of a shell, base64 and hex."""
    yield value
    if not _UNRESERVED.issuperset(value):
        yield from _percent_forms(value)
        yield from _json_forms(value)
        yield from _shell_forms(value)
    yield from _base64_forms(value)
    yield from base64_lines(value, shortest_line)
    if len(value) <= _LONGEST_IN_HEX:
        yield value.hex().encode()
        yield value.hex().upper().encode()


def _upper(match: Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]


def _lower(match: Match[bytes]) -> bytes:
    return b"%%%02x" % match[0][0]


def _percent_forms(value: bytes) -> Iterator[bytes]:
    for kept in _KEPT_IN_URLS:
        special = re.compile(rb"[^A-Za-z0-9_.~" + re.escape(kept) + rb"-]")
        for digits in (_upper, _lower):
            escaped = special.sub(digits, value)
            yield escaped
            yield escaped.replace(b"%20", b"+")


def _json_forms(value: bytes) -> Iterator[bytes]:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return
    for ascii_only in (True, False):
        escaped = json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode()
        yield escaped
        yield escaped.replace(b"/", rb"\/")


def _shell_forms(value: bytes) -> Iterator[bytes]:
    """Inside single quotes in two ways, inside double quotes, and without any."""
    yield value.replace(b"'", rb"'\''")
    yield value.replace(b"'", b"'\"'\"'")
    yield re.sub(rb'([$`"\\])', rb"\\\1", value)
    yield re.sub(rb"([^A-Za-z0-9_./:=@%+,\x80-\xff-])", rb"\\\1", value)


def base64_lines(value: bytes, shortest: int = SHORTEST_LINE) -> Iterator[bytes]:
    """The lines that `base64` and `openssl` print of a long value; short last ones are left out."""
    encoded = base64.b64encode(value)
    for width in _LINE_WIDTHS if len(encoded) > min(_LINE_WIDTHS) else ():
        for start in range(0, len(encoded), width):
            # The last characters mix with a line break that may follow the value.
            line = encoded[start : min(start + width, len(encoded) - 4)]
            if len(line) >= shortest:
                yield line


def _base64_forms(value: bytes) -> Iterator[bytes]:
    """What the value looks like inside longer base64, at each of the three alignments."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + value)
        # The first characters mix with what stands before, the last ones with what follows.
        core = encoded[(0, 2, 3)[before] : len(encoded) - (0, 3, 2)[(before + len(value)) % 3]]
        if len(core) >= _SHORTEST_BASE64:
            yield core
            yield core.replace(b"+", b"-").replace(b"/", b"_")
