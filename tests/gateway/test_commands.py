"""Commands through the gateway, with OpenSSH's client and an agent that behaves."""

from __future__ import annotations

import hashlib
import os

from tests.gateway.conftest import Hall


def test_a_command_has_its_input_outputs_and_exit_code(hall: Hall) -> None:
    done = hall.client().command("cat; echo problem >&2; exit 7", given=b"given\n")
    assert (done.code, done.out, done.err) == (7, b"given\n", "problem\n")


def test_many_bytes_go_both_ways_unchanged(hall: Hall) -> None:
    content = os.urandom(20_000_000)
    echoed = hall.client().command("cat", given=content)
    assert hashlib.sha256(echoed.out).digest() == hashlib.sha256(content).digest()
