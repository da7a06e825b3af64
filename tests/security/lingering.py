"""The product's application, which lets clients read a refusal however slow they are."""

from __future__ import annotations

from controlplane.serving import client_loop
from controlplane.wsgi import application
from tests.support.waiting import LONG_WAIT

__all__ = ["application"]

# Who is refused still sends, and has to be let: closing earlier would take the answer back.
client_loop.LINGER_SECONDS = LONG_WAIT
