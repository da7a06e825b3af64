"""What can go wrong with a WebSocket, whichever library carries it."""

from __future__ import annotations

import json
from typing import Any


class Closed(Exception):
    """The connection is over, or could not be made."""


class Refused(Exception):
    """The service answered with something else than a WebSocket."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.document: Any
        try:
            self.document = json.loads(body)
        except ValueError:
            told = f"HTTP {status} from something that is not the service"
            self.document = {"detail": told}


NEEDED = "being attached needs websockets: pip install 'controlplane-client[attach]'"
MOST_BYTES = 16 * 1024 * 1024
