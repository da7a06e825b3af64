"""Secrets do not survive redaction, however they are spelled or cut; tails are safe to show."""

from __future__ import annotations

import base64
import json
import re
import time
from itertools import pairwise
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.security.redaction import Redactor, bounded_tail, redact

SECRET = "pässword with/odd+chars?=&%"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
TOKENS = [
    "ghp_" + "a1B2c3D4e5" * 4,
    "ghs_" + "a1B2c3D4e5" * 4,
    "github_pat_" + "11ABCDEFG0" * 8,
    "glpat-" + "x9Yz-12345_abcdefghi",
    "sk-ant-api03-" + "Ab1-_" * 18,
    "sk-proj-" + "Ab1x" * 12,
    "AKIA" + "IOSFODNN7EXAMPLE",
    "xoxb-" + "123456789012-abcdefABCDEF",
    JWT,
]


@pytest.mark.parametrize(
    "spelled",
    [
        SECRET,
        quote(SECRET, safe=""),
        re.sub("%..", lambda match: match[0].lower(), quote(SECRET, safe="")),
        quote(SECRET),
        quote_plus(SECRET),
        quote_plus(SECRET, safe="/"),
        quote(SECRET, safe="!'()*"),
        quote(SECRET, safe=";,/?:@&=+$#!'()*"),
        json.dumps(SECRET).replace("/", "\\/"),
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        base64.b64encode(SECRET.encode()).decode(),
        base64.b64encode(b"u:" + SECRET.encode()).decode(),
        base64.b64encode(b"x:" + SECRET.encode() + b"\n").decode(),
        base64.b64encode(b"usr:" + SECRET.encode() + b"..").decode(),
        base64.urlsafe_b64encode(b"user:" + SECRET.encode()).decode(),
    ],
)
def test_a_known_secret_is_taken_out_in_every_spelling(spelled: str) -> None:
    text = redact(f"before {spelled} after", [SECRET])
    assert "[redacted]" in text
    assert text.startswith("before ")
    assert text.endswith(" after")
    # Only the characters that base64 shares with the neighbours of the secret may be left.
    assert len(text) - len("before [redacted] after") <= 12


def test_a_long_secret_is_taken_out_of_base64_that_is_wrapped() -> None:
    secret = "".join(f"{number:03}" for number in range(60))
    for text in (secret, f"{secret}\n"):
        encoded = base64.b64encode(text.encode()).decode()
        for width in (64, 76):
            lines = [encoded[at : at + width] for at in range(0, len(encoded), width)]
            left = redact("\n".join(lines), [secret]).replace("[redacted]", "")
            assert len(left.replace("\n", "")) <= 8, left


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_is_known_by_its_shape(token: str) -> None:
    assert redact(f"token={token}\n") == "token=[redacted]\n"
    assert redact(f'{{"token":"{token}"}}'.encode()) == b'{"token":"[redacted]"}'


def test_headers_and_url_userinfo_lose_their_values_and_keep_their_names() -> None:
    assert redact("Authorization: Basic dXNlcjpwYXNz\n") == "Authorization: Basic [redacted]\n"
    assert redact("authorization=abc.def end") == "authorization=[redacted] end"
    assert redact('-H "Proxy-Authorization: Bearer abc"') == (
        '-H "Proxy-Authorization: Bearer [redacted]"'
    )
    assert redact('{\\"authorization\\": \\"Bearer abc\\"}') == (
        '{\\"authorization\\": \\"Bearer [redacted]\\"}'
    )
    assert redact("https://joe:s3cr3t@host/x?y=@z") == "https://[redacted]@host/x?y=@z"


def test_every_line_of_a_private_key_is_taken_out_even_between_other_text() -> None:
    body = base64.b64encode(bytes(range(120))).decode()
    key = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body}\n-----END OPENSSH PRIVATE KEY-----\n"
    assert redact(f"a\n{key}b") == "a\n[redacted]\nb"
    prefixed = "".join(f"#7 0.1 {line}\n" for line in key.splitlines())
    assert body not in redact(prefixed, [key])


@pytest.mark.parametrize("shown", [SECRET.encode().hex(), SECRET.encode().hex().upper()])
def test_a_known_secret_is_taken_out_in_hex(shown: str) -> None:
    assert redact(f"before {shown} after", [SECRET]) == "before [redacted] after"


def test_values_of_four_bytes_are_taken_out_and_shorter_ones_stay() -> None:
    assert redact("pin 4711, row 471", ["4711", "471"]) == "pin [redacted], row 471"


def test_secrets_that_touch_have_one_mark() -> None:
    assert redact(f"{SECRET}{SECRET}", [SECRET]) == "[redacted]"


@given(st.lists(st.integers(0, 700), max_size=20))
def test_a_key_that_a_builder_writes_with_prefixes_is_taken_out_however_it_is_cut(
    cuts: list[int],
) -> None:
    body = [f"#7 0.1 {number:03}MIIEpAIBAAKCAQEA" for number in range(20)]
    first, last = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    data = "\n".join(["before", f"#7 0.1 {first}", *body, f"#7 0.1 {last}", "after\n"]).encode()
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    redactor = Redactor()
    pieces = [redactor.feed(data[a:b]) for a, b in pairwise(borders)]
    shown = b"".join(pieces) + redactor.flush()
    assert shown == b"before\n#7 0.1 [redacted]\nafter\n"


def test_a_key_whose_end_never_comes_is_held_back_only_so_far() -> None:
    redactor = Redactor()
    shown = redactor.feed(b"-----BEGIN PRIVATE KEY-----\n")
    shown += b"".join(redactor.feed(b"a: line of text\n") for _ in range(1000))
    assert len(shown) > 16_000 - 10_000
    whole = shown + redactor.flush()
    assert whole.startswith(b"[redacted]")
    assert b"PRIVATE KEY" not in whole
    assert whole.endswith(b"a: line of text\n" * 900)


@given(st.binary(max_size=400).map(lambda data: data.translate(None, b":-")))
def test_what_holds_no_secret_comes_through_as_it_is(data: bytes) -> None:
    assert redact(data, [SECRET]) == data


@pytest.mark.parametrize(
    "harmless",
    [
        "https://example.org/path@2x.png and a@b.c",
        "task-force-on-something-very-long-indeed",
        "flask-sqlalchemy-extensions-1.2",
        "Step 3/12 : RUN apt-get update && apt-get install -y glibc-source",
        "sha256:5177c29e341200000000000000000000000000000000000000000000000000ab",
        "requires authorization, then continues",
    ],
)
def test_ordinary_text_stays_as_it_is(harmless: str) -> None:
    assert redact(harmless, ["abc", ""]) == harmless


SAMPLE = (
    f"line one\n#7 0.3 cloning https://joe:hunter2@host/x.git {TOKENS[0]} ok\n"
    f"Authorization: Bearer {JWT}\n{SECRET}{SECRET} {TOKENS[4]}\n"
    "-----BEGIN RSA PRIVATE KEY-----\nabc\nDEK-Info: x\n-----END RSA PRIVATE KEY-----\n"
    f"[####   ] 12%\r{quote(SECRET, safe='')}"
).encode()


@given(st.lists(st.integers(0, len(SAMPLE)), max_size=40))
def test_a_stream_cut_anywhere_is_redacted_like_the_whole(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(SAMPLE)]
    redactor = Redactor([SECRET])
    pieces = [redactor.feed(SAMPLE[a:b]) for a, b in pairwise(borders)]
    assert b"".join(pieces) + redactor.flush() == redact(SAMPLE, [SECRET])


def test_a_stream_fed_byte_by_byte_is_redacted_like_the_whole() -> None:
    redactor = Redactor([SECRET])
    shown = b"".join(redactor.feed(SAMPLE[i : i + 1]) for i in range(len(SAMPLE)))
    whole = shown + redactor.flush()
    assert whole == redact(SAMPLE, [SECRET])
    for secret in ("hunter2", TOKENS[0], JWT, SECRET, "DEK-Info"):
        assert secret.encode() not in whole


def test_a_stream_shows_complete_lines_and_progress_at_once() -> None:
    redactor = Redactor([SECRET])
    assert redactor.feed(b"a line\n") == b"a line\n"
    assert redactor.feed(b"42 ....") == b"42 ...."
    assert redactor.feed(b" p\xc3") == b" "
    assert redactor.flush() == b"p\xc3"


def test_a_stream_without_borders_is_held_back_only_so_far() -> None:
    redactor = Redactor()
    shown = sum(len(redactor.feed(b"x" * 1000)) for _ in range(100))
    assert 100_000 - 10_000 <= shown <= 100_000
    assert shown + len(redactor.flush()) == 100_000


@pytest.mark.parametrize(
    "piece",
    [
        b"-----BEGIN PRIVATE KEY-----",
        b"eyJ",
        b"sk-",
        b"://",
        b"authorization: ",
        b"a",
        b"glpat-",
        b"gl ",
    ],
)
def test_hostile_output_does_not_make_redaction_slow(piece: bytes) -> None:
    data = piece * (400_000 // len(piece))
    started = time.process_time()
    redactor = Redactor([SECRET])
    for start in range(0, len(data), 4096):
        redactor.feed(data[start : start + 4096])
    redactor.flush()
    # Generous: a quadratic search needs minutes for this.
    assert time.process_time() - started < 60


def test_a_tail_is_plain_text() -> None:
    data = b"\x1b[31mred\x1b[0m \x1b]0;title\x07x\r\n50%\r100%\x00\x07\x9b \xff\ttab\xe2\x80\xae!"
    assert bounded_tail(data, 1000) == "red x\n50%\n100%\ufffd \ufffd\ttab!"


def test_a_tail_that_was_cut_says_so_and_keeps_to_its_limit() -> None:
    text = bounded_tail(b"".join(b"line %d\n" % n for n in range(1000)), 200)
    first, _, rest = text.partition("\n")
    assert first == "[8890 bytes, shown from near the end]"
    assert rest.startswith("line ")
    assert rest.endswith("line 999\n")
    assert len(text.encode()) <= 200


@given(st.binary(max_size=300), st.integers(0, 120))
def test_a_tail_never_exceeds_its_limit_nor_holds_a_control_character(
    data: bytes, limit: int
) -> None:
    text = bounded_tail(data, limit)
    assert len(text.encode()) <= limit
    assert not any(ord(c) < 32 and c not in "\n\t" for c in text)
