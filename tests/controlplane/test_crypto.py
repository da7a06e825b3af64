"""Sealed values open with their key, in their row, and untouched; and not otherwise."""

from __future__ import annotations

import base64
import os

import pytest

from controlplane.security.crypto import KEY_BYTES, SealError, decode_key, seal, unseal

KEY, OTHER = os.urandom(KEY_BYTES), os.urandom(KEY_BYTES)
ROW = "account:1:usr_a"


@pytest.mark.parametrize("plaintext", [b"", b"secret", b"\x00" * 100_000, "ü🙂".encode()])
def test_a_sealed_value_opens(plaintext: bytes) -> None:
    sealed = seal(plaintext, key=KEY, key_id=1, context=ROW)
    assert unseal(sealed, keys={1: KEY}, context=ROW) == plaintext
    assert not plaintext or plaintext not in sealed


def test_a_value_that_an_earlier_release_has_sealed_opens() -> None:
    key = bytes(range(KEY_BYTES))
    sealed = base64.b64decode("AQEAAQIDBAUGBwgJCgs0Z7VpoJGN5vUFxw1fsXhEP8+UBstR")
    assert unseal(sealed, keys={1: key}, context=ROW) == b"secret"


def test_the_same_value_is_never_sealed_alike() -> None:
    assert len({seal(b"secret", key=KEY, key_id=1, context=ROW) for _ in range(100)}) == 100


def test_a_value_of_the_old_key_opens_during_a_rotation() -> None:
    old = seal(b"old", key=KEY, key_id=1, context=ROW)
    new = seal(b"new", key=OTHER, key_id=2, context=ROW)
    keys = {1: KEY, 2: OTHER}
    assert [unseal(one, keys=keys, context=ROW) for one in (old, new)] == [b"old", b"new"]


def test_another_key_does_not_open_it() -> None:
    sealed = seal(b"secret", key=KEY, key_id=1, context=ROW)
    for keys in ({1: OTHER}, {2: KEY}, {}):
        with pytest.raises(SealError):
            unseal(sealed, keys=keys, context=ROW)


def test_a_value_that_was_moved_to_another_row_does_not_open() -> None:
    sealed = seal(b"secret", key=KEY, key_id=1, context=ROW)
    with pytest.raises(SealError):
        unseal(sealed, keys={1: KEY}, context="account:2:usr_a")


def test_a_value_with_any_bit_turned_does_not_open() -> None:
    sealed = seal(b"secret", key=KEY, key_id=1, context=ROW)
    for position in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[position] ^= 1
        with pytest.raises(SealError) as refusal:
            unseal(bytes(damaged), keys={0: KEY, 1: KEY}, context=ROW)
        assert str(refusal.value) == "The sealed value cannot be opened."


def test_a_value_that_was_cut_does_not_open() -> None:
    sealed = seal(b"secret", key=KEY, key_id=1, context=ROW)
    for length in range(len(sealed)):
        with pytest.raises(SealError):
            unseal(sealed[:length], keys={1: KEY}, context=ROW)


def test_a_key_is_base64_of_32_bytes() -> None:
    text = base64.b64encode(KEY).decode()
    assert decode_key(text) == decode_key(text.rstrip("=")) == KEY
    for wrong in ("", "x", "é", base64.b64encode(b"short").decode(), text + text):
        with pytest.raises(SealError):
            decode_key(wrong)
