"""How tests reach a broker that a busy machine keeps from answering at once."""

from __future__ import annotations

from typing import Any

import pika

from tests.support.waiting import LONG_WAIT


def patient_parameters(url: str) -> Any:
    """Return where a broker is, with more time for a connection than the 15 seconds of pika."""
    parameters: Any = pika.URLParameters(url)
    parameters.socket_timeout = parameters.stack_timeout = LONG_WAIT
    return parameters
