"""A recording that records nothing: a session without a record goes on just the same."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Union

from .recorded_stream import RecordedStream
from .recording import Recording


class Unrecorded(Recording):
    """Gives out numbers, and forgets everything else."""

    def __init__(self) -> None:
        self._numbers = 0

    @property
    def spool_id(self) -> Optional[str]:
        return None

    @property
    def events(self) -> int:
        return 0

    def flush(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def event(self, kind: int, meta: Dict[str, Any], **members: Any) -> bool:
        return True

    def process_started(
        self, *, argv: Sequence[Union[str, bytes]], cwd: Union[str, bytes], **members: Any
    ) -> int:
        self._numbers += 1
        return self._numbers

    def process_exited(self, number: int, **members: Any) -> None:
        pass

    def stream(self, process: int, stream: int, method: int) -> RecordedStream:
        return _Uncaught()

    def mask_text(self, text: str) -> str:
        return text

    def accepts(self) -> bool:
        return True

    def waiting(self) -> bool:
        return False

    def deadline(self) -> Optional[float]:
        return None

    def tick(self) -> None:
        pass

    def seal(self, reason: str, exit: Optional[Dict[str, Any]]) -> None:
        pass


class _Uncaught(RecordedStream):
    """Only counts."""

    def __init__(self) -> None:
        self.offset = 0

    def feed(self, data: bytes) -> None:
        self.offset += len(data)

    def hide(self, count: int) -> None:
        self.offset += count

    def flush(self) -> None:
        pass

    def close(self, reason: str) -> None:
        pass
