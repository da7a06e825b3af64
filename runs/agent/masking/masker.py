"""Takes secrets out of what is recorded: each byte of one becomes a `*`, so offsets stay true.

Two kinds are found: values that are known (also inside base64, percent-encoding and JSON) and
tokens whose shape gives them away. The control plane masks the records of builds with this too, and
`controlplane/security/redaction.py` redacts messages with it.
"""

from __future__ import annotations

import re
from typing import List, Mapping, Optional, Pattern, Protocol, Sequence, Tuple

from . import token_shapes
from .known_values import SHORTEST_LINE, SHORTEST_VALUE, KnownValues

_MASK = b"*"
_SECRET_NAME = re.compile(
    "TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|CREDENTIAL|PRIVATE_?KEY|ACCESS_?KEY",
    re.IGNORECASE,
)

Spans = List[Tuple[int, int]]


def names_secret(name: str) -> bool:
    """Whether what has this name is secret."""
    return _SECRET_NAME.search(name) is not None


def secret_values(env: Mapping[str, str]) -> List[bytes]:
    """The values of variables whose name says that they are secret."""
    values = []
    for name, value in env.items():
        raw = value.encode("utf-8", "surrogateescape")
        if names_secret(name) and len(raw.strip()) >= SHORTEST_VALUE:
            values.append(raw)
    return values


class MoreValues(Protocol):
    """Values that become known while a run is recorded."""

    def changed(self) -> bool:
        """Whether there are others than at the last call."""

    def values(self) -> List[bytes]:
        """All of them."""


class Masker:
    """What is to be masked in one run. Values shorter than `shortest` are not looked for.

    `more` is asked each time before something is masked.
    """

    def __init__(
        self,
        secrets: Sequence[bytes],
        more: Optional[MoreValues] = None,
        *,
        shortest: int = SHORTEST_VALUE,
        shortest_line: int = SHORTEST_LINE,
    ) -> None:
        self._secrets = list(secrets)
        self._more = more
        self.shortest = shortest
        self._shortest_line = shortest_line
        self._take(self._secrets)

    def _take(self, secrets: Sequence[bytes]) -> None:
        self._known = KnownValues(secrets, self.shortest, self._shortest_line)
        self.values = len({secret for secret in secrets if len(secret.strip()) >= self.shortest})

    @property
    def known(self) -> KnownValues:
        """The values that are known now."""
        if self._more is not None and self._more.changed():
            self._take([*self._secrets, *self._more.values()])
        return self._known

    @property
    def longest(self) -> int:
        """How long the longest spelling of a known value is."""
        return self.known.longest

    def mask(self, data: bytes) -> bytes:
        """The same number of bytes with every secret masked; for texts that are complete."""
        stream = self.stream()
        return stream.feed(data)[0] + stream.flush()[0]

    def stream(self) -> MaskingStream:
        """Masks text that arrives in pieces."""
        return MaskingStream(self)


class MaskingStream:
    """Masks a stream whose chunks may cut a secret anywhere.

    Everything given out, by `feed` and `flush` together, is the stream with its secrets masked;
    what is given out does not depend on how the stream was cut. Only what may be the beginning of
    a secret is held back: at most 8 KiB, or as much as the longest known value has. Of a beginning
    that would tell something `flush` gives out the masks, and the rest stays masked all the same.
    """

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        # Offsets of the stream: what is kept begins at `_base`, and the first byte of it that was
        # not given out yet is `_given`. Shapes are looked for from `_resume` on.
        self._kept = b""
        self._base = 0
        self._given = 0
        self._resume = 0
        self._masked: Spans = []
        self._running: Optional[Pattern[bytes]] = None

    @property
    def held(self) -> int:
        """How many bytes wait for the next ones."""
        return self._base + len(self._kept) - self._given

    def feed(self, data: bytes) -> Tuple[bytes, Spans]:
        """What may be given out now, and the masked ranges in it as offsets of the stream."""
        kept = self._kept + data if self._kept else bytes(data)
        known = self._masker.known
        values = known.spans(kept)
        shapes, decided, running = self._shapes(kept, final=False)
        spans = self._merged(values + shapes)
        cut = min(decided, known.undecided(kept))
        given = self._take(kept, self._base + cut, spans)

        self._resume, self._running = self._base + decided, running
        # One byte more, since a token does not begin in the middle of a word.
        keep = max(0, cut - 1)
        self._base += keep
        self._kept = kept[keep:]
        self._masked = [span for span in spans if span[1] > self._base]
        return given

    def flush(self) -> Tuple[bytes, Spans]:
        """The rest, as if nothing followed; when something does follow, it may be fed."""
        if not self.held:
            return b"", []
        kept, known = self._kept, self._masker.known
        spans, *_ = self._shapes(kept, final=True)
        spans += known.spans(kept)
        begun = known.undecided(kept)
        if len(kept) - begun >= self._masker.shortest:
            spans.append((begun, len(kept)))
        told = token_shapes.telling(kept, max(0, self._resume - self._base))
        if told is not None:
            spans.append((told, len(kept)))
        return self._take(kept, self._base + len(kept), self._merged(spans))

    def _shapes(self, kept: bytes, *, final: bool) -> Tuple[Spans, int, Optional[Pattern[bytes]]]:
        """Ranges in `kept`, how far it is decided, and how a token at its end may go on."""
        spans: Spans = []
        at = max(0, self._resume - self._base)
        running = self._running
        if running is not None:
            match = running.match(kept, at)
            end = match.end() if match else at
            spans.append((at, end))
            at = end
            if end == len(kept):
                return spans, at, running
        running = None
        tokens = token_shapes.Tokens(kept, at)
        while True:
            undecided = None if final else token_shapes.undecided(kept, at)
            found = tokens.next(at)
            if found is None or (undecided is not None and undecided <= found.begin):
                return spans, len(kept) if undecided is None else undecided, running
            spans.append((found.start, found.end))
            at, running = found.end, found.continued

    def _merged(self, spans: Spans) -> Spans:
        """With those of earlier, as sorted offsets of the stream without overlaps."""
        shifted = [(start + self._base, end + self._base) for start, end in spans]
        merged: Spans = []
        for start, end in sorted(self._masked + shifted):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            elif end > start:
                merged.append((start, end))
        return merged

    def _take(self, kept: bytes, until: int, spans: Spans) -> Tuple[bytes, Spans]:
        start, until = self._given, max(until, self._given)
        self._given = until
        inside = [
            (max(span[0], start), min(span[1], until))
            for span in spans
            if span[0] < until and span[1] > start
        ]
        given = kept[start - self._base : until - self._base]
        if not inside:
            return given, []
        masked = bytearray(given)
        for first, last in inside:
            masked[first - start : last - start] = _MASK * (last - first)
        return bytes(masked), inside
