"""Every kind of token alone: the shortest one is masked, and with one byte less it is none."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from runs.agent.masking.known_values import SHORTEST_VALUE
from runs.agent.masking.masker import Masker

BODIES = {
    **{f"gh{kind}_": "a" * 20 for kind in "pousr"},
    "github_pat_": "a_" * 10,
    **{
        f"gl{kind}-": "a.-_" * 4
        for kind in ("pat", "dt", "rt", "cbt", "ptt", "ft", "imt", "agent", "soat")
    },
    "sk-": "a-_0" * 4,
    "AKIA": "A0" * 8,
    "ASIA": "A0" * 8,
    "xoxb-": "a-" * 4 + "00",
    "npm_": "a0" * 18,
    "AIza": "a-_0" * 8 + "abc",
    "eyJ": "a-_0Zz.eyJ" + "a.-_",
}
"""What each head is followed by at least."""
LONGEST_VISIBLE = 11 + 12


def masked(text: str) -> str:
    """Return a text as it is recorded."""
    return Masker([]).mask(text.encode()).decode()


@pytest.mark.parametrize("head", BODIES)
def test_the_shortest_token_of_each_kind_is_masked_as_a_whole(head: str) -> None:
    token = head + BODIES[head]
    assert masked(f"TOKEN={token} ") == f"TOKEN={'*' * len(token)} "
    assert masked(f"{token}\n") == "*" * len(token) + "\n"
    assert masked(f"'{token}'") == "'" + "*" * len(token) + "'"


@pytest.mark.parametrize("head", BODIES)
def test_one_byte_less_is_no_token(head: str) -> None:
    text = f"TOKEN={head}{BODIES[head][:-1]} "
    assert masked(text) == text


def test_each_part_of_a_web_token_has_its_least_length() -> None:
    text = "TOKEN=eyJ" + "a-_0Z" + ".eyJa.-_ "
    assert masked(text) == text


@pytest.mark.parametrize(
    ("before", "size", "is_one"),
    [("", 6, True), ("", 5, False), ("-", 4096, True), ("-", 4097, False), ("a", 6, False)],
)
@pytest.mark.parametrize("piece", [1, 7, 1000, 5000])
def test_the_first_part_of_a_web_token_is_neither_too_short_nor_too_long(
    before: str, size: int, is_one: bool, piece: int
) -> None:
    token = f"eyJ{'b' * size}.eyJa.-_"
    expected = "*" * len(token) if is_one else token
    assert in_pieces(f"{before}{token} ", piece) == f"{before}{expected} "


@pytest.mark.parametrize("piece", [7, 1000, 10_000])
def test_of_many_heads_in_a_row_a_web_token_begins_with_the_first_that_is_not_too_far_away(
    piece: int,
) -> None:
    text = "-eyJ" * 1500 + ".eyJabcd "
    first = 6000 - 4096 - 3
    assert text.startswith("eyJ", first)
    assert in_pieces(text, piece) == text[:first] + "*" * (len(text) - first - 1) + " "


def in_pieces(text: str, size: int) -> str:
    """Return a text as it is recorded when it comes in pieces."""
    stream, content = Masker([]).stream(), text.encode()
    shown = [stream.feed(content[at : at + size])[0] for at in range(0, len(content), size)]
    return b"".join([*shown, stream.flush()[0]]).decode()


def tried(action: Callable[[], object]) -> int:
    """How often an expression is tried meanwhile at one place of a text."""
    count = 0

    def note(_frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "c_call" and getattr(argument, "__name__", "") == "match"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("end", ["", ".eyJ", ".eyJabc "])
def test_however_many_web_tokens_seem_to_begin_few_are_tried(end: str) -> None:
    text = ("-eyJ" * 1000 + end).encode() * 4
    stream = Masker([]).stream()
    shown: list[bytes] = []

    def feed() -> None:
        shown.extend(stream.feed(text[at : at + 1000])[0] for at in range(0, len(text), 1000))
        shown.append(stream.flush()[0])

    assert tried(feed) < 100
    assert len(b"".join(shown)) == len(text)


@pytest.mark.parametrize("head", BODIES)
def test_a_token_goes_on_as_long_as_its_bytes_do(head: str) -> None:
    token = head + BODIES[head] + "A0" * 500
    assert masked(f"<{token}>") == "<" + "*" * len(token) + ">"


@pytest.mark.parametrize("before", ["a", "Z", "0", "_"])
@pytest.mark.parametrize("head", BODIES)
def test_in_the_middle_of_a_word_no_token_begins(head: str, before: str) -> None:
    text = f" {before}{head}{BODIES[head]} "
    assert masked(text) == text


@pytest.mark.parametrize("head", BODIES)
def test_behind_what_is_no_part_of_a_name_a_token_begins(head: str) -> None:
    token = head + BODIES[head]
    for before in (".", "-", "/", "=", ":", "\xe9"):
        shown = token if head + before == "sk--" else "*" * len(token)
        assert masked(f"name{before}{token} ") == f"name{before}{shown} "


def test_a_word_with_a_hyphen_before_it_is_no_key() -> None:
    text = " disk-" + BODIES["sk-"]
    assert masked(text) == text
    assert masked(" -sk-" + BODIES["sk-"]) == " -sk-" + BODIES["sk-"]


@pytest.mark.parametrize("head", BODIES)
def test_of_a_token_whose_end_is_still_to_come_a_pause_shows_little(head: str) -> None:
    body = BODIES[head] + "A0" * 10
    stream = Masker([]).stream()
    text = f"x {head}{body}".encode()
    cut = 2 + len(head) + len(BODIES[head]) - 1
    first = stream.feed(text[:cut])[0] + stream.flush()[0]
    rest = stream.feed(text[cut:] + b" end\n")[0] + stream.flush()[0]
    whole = (first + rest).decode()
    assert whole.endswith(" end\n")
    shown = whole.removeprefix("x ").removesuffix(" end\n")
    assert len(shown) == len(text) - 2
    assert shown.rstrip("*") in ("", (head + body)[: len(shown.rstrip("*"))])
    assert len(shown.rstrip("*")) < LONGEST_VISIBLE
    assert shown.endswith("*" * 21)


@pytest.mark.parametrize("value", [b"sixsix", b"s x\xffi="])
def test_a_value_of_six_bytes_is_masked_and_one_of_five_is_not(value: bytes) -> None:
    assert SHORTEST_VALUE == len(value) == 6
    assert Masker([value]).mask(b"a " + value + b" b") == b"a ****** b"
    assert Masker([value[:5]]).mask(b"a " + value + b" b") == b"a " + value + b" b"
    assert (Masker([value]).values, Masker([value[:5]]).values) == (1, 0)


@pytest.mark.parametrize("value", [b"abababab", b"aaaaaaaa", b"aabaabaa"])
def test_every_occurrence_of_a_value_that_overlaps_itself_is_masked(value: bytes) -> None:
    for more in range(1, 6):
        text = value + value[-more:]
        hits = {at for at in range(len(text)) if text[at : at + len(value)] == value}
        covered = {at + each for at in hits for each in range(len(value))}
        expected = bytes(42 if at in covered else byte for at, byte in enumerate(text))
        assert Masker([value]).mask(b"." + text + b".") == b"." + expected + b"."


@pytest.mark.parametrize("scheme", ["Basic", "bearer", "TOKEN", "Digest", "Negotiate"])
@pytest.mark.parametrize("name", ["Authorization", "authorization", "AUTHORIZATION"])
@pytest.mark.parametrize("between", [": ", ":", "=", '": "', "' = '"])
def test_of_a_header_what_follows_the_scheme_is_masked(
    name: str, scheme: str, between: str
) -> None:
    assert masked(f"{name}{between}{scheme} a\n") == f"{name}{between}{scheme} *\n"
    assert masked(f"{name}{between}x,y") == f"{name}{between}*,y"


def test_a_password_of_one_byte_and_one_of_the_longest_is_masked_in_an_address() -> None:
    assert masked("http://a@b") == "http://*@b"
    longest = "a" * 2048
    assert masked(f"http://{longest}@b") == f"http://{'*' * 2048}@b"
    assert masked(f"http://a{longest}@b") == f"http://a{longest}@b"


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED ", "A" * 20])
def test_the_body_of_a_key_is_masked_with_its_first_line(kind: str) -> None:
    text = f"x-----BEGIN {kind}PRIVATE KEY-----\nMIIa+/=\n"
    end = f"-----END {kind}PRIVATE KEY-----"
    assert masked(text + end) == "x" + "*" * (len(text) - 1) + end


def test_a_public_key_passes_unchanged() -> None:
    text = "-----BEGIN PUBLIC KEY-----\nMIIa+/=\n-----END PUBLIC KEY-----"
    assert masked(text) == text


@pytest.mark.parametrize("size", [0, 100, 5000])
@pytest.mark.parametrize("head", BODIES)
def test_a_token_is_found_behind_any_number_of_its_rarest_bytes(head: str, size: int) -> None:
    token = head + BODIES[head]
    for byte in sorted(set(head)):
        text = f"{byte} " * size
        assert masked(f"{text}{token} ") == text + "*" * len(token) + " "


@pytest.mark.parametrize("value", [b"correct horse", b"\xff\x00 zZ@", b"aaaaaa"])
def test_a_value_is_found_behind_any_number_of_its_bytes(value: bytes) -> None:
    for byte in sorted(set(value)):
        for count in range(40):
            text = (bytes([byte]) + b".") * count
            found = Masker([value]).mask(text + value + b".")
            assert found == text + b"*" * len(value.strip()) + b"."
