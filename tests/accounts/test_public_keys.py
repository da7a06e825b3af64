"""Reading public keys: what OpenSSH writes, and nothing else."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.public_keys import ALGORITHMS, PublicKeyRefused, parse_public_key
from tests.accounts.keys import (
    SK_ED25519,
    ed25519,
    fingerprint,
    generated,
    line,
    number,
    sk_ecdsa,
    sk_ed25519,
    string,
)

RSA_2048 = (1 << 2047) | 1
KEY = string(b"\x01" * 32)
PLAIN = line("ssh-ed25519", KEY)


def refusal(text: str) -> str:
    with pytest.raises(PublicKeyRefused) as refused:
        parse_public_key(text)
    return refused.value.code


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        (["-t", "ed25519"], "ssh-ed25519"),
        (["-t", "ecdsa", "-b", "256"], "ecdsa-sha2-nistp256"),
        (["-t", "ecdsa", "-b", "384"], "ecdsa-sha2-nistp384"),
        (["-t", "ecdsa", "-b", "521"], "ecdsa-sha2-nistp521"),
        (["-t", "rsa", "-b", "2048"], "ssh-rsa"),
        (["-t", "rsa", "-b", "4096"], "ssh-rsa"),
    ],
)
def test_every_key_of_ssh_keygen_has_its_fingerprint(
    tmp_path: Path, options: list[str], algorithm: str
) -> None:
    public = generated(tmp_path, *options).with_suffix(".pub").read_text()
    key = parse_public_key(public)
    assert (key.algorithm, key.comment) == (algorithm, "ada@laptop")
    assert key.fingerprint == fingerprint(tmp_path, public)
    assert public.startswith(key.line)


@pytest.mark.parametrize("make", [sk_ed25519, sk_ecdsa, ed25519])
def test_a_key_put_together_by_hand_has_the_fingerprint_of_ssh_keygen(
    tmp_path: Path, make: object
) -> None:
    assert callable(make)
    text = make()
    assert parse_public_key(text).fingerprint == fingerprint(tmp_path, text)


def test_private_keys_are_refused_as_such(tmp_path: Path) -> None:
    private = generated(tmp_path, "-t", "ed25519").read_text()
    assert refusal(private) == "private-key-refused"
    assert refusal(" ".join(private.split("\n"))) == "private-key-refused"
    assert refusal("PuTTY-User-Key-File-3: ssh-ed25519") == "private-key-refused"


def test_a_certificate_is_refused_as_such(tmp_path: Path) -> None:
    key = generated(tmp_path, "-t", "ed25519")
    subprocess.run(["ssh-keygen", "-q", "-s", key, "-I", "me", f"{key}.pub"], check=True)
    certificate = (tmp_path / "key-cert.pub").read_text()
    assert refusal(certificate) == "certificate-refused"
    as_plain = certificate.replace("ssh-ed25519-cert-v01@openssh.com", "ssh-ed25519", 1)
    assert refusal(as_plain) == "key-algorithm-mismatch"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"no-pty {PLAIN}", "key-options-refused"),
        (f'from="a b",command="x" {PLAIN}', "key-options-refused"),
        ("ssh-dss AAAAB3NzaC1kc3M= ssh-rsa", "key-algorithm-unsupported"),
        ("AAAAC3NzaC1lZDI1NTE5", "key-algorithm-unsupported"),
        ("", "key-algorithm-unsupported"),
        ("ssh-ed25519", "key-malformed"),
        ("ssh-ed25519 AAAA", "key-malformed"),
        ("ssh-ed25519 äöü", "key-not-base64"),
        ("ssh-ed25519 AA-_", "key-not-base64"),
        ("ssh-ed25519 AB==", "key-not-base64"),
        ("ssh-ed25519 AA=", "key-not-base64"),
        ("ssh-ed25519 AAA=====", "key-not-base64"),
        (f"{PLAIN}\n{PLAIN}", "not-one-line"),
        ("---- BEGIN SSH2 PUBLIC KEY ----\nAAAA", "key-format-unsupported"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA", "key-format-unsupported"),
        (line("ssh-ed25519"), "key-malformed"),
        (line("ssh-ed25519", string(b"\x01" * 31)), "key-malformed"),
        (line("ssh-ed25519", KEY, b"\0"), "key-malformed"),
        (line(SK_ED25519, KEY), "key-malformed"),
        (line(SK_ED25519, KEY, string(b"")), "key-malformed"),
        (line(SK_ED25519, KEY, string(b"ssh:\0")), "key-malformed"),
        (line("ecdsa-sha2-nistp256", string(b"nistp384"), string(b"\4" * 65)), "key-malformed"),
        (line("ecdsa-sha2-nistp256", string(b"nistp256"), string(b"\4" * 65)), "key-malformed"),
        (line("ecdsa-sha2-nistp256", string(b"nistp256"), string(b"\0")), "key-malformed"),
        (line("ssh-rsa", number(65537), number((1 << 2046) | 1)), "key-too-short"),
        (line("ssh-rsa", number(65537), number((1 << 16384) | 1)), "key-too-long"),
        (line("ssh-rsa", number(65537), number(1 << 2047)), "key-malformed"),
        (line("ssh-rsa", number(1), number(RSA_2048)), "key-malformed"),
        (line("ssh-rsa", number(4), number(RSA_2048)), "key-malformed"),
        (line("ssh-rsa", number((1 << 64) | 1), number(RSA_2048)), "key-malformed"),
        (line("ssh-rsa", string(b""), number(RSA_2048)), "key-malformed"),
        (line("ssh-rsa", string(b"\0"), number(RSA_2048)), "key-malformed"),
        (line("ssh-rsa", string(b"\0\3"), number(RSA_2048)), "key-malformed"),
        (line("ssh-rsa", number(3), string(b"\x80" + b"\1" * 255)), "key-malformed"),
    ],
)
def test_what_is_no_sound_key_is_refused_with_its_reason(text: str, code: str) -> None:
    assert refusal(text) == code


def test_padding_may_be_missing_and_the_stored_form_is_one() -> None:
    text = line(SK_ED25519, KEY, string(b"ssh:"))
    padded = text if text.endswith("=") else line(SK_ED25519, KEY, string(b"ssh:x"))
    assert padded.endswith("=")
    assert parse_public_key(padded.rstrip("=")).line == parse_public_key(padded).line == padded


@given(text=st.text(max_size=300))
def test_no_text_does_worse_than_being_refused(text: str) -> None:
    for attempt in (text, f"ssh-ed25519 {text}"):
        with pytest.raises(PublicKeyRefused):
            parse_public_key(attempt)


@given(algorithm=st.sampled_from(list(ALGORITHMS)), tail=st.binary(max_size=200))
def test_no_blob_does_worse_than_being_refused(algorithm: str, tail: bytes) -> None:
    try:
        key = parse_public_key(line(algorithm, tail))
    except PublicKeyRefused:
        return
    assert key.blob == string(algorithm.encode()) + tail


@given(cut=st.integers(0, 70), noise=st.integers(1, 255))
def test_a_key_cut_short_or_with_other_lengths_is_refused(cut: int, noise: int) -> None:
    blob = base64.b64decode(sk_ed25519().split()[1])
    short = base64.b64encode(blob[: min(cut, len(blob) - 1)]).decode()
    with pytest.raises(PublicKeyRefused):
        parse_public_key(f"{SK_ED25519} {short}")
    wrong = bytes([blob[0] ^ noise]) + blob[1:]
    with pytest.raises(PublicKeyRefused):
        parse_public_key(f"{SK_ED25519} {base64.b64encode(wrong).decode()}")
