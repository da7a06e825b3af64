"""Strict JSON within limits."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django.fixtures import Settings

from controlplane.errors import BadRequest, PayloadTooLarge, ValidationFailed
from controlplane.http.parsers import escape_pointer, parse_json

storable = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable,
    lambda inner: st.lists(inner) | st.dictionaries(storable, inner),
)


@hypothesis_settings(derandomize=True, max_examples=200, deadline=None)
@given(values, st.booleans())
def test_every_sound_value_is_read_as_it_is(value: Any, ascii_only: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@hypothesis_settings(derandomize=True, max_examples=300, deadline=None)
@given(st.binary())
def test_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        parse_json(body)
    except BadRequest as refusal:
        assert refusal.status == 400


@pytest.mark.parametrize(
    ("token", "escaped"), [("a", "a"), ("a/b", "a~1b"), ("~", "~0"), ("~1", "~01"), ("", "")]
)
def test_a_token_of_a_pointer_is_escaped(token: str, escaped: str) -> None:
    assert escape_pointer(token) == escaped


def test_every_string_that_cannot_be_stored_is_named() -> None:
    body = {"a/b": ["ok", "\x00", {"~": "\ud800"}], "n\x00": 1}
    with pytest.raises(ValidationFailed) as refusal:
        parse_json(json.dumps(body).encode())
    assert [fault.pointer for fault in refusal.value.errors] == ["/a~1b/1", "/a~1b/2/~0", "/n?"]


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert parse_json(b'"\\ud83d\\ude42"') == "🙂"


def test_the_depth_that_is_allowed_is_read(settings: Settings) -> None:
    settings.SVC_MAX_BODY_DEPTH = 3
    assert parse_json(b'[{"a":[1]}]') == [{"a": [1]}]
    with pytest.raises(BadRequest, match="deeper than 3"):
        parse_json(b'[{"a":[[1]]}]')


def test_the_values_that_are_allowed_are_read(settings: Settings) -> None:
    settings.SVC_MAX_BODY_VALUES = 4
    assert parse_json(b'{"a":[1,",,,,,,"],"b":"\\",,"}') == {"a": [1, ",,,,,,"], "b": '",,'}
    for body in (b"[1,2,3,4,5]", b'{"a":1,"b":[2,3],"c":{"d":4,"e":5}}'):
        with pytest.raises(BadRequest, match="more than 4") as refusal:
            parse_json(body)
        assert refusal.value.code == "body-too-many-values"


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({f"k{index}": 1 for index in range(80_000)}),
        "[" + "1," * 500_000 + "1]",
        "[" * 1_000_000,
        '["' + '\\"' * 500_000,
        '"' * 1_000_000,
    ],
    ids=["keys", "elements", "depth", "an open string", "strings"],
)
def test_what_is_too_much_is_refused_before_it_costs_anything(body: str) -> None:
    began = time.thread_time()
    with pytest.raises(BadRequest):
        parse_json(body.encode())
    assert time.thread_time() - began < 0.5


def test_brackets_in_strings_do_not_count(settings: Settings) -> None:
    settings.SVC_MAX_BODY_DEPTH = 1
    assert parse_json(rb'["[[\"[[", "\\", "{{"]') == ['[["[[', "\\", "{{"]


def test_the_size_that_is_allowed_is_read(settings: Settings) -> None:
    settings.SVC_MAX_BODY_BYTES = 10
    assert parse_json(b'"12345678"') == "12345678"
    with pytest.raises(PayloadTooLarge):
        parse_json(b'"123456789"')
