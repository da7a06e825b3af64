"""Tokens that give themselves away by their shape: where they are, and where one may have begun.

A shape is written once, as a row of parts (which bytes, how many of them). Two expressions follow
from it: one finds the token, the other tells whether the end of what has arrived so far may be the
beginning of one. Every part but the last is bounded, so no beginning is longer than 8 KiB.

Tokens of a kind begin alike. Only where such a head stands is looked closer, so that text without
tokens costs a few searches for plain bytes, and a start of the agent compiles no expression.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import (
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Pattern,
    Sequence,
    Tuple,
    Union,
)

from .known_values import Sign

_WORD_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_NAME_BYTES = _WORD_BYTES[:-2]
_SEGMENT_MEMBERS = _NAME_BYTES + b"-"
_NEXT_SEGMENT = b".eyJ"
_COLON = ord(":")
_USER_INFO_BYTES = 2048
_SEGMENT_BYTES = 4096
_LEAST_SEGMENT_BYTES = 6
_LEAST_REST_BYTES = 4
_SHORT_BYTES = 4096
_FEW_BYTES = 3
_RUN_TABLE = bytes(ord("w") if byte in _WORD_BYTES else ord(" ") for byte in range(256))
_RUN = b"w" * 10
"""Every token begins with so many bytes of words in a row, but the user of an address."""
_MOST_RUNS = 64
_TELLING_BYTES = 12
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
        if self.least == self.most == 1:
            return self.member
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
_WEB_TOKEN = _Shape(
    (),
    (
        *("eyJ", _WORD._replace(least=_LEAST_SEGMENT_BYTES, most=_SEGMENT_BYTES), ".eyJ"),
        _Part("[A-Za-z0-9_.-]", _LEAST_REST_BYTES, None),
    ),
)
# Neither control characters nor what is no UTF-8: binary data is full of what is nearly an address.
_USER_INFO_MEMBER = "[^\\x00-\\x20\\x7f\\xc0\\xc1\\xf5-\\xff/?#@\"'<>]"
_USER_INFO = _Shape(("://",), (_Part(_USER_INFO_MEMBER, 1, _USER_INFO_BYTES),), ("@",))
_KEY_BEGINS: _Row = ("-----BEGIN ", _Part("[A-Z ]", 0, 20), "PRIVATE KEY-----")
_KEY_BODY = _Part("[A-Za-z0-9+/=\\s\\\\]", 1, None)
_BREAK = _Part("(?:[\\r\\n]|\\\\[rn])", 1, 2)
_ENCRYPTED: _Row = (
    *(_BREAK, "Proc-Type: 4,ENCRYPTED", _BREAK, "DEK-Info: "),
    *(_Part("[A-Z0-9-]", 1, 24), ","),
)


def _headers(name: str) -> Iterator[_Shape]:
    field = (name, _QUOTE, _BLANK, _Part("[:=]"), _BLANK, _QUOTE)
    for scheme in ("basic", "bearer", "token", "digest", "negotiate"):
        yield _Shape((*field, *_in_any_case(scheme), _BLANK._replace(least=1)), (_VALUE,))
    yield _Shape(field, (_VALUE,))


class Found(NamedTuple):
    """A token: where it begins, the masked range, and how it may go on when the text ends in it."""

    begin: int
    start: int
    end: int
    continued: Optional[Pattern[bytes]]


class _Kind:
    """Shapes with the same heads, one of which each token begins with.

    `sign`: bytes of every head, by default all of the only one; without them there is no token.
    `not_after`: bytes that none of them follows; by default a token begins where a word does. Of
    two shapes that begin alike the longer one stands first: the first that fits is taken.
    `shapes`: those, or a header's name.
    """

    def __init__(
        self,
        heads: Sequence[bytes],
        shapes: Union[str, Sequence[_Shape]],
        *,
        not_after: bytes = _NAME_BYTES,
        sign: Optional[bytes] = None,
    ) -> None:
        self.heads = heads
        self._given = shapes
        self._not_after = not_after
        self._sign = Sign(heads[0] if sign is None else sign)

    def has_sign(self, data: bytes) -> bool:
        """Whether there may be a token; False is certain."""
        return self._sign.text in data

    def places(self, data: bytes, start: int) -> Iterable[int]:
        """Where at or after `start` a token may begin."""
        if not self._sign.may_stand(data, start):
            return ()
        # A search for a few bytes costs more than the expression; in short text it is not compiled.
        searches = len(self._sign.text) > _FEW_BYTES or len(data) - start < _SHORT_BYTES
        if searches and data.find(self._sign.text, start) < 0:
            return ()
        if not self._not_after:
            return [match.start() for match in self._token.finditer(data, start)]
        found = (match.start() for match in self._any_head.finditer(data, start))
        return [place for place in found if self.may_stand(data, place)]

    def may_stand(self, data: bytes, place: int) -> bool:
        """Whether what is before allows that a token begins."""
        return not place or data[place - 1] not in self._not_after

    def token(self, data: bytes, place: int) -> Optional[Found]:
        """The token that begins there."""
        match = self._token.match(data, place)
        if match is None:
            return None
        name = match.lastgroup or ""
        end = match.end(name)
        open_end = match.end() == end == len(data)
        continued = _continued(self._shapes[int(name[1:])]) if open_end else None
        return Found(place, match.start(name), end, continued)

    def has_begun(self, data: bytes, place: int, head: bytes) -> bool:
        """Whether what stands there to the end of `data` may become a token with this head."""
        if not self.may_stand(data, place):
            return False
        if len(data) - place < len(head):
            return head.startswith(data[place:])
        return data.startswith(head, place) and self._begun.match(data, place) is not None

    @cached_property
    def _shapes(self) -> Sequence[_Shape]:
        # A header has many, which few workspaces need.
        return tuple(_headers(self._given)) if isinstance(self._given, str) else self._given

    @cached_property
    def _any_head(self) -> Pattern[bytes]:
        return re.compile(b"|".join(map(re.escape, self.heads)))

    @cached_property
    def _token(self) -> Pattern[bytes]:
        found = (_finding(number, shape) for number, shape in enumerate(self._shapes))
        return re.compile("|".join(found).encode())

    @cached_property
    def _begun(self) -> Pattern[bytes]:
        return re.compile("|".join(map(_beginning, self._shapes)).encode())


class _WebTokens(_Kind):
    """What seems to begin one may stand every few bytes, and each may be the end of thousands.

    So they are looked for from where their first segment ends: that is the same for all in a row.
    """

    def places(self, data: bytes, start: int) -> Iterable[int]:
        if not self._sign.may_stand(data, start):
            return ()
        return [
            place
            for end in _occurrences(data, start, _NEXT_SEGMENT)
            if self._goes_on(data, end + len(_NEXT_SEGMENT))
            for place in self._heads_before(data, start, end, _LEAST_SEGMENT_BYTES)
        ]

    def first_begun(self, data: bytes, start: int) -> Optional[int]:
        """Where the first one has begun that later bytes may complete.

        `start`: from there on `data` has only bytes of words.
        """
        size = len(data)
        found = [next(self._heads_before(data, start, size, 0), None)]
        for end in range(max(start, size - len(_NEXT_SEGMENT) - _LEAST_REST_BYTES + 1), size):
            if _NEXT_SEGMENT.startswith(data[end : end + len(_NEXT_SEGMENT)]):
                found.append(next(self._heads_before(data, start, end, _LEAST_SEGMENT_BYTES), None))
        return min((place for place in found if place is not None), default=None)

    def _goes_on(self, data: bytes, at: int) -> bool:
        rest = data[at : at + _LEAST_REST_BYTES]
        return len(rest) == _LEAST_REST_BYTES and not rest.translate(None, _WORD_BYTES)

    def _heads_before(self, data: bytes, start: int, end: int, least: int) -> Iterator[int]:
        """Where at or after `start` a token may begin whose first segment ends there."""
        (head,) = self.heads
        begin = max(start, end - _SEGMENT_BYTES - len(head))
        begin += len(data[begin:end].rstrip(_SEGMENT_MEMBERS))
        for at in _occurrences(data[begin : max(0, end - least)], 0, head):
            if self.may_stand(data, begin + at):
                yield begin + at


def _occurrences(data: bytes, start: int, wanted: bytes) -> Iterator[int]:
    at = data.find(wanted, start)
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)


@lru_cache(maxsize=None)
def _continued(shape: _Shape) -> Optional[Pattern[bytes]]:
    run = list(_parts(shape.masked))[-1]
    return None if run.most is not None else re.compile(f"{run.member}*".encode())


_WEB_TOKENS = _WebTokens((b"eyJ",), (_WEB_TOKEN,))
_IN_ADDRESS = _Kind((b"://",), (_USER_INFO,), not_after=b"")
_KINDS = (
    _Kind(
        (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_"),
        (_Shape((), ("gh", _Part("[pousr]"), "_", _Part("[A-Za-z0-9]", 20, None))),),
        sign=b"gh",
    ),
    _Kind((b"github_pat_",), (_Shape((), ("github_pat_", _Part("[A-Za-z0-9_]", 20, None))),)),
    _Kind(
        tuple(f"gl{kind}-".encode() for kind in _GITLAB_KINDS),
        tuple(
            _Shape((), (f"gl{kind}-", _Part("[A-Za-z0-9_.-]", 16, None))) for kind in _GITLAB_KINDS
        ),
        sign=b"gl",
    ),
    _Kind(
        (b"sk-",), (_Shape((), ("sk-", _WORD._replace(least=16))),), not_after=_NAME_BYTES + b"-"
    ),
    _Kind(
        (b"AKIA", b"ASIA"),
        (_Shape((), ("A", _Part("[KS]"), "IA", _Part("[A-Z0-9]", 16, None))),),
        sign=b"IA",
    ),
    _Kind((b"xox",), (_Shape((), ("xox", _Part("[a-z]"), "-", _Part("[A-Za-z0-9-]", 10, None))),)),
    _Kind((b"npm_",), (_Shape((), ("npm_", _Part("[A-Za-z0-9]", 36, None))),)),
    _Kind((b"AIza",), (_Shape((), ("AIza", _WORD._replace(least=35))),)),
    _WEB_TOKENS,
    _Kind((b"authorization",), "authorization"),
    _Kind((b"Authorization",), "Authorization"),
    _Kind((b"AUTHORIZATION",), "AUTHORIZATION"),
    _IN_ADDRESS,
    _Kind(
        (b"-----BEGIN ",),
        (_Shape((), (*_KEY_BEGINS, *_ENCRYPTED, _KEY_BODY)), _Shape((), (*_KEY_BEGINS, _KEY_BODY))),
        not_after=b"",
    ),
)
_BY_FIRST_BYTE: Dict[int, List[Tuple[bytes, _Kind]]] = {}
for _kind in _KINDS:
    for _head in _kind.heads:
        _BY_FIRST_BYTE.setdefault(_head[0], []).append((_head, _kind))


def _kinds_in(data: bytes, start: int) -> Sequence[_Kind]:
    """Those of which a token may begin in `data` at or after `start`.

    In binary data every byte is frequent, so that each kind would be searched for at length; but
    long runs of bytes of words are rare there.
    """
    if b"\0" not in data or data.isascii():
        return _KINDS
    marks = data.translate(_RUN_TABLE)
    runs: List[bytes] = []
    begin = marks.find(_RUN, start)
    while begin >= 0:
        if len(runs) == _MOST_RUNS:
            return _KINDS
        end = marks.find(b" ", begin)
        # One byte more: the head of a key ends with a blank.
        runs.append(data[begin : end + 1 if end >= 0 else None])
        begin = marks.find(_RUN, end) if end >= 0 else -1
    joined = b"\0".join(runs)
    return [kind for kind in _KINDS if kind.has_sign(data if kind is _IN_ADDRESS else joined)]


class Tokens:
    """The tokens in `data` at or after `start`, from left to right."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        places = [
            (place, kind) for kind in _kinds_in(data, start) for place in kind.places(data, start)
        ]
        places.sort(key=itemgetter(0), reverse=True)
        self._slots = places

    def next(self, start: int) -> Optional[Found]:
        """The first one at or after `start`, which is never less than before."""
        while self._slots:
            place, kind = self._slots[-1]
            found = kind.token(self._data, place) if place >= start else None
            if found is not None:
                return found
            self._slots.pop()
        return None


def undecided(data: bytes, start: int) -> Optional[int]:
    """Where, at or after `start`, something begins that later bytes may make a token."""
    size = len(data)
    found = []
    tail = data[max(start, size - _HEADING_BYTES) :]
    reach = max(start, size - 2 * _SEGMENT_BYTES)
    word = reach + len(data[reach:].rstrip(_WORD_BYTES))
    if b"-----BEGIN" in tail or b"uthorization" in tail or b"UTHORIZATION" in tail:
        found.append(_first_begun(data, size - len(tail)))
    elif word < size:
        found.append(_first_begun(data, max(word, size - _PREFIX_BYTES)))
    found.append(_WEB_TOKENS.first_begun(data, word))
    links = [data.rfind(b"://", max(start, size - _USER_INFO_BYTES - 3))]
    if tail.endswith((b":", b":/")):
        links.append(data.rfind(b":", start))
    found += [link for link in links if link >= 0 and _has_begun(data, link)]
    return min((place for place in found if place is not None), default=None)


def telling(data: bytes, start: int) -> Optional[int]:
    """Where, at or after `start`, the end of `data` begins that is more than a third of a token."""
    size = len(data)
    reach = max(start, size - 2 * _SEGMENT_BYTES)
    word = reach + len(data[reach:].rstrip(_WORD_BYTES))
    near = range(max(word, size - _PREFIX_BYTES), size - _TELLING_BYTES)
    web_token = _WEB_TOKENS.first_begun(data, word)
    places = near if web_token is None else (web_token, *near)
    return min((place for place in places if _is_telling(data, place)), default=None)


def _is_telling(data: bytes, place: int) -> bool:
    body = len(data) - place - _TELLING_BYTES
    candidates = _BY_FIRST_BYTE.get(data[place], ())
    return any(len(head) <= body and kind.has_begun(data, place, head) for head, kind in candidates)


def _first_begun(data: bytes, start: int) -> Optional[int]:
    # The user of an address may be longer than what is looked at here.
    places = (place for place in range(start, len(data)) if data[place] != _COLON)
    return next((place for place in places if _has_begun(data, place)), None)


def _has_begun(data: bytes, place: int) -> bool:
    candidates = _BY_FIRST_BYTE.get(data[place], ())
    return any(kind.has_begun(data, place, head) for head, kind in candidates)
