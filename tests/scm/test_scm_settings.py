"""The app's settings stop the start when they are wrong, all at once and without their secrets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from django.core.checks import run_checks
from pytest_django.fixtures import Settings

from tests.controlplane.test_settings import load, value_of
from tests.scm.fake_provider import app_key, pem

PEM = pem(app_key())
ESCAPED = PEM.replace("\n", "\\n")
ID = {"SCM_APP_ID": "4711"}
KEY = {**ID, "SCM_APP_PRIVATE_KEY": PEM}


def stopped(environment: dict[str, str]) -> str:
    """Return what the start that these settings stop says."""
    done = load(environment)
    assert done.returncode == 1
    told = done.stderr
    assert told.startswith("The environment is not valid.")
    assert "PRIVATE KEY-----" not in done.stderr
    assert PEM.splitlines()[1] not in done.stderr
    return told


def pkcs8() -> str:
    return app_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.mark.parametrize(
    "given",
    [PEM, ESCAPED, f'"{ESCAPED}"', f"  {PEM}\n\n", PEM.replace("\n", "\r\n"),
     PEM.replace("\n", "\\r\\n"), pkcs8()],
    ids=["as it is", "escaped", "quoted", "with blanks", "of Windows", "escaped of Windows",
         "PKCS 8"],
)  # fmt: skip
def test_a_key_is_taken_however_its_line_ends_are_written(given: str) -> None:
    read = value_of("s.SCM_APP_PRIVATE_KEY", {**ID, "SCM_APP_PRIVATE_KEY": given})
    assert isinstance(read, str)
    key = load_pem_private_key(read.encode(), password=None)
    assert isinstance(key, rsa.RSAPrivateKey)
    assert key.private_numbers() == app_key().private_numbers()


def test_a_key_is_read_from_its_path_also_below_the_home(tmp_path: Path) -> None:
    (tmp_path / "app.pem").write_text(PEM)
    for path in (str(tmp_path / "app.pem"), "~/app.pem", "$HOME/app.pem"):
        environment = {**ID, "SCM_APP_PRIVATE_KEY_PATH": path, "HOME": str(tmp_path)}
        assert value_of("s.SCM_APP_PRIVATE_KEY", environment) == PEM


def test_a_key_may_be_kept_in_a_file_as_every_secret(tmp_path: Path) -> None:
    (tmp_path / "app.pem").write_text(PEM)
    environment = {**ID, "SCM_APP_PRIVATE_KEY_FILE": str(tmp_path / "app.pem")}
    assert value_of("s.SCM_APP_PRIVATE_KEY", environment) == PEM


def test_without_settings_there_is_no_app_and_the_public_provider() -> None:
    names = ["SCM_APP_ID", "SCM_APP_PRIVATE_KEY", "SCM_APP_WEBHOOK_SECRET", "SCM_APP_SLUG"]
    shown = ", ".join(f"s.{name}" for name in [*names, "SCM_API_BASE_URL"])
    expected = ["", "", "", "", "https://api.github.com"]
    assert value_of(f"[{shown}]", {}) == expected
    assert value_of(f"[{shown}]", dict.fromkeys(names, "")) == expected


def test_a_self_hosted_provider_is_taken() -> None:
    environment = {**KEY, "SCM_API_BASE_URL": "https://git.example.org/api/v3"}
    assert value_of("s.SCM_API_BASE_URL", environment) == "https://git.example.org/api/v3"


@pytest.mark.parametrize(
    ("environment", "missing", "given"),
    [
        ({"SCM_APP_PRIVATE_KEY": PEM}, "SCM_APP_ID", "SCM_APP_PRIVATE_KEY"),
        ({"SCM_APP_CLIENT_SECRET": "hunter2"}, "SCM_APP_CLIENT_ID", "SCM_APP_CLIENT_SECRET"),
    ],
    ids=["key alone", "client secret alone"],
)
def test_what_belongs_together_is_given_together(
    environment: dict[str, str], missing: str, given: str
) -> None:
    told = stopped(environment)
    assert f"{missing}: Set it together with {given}, or neither." in told
    assert "hunter2" not in told


def test_a_process_without_the_secrets_of_an_app_starts() -> None:
    names = {**ID, "SCM_APP_CLIENT_ID": "Iv1.a"}
    assert value_of("s.SCM_APP_ID", names) == "4711"


def test_a_key_is_given_once(tmp_path: Path) -> None:
    (tmp_path / "app.pem").write_text(PEM)
    told = stopped({**KEY, "SCM_APP_PRIVATE_KEY_PATH": str(tmp_path / "app.pem")})
    assert "SCM_APP_PRIVATE_KEY_PATH: Set either this or SCM_APP_PRIVATE_KEY, not both." in told


def small() -> str:
    return pem(rsa.generate_private_key(public_exponent=65537, key_size=1024))  # noqa: S505


def elliptic() -> str:
    return pem(ec.generate_private_key(ec.SECP256R1()))


def locked() -> str:
    guarded = BestAvailableEncryption(b"hunter2")
    return app_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, guarded).decode()


WRONG_KEYS: dict[str, tuple[Callable[[], str], str]] = {
    "a word": (lambda: "hunter2", "Must be an RSA private key in PEM."),
    "a public key": (lambda: PEM.replace("PRIVATE", "PUBLIC"), "Must be an RSA private key in"),
    "half a key": (lambda: PEM[: len(PEM) // 2], "Must be an RSA private key in PEM."),
    "short": (small, "Must have 2048 bits or more, not 1024."),
    "elliptic": (elliptic, "Must be an RSA private key, not another kind."),
    "with a passphrase": (locked, "Must not be protected by a passphrase."),
}


@pytest.mark.parametrize("kind", WRONG_KEYS)
def test_what_is_no_usable_key_stops_the_start(kind: str, tmp_path: Path) -> None:
    make, expected = WRONG_KEYS[kind]
    text = make()
    (tmp_path / "key").write_text(text)
    path = str(tmp_path / "key")
    for name, value in (
        ("SCM_APP_PRIVATE_KEY", text),
        ("SCM_APP_PRIVATE_KEY_FILE", path),
        ("SCM_APP_PRIVATE_KEY_PATH", path),
    ):
        told = stopped({**ID, name: value})
        assert f"{name}: {expected}" in told
        assert "Set it together" not in told
        assert "hunter2" not in told


def test_a_key_file_that_cannot_be_read_is_named_by_its_setting(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, why in (
        (tmp_path / "none", "The file cannot be read (FileNotFoundError)."),
        (tmp_path, "The file cannot be read (IsADirectoryError)."),
        (tmp_path / "binary", "Must be an RSA private key in PEM."),
    ):
        told = stopped({**ID, "SCM_APP_PRIVATE_KEY_PATH": str(path)})
        assert f"SCM_APP_PRIVATE_KEY_PATH: {why}" in told
        assert str(tmp_path) not in told


def test_all_faults_are_told_at_once() -> None:
    told = stopped(
        {
            "SCM_APP_ID": "my-app",
            "SCM_APP_PRIVATE_KEY": "hunter2",
            "SCM_APP_CLIENT_SECRET": "hunter3",
            "SCM_APP_SLUG": "a b",
            "SCM_API_BASE_URL": "ftp://user:hunter4@git.example.org",
            "SCM_API_READ_TIMEOUT_MS": "0",
        }
    )
    for name in (
        "SCM_APP_ID",
        "SCM_APP_PRIVATE_KEY",
        "SCM_APP_CLIENT_ID",
        "SCM_APP_SLUG",
        "SCM_API_BASE_URL",
        "SCM_API_READ_TIMEOUT_MS",
    ):
        assert f"{name}: " in told
    assert "hunter" not in told


@pytest.mark.parametrize(
    "url",
    ["git.example.org", "ssh://git.example.org", "https://", "https://a@git.example.org",
     "https://git.example.org?x=1", "https://git.example.org#x", "https://git.example.org:0"],
)  # fmt: skip
def test_an_address_that_is_none_stops_the_start(url: str) -> None:
    assert "SCM_API_BASE_URL: Must be an http or https address" in stopped(
        {"SCM_API_BASE_URL": url}
    )


def found(settings: Settings, **values: str) -> list[str | None]:
    settings.WEB_AUTH_SECRET = "x" * 32
    for name, value in values.items():
        setattr(settings, name, value)
    messages = [message for message in run_checks() if str(message.id).startswith("scm.")]
    assert all(message.hint for message in messages)
    return [message.id for message in messages]


def test_a_sound_app_has_nothing_to_say(settings: Settings) -> None:
    assert found(settings) == []
    app = {"SCM_APP_ID": "1", "SCM_APP_PRIVATE_KEY": PEM, "SCM_APP_WEBHOOK_SECRET": "x" * 32}
    assert found(settings, **app) == []
    assert found(settings, SCM_API_BASE_URL="http://127.0.0.1:1/api/v3") == []


def test_tokens_that_would_go_unencrypted_are_a_warning(settings: Settings) -> None:
    app = {"SCM_APP_ID": "1", "SCM_APP_PRIVATE_KEY": PEM, "SCM_APP_WEBHOOK_SECRET": "x" * 32}
    assert found(settings, **app, SCM_API_BASE_URL="http://git.example.org/api/v3") == ["scm.W001"]


def test_an_app_that_hears_no_events_is_a_warning(settings: Settings) -> None:
    app = {"SCM_APP_ID": "1", "SCM_APP_PRIVATE_KEY": PEM}
    assert found(settings, **app) == ["scm.W002"]


@pytest.mark.parametrize(
    "names", [{"SCM_APP_ID": "1", "SCM_APP_WEBHOOK_SECRET": "x" * 32}, {"SCM_APP_CLIENT_ID": "a"}]
)
def test_an_app_whose_secret_this_process_has_not_is_a_warning(
    settings: Settings, names: dict[str, str]
) -> None:
    assert found(settings, **names) == ["scm.W004"]


def test_a_weak_webhook_secret_is_a_warning(settings: Settings) -> None:
    assert found(settings, SCM_APP_WEBHOOK_SECRET="short") == ["scm.W003"]
