"""Masking: no secret comes through however it is cut, and every other byte does."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from itertools import pairwise
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.agent.masking.known_values import Verbatim
from runs.agent.masking.masker import Masker, MaskingStream, secret_values

Spans = list[tuple[int, int]]

TOKENS = [
    b"ghp_" + b"a1B2" * 9,
    b"ghs_" + b"Z" * 36,
    b"github_pat_" + b"11AAAA_" * 8,
    b"glpat-" + b"x-Y_z.0" * 3,
    b"glagent-" + b"0123456789abcdef",
    b"glsoat-" + b"0123456789abcdef",
    b"glrt-" + b"0123456789abcdef",
    b"sk-proj-" + b"abcDEF123_-" * 4,
    b"AKIA" + b"ABCDEFGHIJKLMNOP",
    b"ASIA" + b"0123456789ABCDEF",
    b"xoxb-" + b"123456-abcdef",
    b"npm_" + b"a0" * 18,
    b"AIza" + b"Sy-_0" * 7,
    b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl-_",
]
KEY = (
    b"-----BEGIN RSA PRIVATE KEY-----\n" + b"MIIEpAIBAAKCAQEA0Z3\n" * 12
) + b"-----END RSA PRIVATE KEY-----\n"
ENCRYPTED_KEY = KEY.replace(
    b"KEY-----\nMII",
    b"KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,0123ABCD\n\nMII",
    1,
)


def fed(stream: MaskingStream, chunks: list[bytes]) -> tuple[bytes, Spans]:
    """Everything that a stream gives out, and its masked ranges, touching ones joined."""
    out = b""
    spans: Spans = []
    for given_out, ranges in [*map(stream.feed, chunks), stream.flush()]:
        out += given_out
        for start, end in ranges:
            if spans and spans[-1][1] == start:
                start = spans.pop()[0]
            spans.append((start, end))
    return out, spans


def cut(text: bytes, places: list[int]) -> list[bytes]:
    """The text in pieces."""
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


pieces = st.one_of(
    st.sampled_from([*TOKENS, *(token[:-7] for token in TOKENS), KEY, ENCRYPTED_KEY, KEY[:40]]),
    st.sampled_from(
        [
            *(b" ", b"\n", b"x", b"-", b"_", b":", b"://", b"@", b"https://me:pass@host/", b'"'),
            *(b"Authorization: Bearer abc.def", b"authorization = x", b'"Authorization":"Basic Zm'),
            *(b"Authorization: Bea", b"eyJ", b"sk-", b"gh", b"AKIA", b"-----BEGIN ", b"hunter2!"),
            *(b"hunter", b"hunter2!hunter2!", b"ababab", b"\0\xff", b"the quick brown fox\r\n"),
        ]
    ),
    st.binary(max_size=12),
)
texts = st.lists(pieces, max_size=8).map(b"".join)
cuts = st.lists(st.integers(0, 10_000), max_size=12)
SECRETS = [b"hunter2!", b"ababab", b"fox\r\nhunter", b"2!Authorization"]


@given(text=texts, places=cuts)
def test_a_stream_gives_the_same_however_it_is_cut(text: bytes, places: list[int]) -> None:
    masker = Masker(SECRETS)
    whole = fed(masker.stream(), [text])
    assert fed(masker.stream(), cut(text, places)) == whole
    assert fed(masker.stream(), [bytes([byte]) for byte in text]) == whole
    assert masker.mask(text) == whole[0]


@given(text=texts, places=cuts)
def test_only_masked_bytes_change_and_their_ranges_are_told(text: bytes, places: list[int]) -> None:
    masked, spans = fed(Masker(SECRETS).stream(), cut(text, places))
    expected = bytearray(text)
    for start, end in spans:
        assert 0 <= start < end <= len(text)
        expected[start:end] = b"*" * (end - start)
    assert masked == bytes(expected)


@given(
    # A beginning that was given out, and a `*` of the secret itself, would look like it.
    secret=st.binary(min_size=6, max_size=80).filter(
        lambda secret: len(secret.strip()) >= 6 and b"*" not in secret
    ),
    before=st.binary(max_size=20),
    after=st.binary(max_size=20),
    flushes=st.booleans(),
)
def test_a_value_cut_at_any_place_never_comes_through(
    secret: bytes, before: bytes, after: bytes, flushes: bool
) -> None:
    masker = Masker([secret])
    text = before + secret + after
    for place in range(len(text) + 1):
        stream = masker.stream()
        out = stream.feed(text[:place])[0]
        if flushes:
            out += stream.flush()[0]
        out += stream.feed(text[place:])[0] + stream.flush()[0]
        assert len(out) == len(text)
        assert secret.strip() not in out


SHORTEST_TOKENS = [
    b"ghp_" + b"a" * 20,
    b"github_pat_" + b"a" * 20,
    *(b"gl" + kind + b"-" + b"a" * 16 for kind in (b"dt", b"rt", b"ft", b"pat", b"agent")),
    b"sk-" + b"a" * 16,
    b"AKIA" + b"A" * 16,
    b"xoxb-" + b"1" * 10,
    b"npm_" + b"a" * 36,
    b"AIza" + b"a" * 35,
    b"eyJ" + b"a" * 6 + b".eyJ" + b"a" * 4,
]
SURROUNDINGS = {
    "binary": bytes(range(32)) * 256,
    "words": b"a word and the next \n" * 400,
    "few runs": (b"word " * 250 + b"5dd16ca6-6f0c-46a2-a2c8-5b1f5c1f6f3e ") * 4,
    "many runs": b"5dd16ca6-6f0c-46a2-a2c8-5b1f5c1f6f3e " * 200,
    "one run": b" " + b"0" * 8000 + b" ",
    "no text": b"\0\xff" * 4000,
    "few runs in binary": (b"\0\xff" * 50 + b"5dd16ca6-6f0c-46a2-a2c8-5b1f5c1f6f3e\xfe") * 40,
    "many runs in binary": b"\0-5dd16ca6-6f0c-46a2-a2c8-5b1f5c1f6f3e\xfe" * 200,
}


@pytest.mark.parametrize("around", SURROUNDINGS.values(), ids=SURROUNDINGS.keys())
@pytest.mark.parametrize("token", SHORTEST_TOKENS, ids=lambda token: token[:6])
def test_the_shortest_token_is_found_in_much_of_anything(token: bytes, around: bytes) -> None:
    for before, after in (
        (around, b" "),
        (b"", b"\n" + around),
        (around, b" " + around),
        (around, b""),
    ):
        text = before + token + after
        found, spans = fed(Masker([]).stream(), [text])
        assert found == before + b"*" * len(token) + after
        assert spans == [(len(before), len(before) + len(token))]


LONG_TOKEN = b"eyJ" + b"hbGc" * 50 + b".eyJ" + b"zdWI" * 50 + b".c2ln"


@pytest.mark.parametrize("before", [b"export TOKEN='", b""], ids=["assigned", "first"])
@pytest.mark.parametrize(
    "token", [*TOKENS, LONG_TOKEN, KEY[:-31], ENCRYPTED_KEY[:-31]], ids=lambda token: token[:12]
)
def test_a_token_cut_at_any_place_is_masked_to_its_end(token: bytes, before: bytes) -> None:
    text = before + token + b"'; echo done\n"
    expected = before + b"*" * len(token) + b"'; echo done\n"
    for place in range(len(text) + 1):
        assert fed(Masker([]).stream(), [text[:place], text[place:]])[0] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"https://me:pa55@host/x", b"https://*******@host/x"),
        (b"Authorization: Bearer abc.def\r\n", b"Authorization: Bearer *******\r\n"),
        (b"authorization: token abc, x", b"authorization: token ***, x"),
        (b'{"Authorization": "Basic Zm9vOmJhcg=="}', b'{"Authorization": "Basic ************"}'),
        (b"AUTHORIZATION=s3cr", b"AUTHORIZATION=****"),
    ],
)
def test_of_urls_and_headers_only_the_credential_is_masked(text: bytes, expected: bytes) -> None:
    assert Masker([]).mask(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(b"https://me:pa55@host", b"Authorization: Bearer abc", b"authorization=x"),
        *(b"AUTHORIZATION=x", b"xoxb-1234567890", KEY, b"-----BEGIN PRIVATE KEY-----\nM"),
    ],
    ids=lambda text: text[:16],
)
def test_in_binary_data_the_same_is_masked_as_in_text(text: bytes) -> None:
    data = hashlib.shake_256(b"1").digest(8192)
    expected = data + b" " + Masker([]).mask(text + b"\n\0") + data
    text = data + b" " + text + b"\n\0" + data
    for place in range(len(data) - 1, len(text) - len(data) + 1):
        assert fed(Masker([]).stream(), [text[:place], text[place:]])[0] == expected


def test_what_only_looks_like_an_address_in_binary_data_passes_unchanged() -> None:
    data = hashlib.shake_256(b"50").digest(1 << 20)
    assert b"://" in data
    assert Masker([]).mask(data) == data


def test_credentials_of_an_address_in_any_language_are_masked() -> None:
    text = "https://müller:pässwörd@host/".encode()
    start, end = text.index(b"m"), text.index(b"@")
    assert Masker([]).mask(text) == text[:start] + b"*" * (end - start) + text[end:]


def test_credentials_are_masked_wherever_an_earlier_address_or_their_own_is_cut() -> None:
    text = b"see https://host/a and then https://me:pa55word@host/x"
    for place in range(len(text)):
        out, _ = fed(Masker([]).stream(), [text[:place], text[place:]])
        assert out == text.replace(b"me:pa55word", b"***********"), place


@pytest.mark.parametrize(
    "text",
    [
        b"import sys; disk-usage-of-the-whole-file-system; global-exception-handler",
        b"see https://example.com/a@b and mail me@example.com",
        b"ghp_short AKIASHORT eyJhbGciOiJIUzI1NiJ9 alone, npm_config_cache=/tmp/x",
        b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        bytes(range(256)) * 300,
    ],
)
def test_text_without_secrets_passes_unchanged(text: bytes) -> None:
    assert fed(Masker([b"correct horse battery"]).stream(), [text]) == (text, [])


VALUE = b'p/ss "w\xc3\xb6rd"+\\x'


@pytest.mark.parametrize(
    "form",
    [
        quote(VALUE, safe="").encode(),
        quote_plus(VALUE).encode(),
        quote(VALUE, safe="").lower().encode(),
        json.dumps(VALUE.decode())[1:-1].encode(),
        json.dumps(VALUE.decode(), ensure_ascii=False)[1:-1].encode(),
    ],
)
def test_other_spellings_of_a_value_are_masked(form: bytes) -> None:
    assert Masker([VALUE]).mask(b"a=" + form + b"&b") == b"a=" + b"*" * len(form) + b"&b"


@given(before=st.binary(max_size=9), after=st.binary(max_size=9))
def test_of_base64_all_is_masked_that_tells_of_a_value_alone(before: bytes, after: bytes) -> None:
    secret = b"\xfb\xff correct horse battery"
    # Of what tells six bits each: those that are the secret's only.
    first = -(-len(before) * 8 // 6)
    end = len(before + secret) * 8 // 6
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(before + secret + after)
        masked = Masker([secret]).mask(encoded)
        assert masked == encoded[:first] + b"*" * (end - first) + encoded[end:]


def test_the_shortest_value_is_masked_in_base64_that_begins_with_it() -> None:
    for after in (b"", b"x", b"another"):
        encoded = base64.b64encode(b"sixsix" + after)
        assert Masker([b"sixsix"]).mask(encoded) == b"*" * 8 + encoded[8:]


def test_many_values_are_found_as_surely_as_one() -> None:
    # From some number on values are looked for all at once, and in another way.
    chance = random.Random(7)
    for size in (6, 8, 15, 24, 40, 100):
        secrets = [bytes(chance.choices(b"abcdefghijklmnop0123456789", k=size)) for _ in range(20)]
        masker = Masker(secrets)
        for secret in secrets:
            before = bytes(chance.choices(b"xyz \n", k=chance.randrange(300)))
            masked = masker.mask(before + secret + b"\n")
            assert masked == before + b"*" * size + b"\n"


def test_among_many_values_of_any_length_each_is_found_wherever_it_stands() -> None:
    chance = random.Random(11)
    sizes = [6, 8, 11, 15, 16, 24, 40, 70, 71, 100, 300] * 4
    secrets = [bytes(chance.choices(b"abcdefghijklmnop0123456789", k=size)) for size in sizes]
    masker = Masker(secrets)
    for secret in secrets:
        for form in (secret, secret.hex().encode()):
            for ahead in range(0, 80, 7):
                text = b" " * ahead + form + b" "
                assert masker.mask(text) == b" " * ahead + b"*" * len(form) + b" "


def test_a_value_one_byte_shorter_than_many_others_is_found_wherever_it_stands() -> None:
    for size in range(11, 72, 4):
        others = [Verbatim(b"%0*d" % (size, number)) for number in range(100)]
        value = Verbatim(bytes(range(65, 65 + size - 1)))
        masker = Masker([*others, value])
        for ahead in range(64):
            text = b" " * ahead + value + b" "
            assert masker.mask(text) == b" " * ahead + b"*" * len(value) + b" "


def test_lines_of_a_long_value_are_masked_however_the_terminal_ends_them() -> None:
    secret = b"first line of the secret\nsecond line of the secret\n"
    masked = Masker([secret]).mask(b"first line of the secret\r\nsecond line of the secret\r\n")
    assert masked == b"*" * 24 + b"\r\n" + b"*" * 25 + b"\r\n"


def test_what_cannot_be_a_secret_is_not_held_back() -> None:
    stream = Masker([b"correct horse battery"]).stream()
    assert stream.feed(b"$ make\nbuilding 45%... done.\n")[0] == b"$ make\nbuilding 45%... done.\n"
    assert stream.held == 0
    assert stream.feed(b"user@host:~$ ")[0] == b"user@host:~$ "
    assert stream.feed(b"see https://host/a or ")[0] == b"see https://host/a or "
    assert stream.feed(b"http://host:80/")[0] == b"http://host:80/"
    assert stream.held == 0


def test_what_begins_as_a_long_value_and_goes_on_otherwise_is_given_out() -> None:
    value = b"".join(b"part %d of a value;" % number for number in range(12))
    stream = Masker([value]).stream()
    other = value[:100] + b"but not this one, "
    assert stream.feed(b"> " + other)[0] == b"> " + other
    assert stream.feed(other + value[:90])[0] == other
    assert stream.feed(value[90:] + b"!")[0] == b"*" * len(value) + b"!"


def test_only_ranges_of_what_is_given_out_are_told() -> None:
    stream = Masker([b"correct horse battery", b"ct horse"]).stream()
    assert stream.feed(b"a correct horse") == (b"a ", [])
    assert stream.feed(b"!") == (b"corre********!", [(7, 15)])


def test_what_is_held_back_is_bounded() -> None:
    stream = Masker([]).stream()
    for _ in range(100):
        stream.feed(b"eyJ" + b"a" * 997)
        assert stream.held <= 8192
    stream = Masker([]).stream()
    for text in (b"https://" + b"u" * 100_000, b"\n" + KEY[:60] + b"A" * 100_000):
        stream.feed(text)
        assert stream.held <= 8192


def test_a_short_beginning_that_was_given_out_does_not_give_the_rest_away() -> None:
    stream = Masker([b"correct horse battery"]).stream()
    out = stream.feed(b"corre")[0]
    assert stream.flush()[0] == b"corre"
    assert out == b""
    assert stream.feed(b"ct horse battery.") == (b"*" * 16 + b".", [(5, 21)])


def test_a_beginning_that_tells_something_is_masked_whatever_follows() -> None:
    for rest, shown in ((b"rse battery.", b"***********."), (b"rn.", b"rn.")):
        stream = Masker([b"correct horse battery"]).stream()
        assert stream.feed(b"the correct ho") == (b"the ", [])
        assert stream.flush() == (b"**********", [(4, 14)])
        assert stream.feed(rest)[0] == shown


@given(pauses=st.sets(st.integers(1, 20)), value=st.sampled_from([*TOKENS[:8], b"a known value"]))
def test_a_secret_written_with_pauses_shows_little_of_itself(
    pauses: set[int], value: bytes
) -> None:
    stream = Masker([b"a known value"]).stream()
    out = b""
    for piece in cut(b"> " + value + b"\n", [2 + pause for pause in pauses]):
        out += stream.feed(piece)[0] + stream.flush()[0]
    assert len(out) == len(value) + 3
    shown = out[2:-1].rstrip(b"*")
    assert value.startswith(shown)
    assert len(shown) < (6 if value == b"a known value" else len(value[:11]) + 12)


def test_short_values_are_not_looked_for() -> None:
    masker = Masker([b"short", b"  pad  ", b"longer"])
    assert masker.values == 1
    assert masker.mask(b"short pad longer") == b"short pad ******"


def test_variables_with_a_telling_name_hold_secrets() -> None:
    env = {
        "API_TOKEN": "token-value",
        "DB_PASSWORD": "s3cret!",
        "OPENAI_APIKEY": "key-value",
        "SHORT_SECRET": "x",
        "HOME": "/home/me",
        "my_credentials": "lower-case",
    }
    assert secret_values(env) == [b"token-value", b"s3cret!", b"key-value", b"lower-case"]
