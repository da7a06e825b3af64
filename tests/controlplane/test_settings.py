"""The environment is read once, and everything that is wrong with it is told at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import LONG_WAIT

ROOT = Path(__file__).resolve().parents[2]


def load(environment: dict[str, str], show: str = "1") -> subprocess.CompletedProcess[str]:
    """Load the settings in a process of their own, with nothing but ``environment`` set."""
    return subprocess.run(
        [sys.executable, "-c", f"import json; from controlplane import settings as s; {show}"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=False,
    )


def value_of(expression: str, environment: dict[str, str]) -> object:
    done = load(environment, f"print(json.dumps({expression}))")
    assert done.returncode == 0, done.stderr
    found: object = json.loads(done.stdout)
    return found


def test_the_defaults_are_those_of_the_specification() -> None:
    names = {
        "SVC_BIND_HOST": "127.0.0.1",
        "SVC_API_PORT": 4000,
        "SVC_SSH_PORT": 2222,
        "SVC_SSH_HOST": "localhost",
        "SVC_WEB_PORT": 3000,
        "SVC_WEB_URL": "http://localhost:3000",
        "REGISTRY_BASE_URL": "http://127.0.0.1:5000",
        "REGISTRY_PUSH_REGISTRY": "127.0.0.1:5000",
        "REGISTRY_NAME": "default",
        "DEFAULT_RUNTIME_ADAPTER": "docker",
        "WORKSPACE_BUILD_QUEUE": "sandbox-image-builds",
        "WORKSPACE_BUILD_QUEUE_PREFETCH": 1,
        "WORKSPACE_BUILD_JOB_LEASE_DURATION_MS": 900_000,
        "SSH_GATEWAY_WORKSPACE_USERNAME_PREFIX": "ws",
        "SSH_GATEWAY_RECORD_POLICY": "require",
        "SSH_GATEWAY_API_BASE_URL": "http://127.0.0.1:4000",
        "SSH_GATEWAY_FORWARD_HOSTS": ["localhost", "127.0.0.1", "::1"],
        "SVC_CREDENTIALS_KEY": "",
    }
    shown = ", ".join(f"s.{name}" for name in names)
    assert value_of(f"[{shown}]", {}) == list(names.values())


NOT_VALID_FOR_THE_GATEWAY = {
    "SSH_GATEWAY_WORKSPACE_USERNAME_PREFIX": "a-b",
    "SSH_GATEWAY_BANNER": "red: \x1b[31m",
    "SSH_GATEWAY_API_BASE_URL": "http://user@api.example",
    "SSH_GATEWAY_RECORD_POLICY": "sometimes",
    "SSH_GATEWAY_ACCEPT_ENV": "LANG, A=B",
    "SSH_GATEWAY_FORWARD_HOSTS": "localhost, a b",
    "SSH_GATEWAY_IDLE_TIMEOUT_MS": "-1",
    "SSH_GATEWAY_DRAIN_MS": "soon",
    "SSH_GATEWAY_MAX_KEYS": "0",
    "SVC_PREVIEW_DOMAIN": "127.0.0.1",
    "SVC_PREVIEW_SCHEME": "ftp",
}


def test_every_fault_is_told_at_once() -> None:
    done = load(
        {
            "SVC_API_PORT": "many",
            "SVC_SSH_PORT": "0",
            "WORKSPACE_CPUS": "-1",
            "WEB_AUTH_SECRET": "too-short",
            "SVC_CREDENTIALS_KEY": "bm90IDMyIGJ5dGVz",
            "SVC_WORKSPACE_NETWORK_POOL": "10.0.0.0/99",
            "SVC_LOG_LEVEL": "LOUD",
            "DEFAULT_RUNTIME_ADAPTER": "k8s",
            "SVC_INSTANCE_ID": "Not An Id",
            **NOT_VALID_FOR_THE_GATEWAY,
        }
    )
    assert done.returncode != 0
    for name in (
        *NOT_VALID_FOR_THE_GATEWAY,
        "SVC_API_PORT",
        "SVC_SSH_PORT",
        "WORKSPACE_CPUS",
        "WEB_AUTH_SECRET",
        "SVC_CREDENTIALS_KEY",
        "SVC_WORKSPACE_NETWORK_POOL",
        "SVC_LOG_LEVEL",
        "DEFAULT_RUNTIME_ADAPTER",
        "SVC_INSTANCE_ID",
    ):
        assert name in done.stderr, name
    assert "too-short" not in done.stderr
    assert "bm90IDMyIGJ5dGVz" not in done.stderr


SECRETS = ["WEB_AUTH_SECRET", "WORKSPACE_SSH_GATEWAY_TOKEN", "RABBITMQ_URL"]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_may_be_kept_in_a_file(tmp_path: Path, name: str) -> None:
    secret = "amqp://a:b@example/" + "x" * 32
    file = tmp_path / "secret"
    file.write_text(secret + "\n")
    assert value_of(f"s.{name}", {f"{name}_FILE": str(file)}) == secret
    both = {f"{name}_FILE": str(file), name: "y" * 40}
    assert value_of(f"s.{name}", both) == secret


def test_a_secret_in_a_file_is_checked_too(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("short")
    done = load({"WEB_AUTH_SECRET_FILE": str(file)})
    assert done.returncode != 0
    assert "WEB_AUTH_SECRET" in done.stderr


def test_a_file_that_is_not_there_is_named_with_its_setting(tmp_path: Path) -> None:
    done = load({"DATABASE_URL_FILE": str(tmp_path / "none"), "SVC_API_PORT": "many"})
    assert done.returncode != 0
    assert "DATABASE_URL" in done.stderr
    assert "SVC_API_PORT" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_of_another_account_are_named_with_their_settings(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("postgres://svc:do-not-tell@127.0.0.1/svc\n")
    secret.chmod(0o600)
    os.chown(secret, 65534, 65534)
    names = ("DATABASE_URL_FILE", "WEB_AUTH_SECRET_FILE")
    # Root as every other account is: without the right to read what is not its own.
    powers = "--bounding-set=-dac_override,-dac_read_search"
    done = subprocess.run(
        ["setpriv", powers, sys.executable, "-c", "from controlplane import settings"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **dict.fromkeys(names, str(secret))},
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=False,
    )
    assert done.returncode != 0
    for name in names:
        assert f"{name}: The file cannot be read (PermissionError)." in done.stderr
    assert "do-not-tell" not in done.stderr


@pytest.mark.parametrize(
    ("given", "origins", "patterns"),
    [
        ("*", [], [".*"]),
        (" * ", [], [".*"]),
        ("http://a.example, https://b.example", ["http://a.example", "https://b.example"], []),
        ("", [], []),
    ],
)
def test_the_allowed_origins_are_a_list_or_all(
    given: str, origins: list[str], patterns: list[str]
) -> None:
    shown = "[s.CORS_ALLOWED_ORIGINS, s.CORS_ALLOWED_ORIGIN_REGEXES]"
    assert value_of(shown, {"SVC_CORS_ALLOWED_ORIGINS": given}) == [origins, patterns]
    assert value_of(shown, {"CORS_ALLOWED_ORIGINS": given}) == [origins, patterns]


def test_origins_that_are_not_origins_are_a_failed_check() -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "CORS_ALLOWED_ORIGINS": "web.example"},
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=False,
    )
    assert done.returncode != 0
    assert "web.example" in done.stderr


def test_the_names_the_gateway_takes_over_are_a_list() -> None:
    shown = "[s.SSH_GATEWAY_ACCEPT_ENV, s.SSH_GATEWAY_FORWARD_HOSTS]"
    given = {"SSH_GATEWAY_ACCEPT_ENV": "LANG , LC_*,", "SSH_GATEWAY_FORWARD_HOSTS": "*"}
    assert value_of(shown, given) == [["LANG", "LC_*"], ["*"]]
    assert value_of(shown, dict.fromkeys(given, "")) == [[], []]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("KUBERNETES_NODE_SELECTOR", "pool"),
        ("KUBERNETES_NODE_SELECTOR", "pool=a b"),
        ("KUBERNETES_NODE_SELECTOR", "Example.com/pool=agents"),
        ("KUBERNETES_TOLERATIONS", "dedicated"),
        ("KUBERNETES_TOLERATIONS", "dedicated:Never"),
        ("KUBERNETES_TOLERATIONS", "dedicated:NoSchedule:30"),
        ("KUBERNETES_TOLERATIONS", "dedicated:NoExecute:soon"),
    ],
)
def test_nodes_that_are_not_named_as_kubectl_does_are_a_fault(name: str, wrong: str) -> None:
    done = load({name: f"a=b:NoSchedule, {wrong}" if "TOL" in name else f"a=b, {wrong}"})
    assert done.returncode == 1
    assert f"{name}: Not valid here: {wrong!r}." in done.stderr


@pytest.mark.parametrize(
    ("bound", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:4001"),  # noqa: S104 - read, not bound
        ("::", "http://[::1]:4001"),
        ("10.0.0.7", "http://10.0.0.7:4001"),
        ("fd00::7", "http://[fd00::7]:4001"),
    ],
)
def test_the_gateway_finds_the_api_of_its_machine_wherever_it_listens(bound: str, url: str) -> None:
    given = {"SVC_BIND_HOST": bound, "SVC_API_PORT": "4001"}
    assert value_of("s.SSH_GATEWAY_API_BASE_URL", given) == url


def test_the_gateways_host_key_lies_in_the_data_directory(tmp_path: Path) -> None:
    found = value_of("str(s.SSH_GATEWAY_HOST_KEY_PATH)", {"SVC_DATA_DIR": str(tmp_path)})
    assert found == str(tmp_path / "ssh" / "host_ed25519_key")


@pytest.mark.parametrize(
    ("given", "name", "told"),
    [
        ({"REGISTRY_USERNAME": "robot"}, "REGISTRY_PASSWORD", "together with REGISTRY_USERNAME"),
        ({"REGISTRY_PASSWORD": "x"}, "REGISTRY_USERNAME", "together with REGISTRY_PASSWORD"),
        (
            {"REGISTRY_USERNAME": "a:b", "REGISTRY_PASSWORD": "x"},
            "REGISTRY_USERNAME",
            "Must not contain a colon",
        ),
        ({"REGISTRY_BASE_URL": "https://robot:x@registry.example"}, "REGISTRY_BASE_URL", "account"),
        ({"REGISTRY_BASE_URL": "registry.example:5000"}, "REGISTRY_BASE_URL", "http or https"),
    ],
)
def test_half_an_account_at_the_registry_is_a_fault(
    given: dict[str, str], name: str, told: str
) -> None:
    done = load(given)
    assert done.returncode != 0
    assert f"{name}: " in done.stderr
    assert told in done.stderr


def test_an_account_at_the_registry_may_keep_its_password_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    given = {"REGISTRY_USERNAME": "robot", "REGISTRY_PASSWORD_FILE": str(file)}
    assert value_of("[s.REGISTRY_USERNAME, s.REGISTRY_PASSWORD]", given) == ["robot", "secret"]
    given["REGISTRY_PASSWORD_FILE"] = str(tmp_path / "none")
    said = load(given).stderr
    assert "REGISTRY_PASSWORD_FILE: The file cannot be read" in said
    assert "REGISTRY_PASSWORD: " not in said
