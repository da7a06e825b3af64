"""Known secret values: every spelling that is looked for, and looking for them quickly."""

from __future__ import annotations

import base64
import json
from typing import Iterator, List, Sequence, Set, Tuple

SHORTEST_VALUE = 6
"""Shorter values are part of ordinary words; masking them would only tell what they are."""
_SHORTEST_LINE = 16
_SHORTEST_BASE64 = 8
_HEAD_BYTES = 64
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")
# Measured, in µs for 32 KiB: one search for one value, and a look at each aligned word.
_SEARCH_COST = 10
_WORDS_COST = {8: 100, 4: 190}


class KnownValues:
    """Finds values and their other spellings in bytes."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        values = {value for secret in secrets for value in _values(secret)}
        self.forms = sorted({form for value in values for form in _forms(value)}, key=len)
        self._word_bytes, self._stride = _sampling(self.forms)
        least = self._word_bytes * (self._stride + 1) - 1
        sampled = [form for form in self.forms if self._stride and len(form) >= least]
        self._searched = self.forms[: len(self.forms) - len(sampled)]
        self._words = self._words_of(sampled)
        self._longest = max(map(len, self.forms), default=0)
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
        for start in range(max(0, size - min(self._longest, _HEAD_BYTES)), cut):
            if data[start:] in self._heads:
                return start
        return cut

    def _may_hold(self, data: bytes) -> bool:
        """Whether any form may be there; never wrong about data that holds one.

        Of a long form every word at one of `stride` places in a row is known, so it is enough to
        look at each word that stands at a multiple of `stride` words: their number does not depend
        on how many values there are.
        """
        if any(form in data for form in self._searched):
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
            least = word_bytes * (stride + 1) - 1
            shorter = sum(len(form) < least for form in forms)
            best = min(best, (shorter * _SEARCH_COST + cost // stride, word_bytes, stride))
    return best[1], best[2]


def _number(word: bytes) -> int:
    return memoryview(word).cast("Q" if len(word) == 8 else "I")[0]


def _head_ends(form: bytes) -> range:
    return range(1, min(len(form), _HEAD_BYTES + 1))


def _values(secret: bytes) -> Iterator[bytes]:
    """The secret, and each long line of it: a terminal ends lines in its own way."""
    whole = secret.strip()
    if len(whole) >= SHORTEST_VALUE:
        yield whole
    for line in whole.splitlines():
        if len(line.strip()) >= _SHORTEST_LINE:
            yield line.strip()


def _forms(value: bytes) -> Iterator[bytes]:
    """How the value looks as it is, in URLs, in JSON and in base64."""
    yield value
    yield from _percent_forms(value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        pass
    else:
        yield json.dumps(text)[1:-1].encode()
        yield json.dumps(text, ensure_ascii=False)[1:-1].encode()
    yield from _base64_forms(value)


def _percent_forms(value: bytes) -> Iterator[bytes]:
    for form in ("%{:02X}", "%{:02x}"):
        escaped = "".join(chr(byte) if byte in _UNRESERVED else form.format(byte) for byte in value)
        yield escaped.encode()
        yield escaped.replace("%20", "+").encode()


def _base64_forms(value: bytes) -> Iterator[bytes]:
    """What the value looks like inside longer base64, at each of the three alignments."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + value)
        # The first characters mix with what stands before, the last ones with what follows.
        core = encoded[(0, 2, 3)[before] : len(encoded) - (0, 3, 2)[(before + len(value)) % 3]]
        if len(core) >= _SHORTEST_BASE64:
            yield core
            yield core.replace(b"+", b"-").replace(b"/", b"_")
