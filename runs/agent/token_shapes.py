"""Tokens that give themselves away by their shape: where they are, and where one may have begun.

A shape is written once, as a row of parts (which bytes, how many of them). Two expressions follow
from it: one finds the token, the other tells whether the end of what has arrived so far may be the
beginning of one. Every part but the last is bounded, so no beginning is longer than 8 KiB.
"""

from __future__ import annotations

import itertools
import re
from typing import Iterable, Match, NamedTuple, Optional, Pattern, Set, Tuple, Union

_BLOCK_BYTES = 32768
_WORD_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_USER_INFO_BYTES = 2048
_SEGMENT_BYTES = 4096
_PREFIX_BYTES = 64
"""More than a token needs to be told from other text."""
_HEADING_BYTES = 192
"""The same for a key and a header, which tell early that they are there."""


class _Part(NamedTuple):
    """`least` to `most` bytes of a class; without `most` a run that ends where the class ends."""

    member: str
    least: int = 1
    most: Optional[int] = 1

    def pattern(self) -> str:
        return f"{self.member}{{{self.least},{'' if self.most is None else self.most}}}"


_Row = Tuple[Union[str, _Part], ...]


class _Shape(NamedTuple):
    """What stays visible, what is masked, and what has to follow."""

    visible: _Row
    masked: _Row
    following: _Row = ()


def _parts(row: _Row) -> Iterable[_Part]:
    for part in row:
        if isinstance(part, _Part):
            yield part
        else:
            yield from (_Part(re.escape(character)) for character in part)


def _finding(number: int, shape: _Shape) -> str:
    visible, masked, following = ("".join(part.pattern() for part in _parts(row)) for row in shape)
    return f"{visible}(?P<m{number}>{masked}){following}"


def _beginning(shape: _Shape) -> str:
    """Matches, up to the end of the text, what is not yet the shape but may become it."""
    pattern = ""
    for part in reversed(list(_parts(shape.visible + shape.masked + shape.following))):
        few = f"{part.member}{{0,{part.least - 1}}}\\Z"
        # A run that is long enough is a token already, whatever follows.
        pattern = few if part.most is None else f"(?:{few}|{part.pattern()}{pattern})"
    return pattern


def _in_any_case(word: str) -> Tuple[_Part, ...]:
    return tuple(_Part(f"[{character.upper()}{character}]") for character in word)


_BLANK = _Part("[ \\t]", 0, 8)
_QUOTE = _Part("[\\\\\"']", 0, 2)
_VALUE = _Part("[^\\s\"',;\\\\]", 1, None)
_WORD = _Part("[A-Za-z0-9_-]", 1, None)
_GITLAB_KINDS = ("pat", "dt", "rt", "cbt", "ptt", "ft", "imt", "agent", "soat")
_TOKENS = (
    _Shape((), ("gh", _Part("[pousr]"), "_", _Part("[A-Za-z0-9]", 20, None))),
    _Shape((), ("github_pat_", _Part("[A-Za-z0-9_]", 20, None))),
    *(_Shape((), (f"gl{kind}-", _Part("[A-Za-z0-9_.-]", 16, None))) for kind in _GITLAB_KINDS),
    _Shape((), (_Part("(?<!-)s"), "k-", _WORD._replace(least=16))),
    _Shape((), ("A", _Part("[KS]"), "IA", _Part("[A-Z0-9]", 16, None))),
    _Shape((), ("xox", _Part("[a-z]"), "-", _Part("[A-Za-z0-9-]", 10, None))),
    _Shape((), ("npm_", _Part("[A-Za-z0-9]", 36, None))),
    _Shape((), ("AIza", _WORD._replace(least=35))),
)
_WEB_TOKEN = _Shape(
    (),
    ("eyJ", _WORD._replace(least=6, most=_SEGMENT_BYTES), ".eyJ", _Part("[A-Za-z0-9_.-]", 4, None)),
)
_USER_INFO = _Shape(("://",), (_Part("[^\\s/?#@\"'<>]", 1, _USER_INFO_BYTES),), ("@",))
_KEY_BEGINS: _Row = ("-----BEGIN ", _Part("[A-Z ]", 0, 20), "PRIVATE KEY-----")
_KEY_BODY = _Part("[A-Za-z0-9+/=\\s\\\\]", 1, None)
_BREAK = _Part("(?:[\\r\\n]|\\\\[rn])", 1, 2)
_ENCRYPTED: _Row = (
    *(_BREAK, "Proc-Type: 4,ENCRYPTED", _BREAK, "DEK-Info: "),
    *(_Part("[A-Z0-9-]", 1, 24), ","),
)


def _headers() -> Iterable[_Shape]:
    for name in ((_Part("[Aa]"), "uthorization"), ("AUTHORIZATION",)):
        field = (*name, _QUOTE, _BLANK, _Part("[:=]"), _BLANK, _QUOTE)
        for scheme in ("basic", "bearer", "token", "digest", "negotiate"):
            yield _Shape((*field, *_in_any_case(scheme), _BLANK._replace(least=1)), (_VALUE,))
        yield _Shape(field, (_VALUE,))


# Of two that begin alike the longer one stands first: the first that fits is taken.
_HEADERS = tuple(_headers())
_KEYS = (
    _Shape((), (*_KEY_BEGINS, *_ENCRYPTED, _KEY_BODY)),
    _Shape((), (*_KEY_BEGINS, _KEY_BODY)),
)
_WORDS = (*_TOKENS, _WEB_TOKEN, *_HEADERS)
_SHAPES = (*_WORDS, _USER_INFO, *_KEYS)


def _any_of(words: Iterable[str], others: Iterable[str]) -> Pattern[bytes]:
    """Those that begin a word, and those that may begin anywhere."""
    free = f"(?<![A-Za-z0-9_])(?:{'|'.join(words)})"
    return re.compile("|".join((free, *others)).encode())


_FINDING = [_finding(number, shape) for number, shape in enumerate(_SHAPES)]
_FIND = _any_of(_FINDING[: len(_WORDS)], _FINDING[len(_WORDS) :])
_CONTINUED = [
    None if run.most is not None else re.compile(f"{run.member}*".encode())
    for run in (list(_parts(shape.masked))[-1] for shape in _SHAPES)
]
_BEGINS = _any_of(
    [f"(?=[Aaegnsx])(?:{'|'.join(map(_beginning, _WORDS))})"],
    [f"(?=-)(?:{'|'.join(map(_beginning, _KEYS))})"],
)
_USER_INFO_BEGINS = re.compile(_beginning(_USER_INFO).encode())
_USER_INFO_FOUND = re.compile(_finding(0, _USER_INFO).encode())


class Found(NamedTuple):
    """A token: where it begins, the masked range, and how it may go on when the text ends in it."""

    begin: int
    start: int
    end: int
    continued: Optional[Pattern[bytes]]


def find(data: bytes, start: int) -> Optional[Found]:
    """The first token at or after `start`."""
    match = _FIND.search(data, start)
    if match is None:
        return None
    return _found(match)


def _found(match: Match[bytes]) -> Found:
    name = match.lastgroup or ""
    open_end = match.end() == len(match.string) and match.end(name) == match.end()
    continued = _CONTINUED[int(name[1:])] if open_end else None
    return Found(match.start(), match.start(name), match.end(name), continued)


def undecided(data: bytes, start: int) -> Optional[int]:
    """Where, at or after `start`, something begins that later bytes may make a token."""
    size = len(data)
    found = []
    tail = data[max(start, size - _HEADING_BYTES) :]
    reach = max(start, size - 2 * _SEGMENT_BYTES)
    word = reach + len(data[reach:].rstrip(_WORD_BYTES))
    if b"-----BEGIN" in tail or b"uthorization" in tail or b"UTHORIZATION" in tail:
        found.append(_BEGINS.search(data, size - len(tail)))
    elif word < size:
        found.append(_BEGINS.search(data, max(word, size - _PREFIX_BYTES)))
    web_token = data.find(b"eyJ", word)
    if web_token >= 0:
        found.append(_BEGINS.search(data, web_token))
    link = data.rfind(b"://", max(start, size - _USER_INFO_BYTES - 3))
    if link < 0 and tail.endswith((b":", b":/")):
        link = data.rfind(b":", start)
    if link >= 0:
        found.append(_USER_INFO_BEGINS.match(data, link))
    return min((match.start() for match in found if match), default=None)


_LOWER = b"abcdefghijklmnopqrstuvwxyz"
_WORD_MEMBERS = _LOWER + _LOWER.upper() + b"0123456789_-"
_NO_WORD = bytes(set(range(256)) - set(_WORD_MEMBERS))


def _windows(*rows: Tuple[bytes, ...]) -> Set[bytes]:
    return {bytes(window) for row in rows for window in itertools.product(*row)}


# Four bytes that stand in every token of a kind, in two groups whose bytes have little in common
# with ordinary text: names in small letters with a dash, and the others.
_GROUPS = (
    _windows(
        (b"g", b"h", b"pousr", b"_"),
        *(tuple(bytes([byte]) for byte in f"gl{kind}-"[-4:].encode()) for kind in _GITLAB_KINDS),
        (b"p", b"a", b"t", b"_"),
        (b"n", b"p", b"m", b"_"),
        (_NO_WORD, b"s", b"k", b"-"),
        (b"o", b"x", _LOWER, b"-"),
    ),
    _windows(
        (b"A", b"KS", b"I", b"A"),
        (b"A", b"I", b"z", b"a"),
        (b"e", b"y", b"J", _WORD_MEMBERS),
        (b"R", b"I", b"V", b"A"),
        (b"Z", b"A", b"T", b"I"),
    ),
)


def _places() -> bytes:
    """For each byte at which places of which group it may stand, a bit for each."""
    table = bytearray(256)
    for number, windows in enumerate(_GROUPS):
        for window in windows:
            for place, byte in enumerate(window):
                table[byte] |= 1 << (4 * number + place)
    return bytes(table)


_PLACES = _places()
_WINDOWS = _GROUPS[0] | _GROUPS[1]
_FIRST = int.from_bytes(b"\x11" * (_BLOCK_BYTES + 4), "little")
_EITHER = int.from_bytes(b"\x01" * (_BLOCK_BYTES + 4), "little")


def may_hold(data: bytes) -> bool:
    """Whether `data` may hold a token; quick, and seldom wrong about text without one."""
    if b"uthorization" in data or (b"@" in data and _holds_user_info(data)):
        return True
    if not _hints(data):
        return False
    for start in range(0, len(data), _BLOCK_BYTES):
        # The bytes before count too; before everything else as little as a line break does.
        before = data[start - 3 : start] if start else b"\n"
        if _fits(before + data[start : start + _BLOCK_BYTES]):
            return True
    return False


def _hints(data: bytes) -> bool:
    """Whether `data` has a piece of the other tokens: where it has, closer looks are needed.

    What ordinary text is most likely to have comes first, so that it costs such text little; to
    look for one byte before a longer piece costs next to nothing.
    """
    if b"-" in data and (b"gl" in data or b"sk-" in data or (b"x" in data and b"xox" in data)):
        return True
    if b"_" in data and (b"gh" in data or b"pat_" in data or b"npm_" in data):
        return True
    if b"A" in data and (b"IA" in data or b"AI" in data or b"RIVA" in data or b"ZATI" in data):
        return True
    return b"J" in data and b"eyJ" in data


def _holds_user_info(data: bytes) -> bool:
    at = data.find(b"://")
    while at >= 0:
        if _USER_INFO_FOUND.match(data, at):
            return True
        at = data.find(b"://", at + 3)
    return False


def _fits(block: bytes) -> bool:
    """Whether one of the windows is in `block`.

    All places at once: bit n of a byte tells whether it may be the (n+1)th of four, so shifted onto
    each other they leave a bit where four in a row may be a window.
    """
    bits = int.from_bytes(block.translate(_PLACES), "little")
    bits &= bits >> 9
    bits &= bits >> 18
    bits &= _FIRST
    if not bits:
        return False
    places = ((bits | bits >> 4) & _EITHER).to_bytes(len(block), "little")
    at = places.find(b"\x01")
    while at >= 0:
        if block[at : at + 4] in _WINDOWS:
            return True
        at = places.find(b"\x01", at + 1)
    return False
