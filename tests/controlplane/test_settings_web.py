"""What the specification says of settings holds in the process that each of them concerns."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from pytest_django.fixtures import Settings

from deploy.up.secrets import ensure_secrets, read_settings
from tests.controlplane.test_settings import load, value_of
from tests.support.waiting import LONG_WAIT

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "deploy" / "README.md"
EXAMPLE = ROOT / "deploy" / ".env.example"


# ---------------------------------------------------------------- what follows from what


def test_the_databases_password_is_part_of_its_default_address() -> None:
    assert value_of("s.DATABASE_URL", {}) == "postgres://svc@127.0.0.1:5432/svc"
    given = {"SVC_DB_PASSWORD": "a/b@c%"}
    assert value_of("s.DATABASE_URL", given) == "postgres://svc:a%2Fb%40c%25@127.0.0.1:5432/svc"
    assert value_of("s.DATABASES['default']['PASSWORD']", given) == "a/b@c%"
    own = {**given, "DATABASE_URL": "postgres://me:x@db.example/mine"}
    assert value_of("s.DATABASE_URL", own) == "postgres://me:x@db.example/mine"


def test_the_brokers_password_is_part_of_its_default_address(tmp_path: Path) -> None:
    assert value_of("s.RABBITMQ_URL", {}) == "amqp://guest:guest@127.0.0.1:5672/"
    file = tmp_path / "password"
    file.write_text("f00/d\n")
    given = {"SVC_RABBITMQ_PASSWORD_FILE": str(file)}
    assert value_of("s.RABBITMQ_URL", given) == "amqp://svc:f00%2Fd@127.0.0.1:5672/"


def test_the_registrys_port_is_part_of_its_default_addresses() -> None:
    shown = "[s.REGISTRY_BASE_URL, s.REGISTRY_PUSH_REGISTRY]"
    given = {"SVC_REGISTRY_PORT": "5055"}
    assert value_of(shown, given) == ["http://127.0.0.1:5055", "127.0.0.1:5055"]
    own = {**given, "REGISTRY_BASE_URL": "https://r.example", "REGISTRY_PUSH_REGISTRY": "r.example"}
    assert value_of(shown, own) == ["https://r.example", "r.example"]


def test_the_webs_address_and_origins_follow_from_its_port() -> None:
    shown = "[s.SVC_WEB_URL, sorted(s.CSRF_TRUSTED_ORIGINS)]"
    assert value_of(shown, {"SVC_WEB_PORT": "3030", "SVC_API_PORT": "4040"}) == [
        "http://localhost:3030",
        [f"http://{host}:{port}" for host in ("127.0.0.1", "localhost") for port in (3030, 4040)],
    ]
    assert value_of(shown, {"SVC_WEB_PORT": "0"}) == [
        "http://localhost:4000",
        ["http://127.0.0.1:4000", "http://localhost:4000"],
    ]
    given = {"SVC_WEB_TRUSTED_ORIGINS": "https://web.example , https://*.example"}
    assert value_of("s.CSRF_TRUSTED_ORIGINS", given) == ["https://web.example", "https://*.example"]


def test_the_engines_socket_is_part_of_its_default_address() -> None:
    given = {"CONTAINER_SOCKET_PATH": "/run/other.sock"}
    assert value_of("s.DOCKER_HOST", given) == "unix:///run/other.sock"


def test_an_engine_may_lie_in_a_folder_with_spaces() -> None:
    given = {"DOCKER_HOST": "unix:///home/ada/my checkout/.data/docker.sock"}
    assert value_of("s.DOCKER_HOST", given) == given["DOCKER_HOST"]


def test_the_version_is_the_release_unless_it_is_said() -> None:
    assert value_of("[s.SVC_VERSION == s.SVC_RELEASE]", {"SVC_VERSION": ""}) == [True]
    assert value_of("s.SVC_VERSION", {"SVC_VERSION": "0.4.7"}) == "0.4.7"


# ---------------------------------------------------------------- what is wrong

WRONG = {
    "DATABASE_URL": "mysql://root:hunter2@db/x",
    "RABBITMQ_URL": "http://guest:hunter2@broker/",
    "REGISTRY_PUSH_REGISTRY": "http://127.0.0.1:5000/hunter",
    "SVC_REGISTRY_PORT": "0",
    "SVC_WEB_PORT": "70000",
    "SVC_WEB_URL": "web.example",
    "SVC_WEB_TRUSTED_ORIGINS": "https://web.example/admin",
    "CORS_ALLOWED_ORIGINS": "web.example",
    "CONTAINER_SOCKET_PATH": "docker.sock",
    "WEB_AUTH_SECRET": "hunter2",
    "SVC_BIND_HOST": "127.0.0.300",
    "SVC_ALLOWED_HOSTS": "web.example:4000",
    "SVC_SSH_HOST": "ssh://web.example",
    "DOCKER_HOST": "/var/run/docker.sock",
    "WORKSPACE_BUILD_QUEUE": "",
    "WORKSPACE_RUN_QUEUE": "amq.runs",
    "SVC_BASE_IMAGE_FEDORA": "fedora latest",
    "REGISTRY_NAME": "",
    "WORKSPACE_MEMORY_MB": "65536",
    "RUN_TIME_LIMIT_MS": "99999999",
}


def test_everything_that_is_wrong_is_told_at_once_with_a_hint_and_no_secret() -> None:
    done = load(WRONG)
    assert done.returncode == 1
    first, *told, hint = done.stderr.splitlines()
    assert first == "The environment is not valid."
    assert [line.split(": ")[0].strip() for line in told] == sorted(WRONG)
    assert hint == "deploy/README.md explains every setting."
    assert "hunter2" not in done.stderr


PROCESSES = {
    "the API": ["-m", "gunicorn", "-c", "deploy/gunicorn.conf.py", "controlplane.wsgi"],
    "the build worker": ["manage.py", "buildworker"],
    "the build worker's container": ["-m", "deploy.worker"],
    "the run worker": ["manage.py", "runworker"],
    "the SSH gateway": ["manage.py", "sshgateway"],
    "the preview gateway": ["manage.py", "previewgateway"],
    "the egress proxy": ["manage.py", "egressproxy"],
    "the engine's proxy": ["manage.py", "engineproxy"],
    "the migration": ["manage.py", "migrate", "--noinput", "--skip-checks"],
}


@pytest.mark.parametrize("process", PROCESSES)
def test_every_process_ends_with_all_faults_and_no_traceback(process: str) -> None:
    done = subprocess.run(
        [sys.executable, *PROCESSES[process]],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "SVC_API_PORT": "x", "SVC_LOG_FORMAT": "xml"},
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    told = {line.split(":")[0] for line in done.stderr.splitlines() if line.startswith("  ")}
    assert told == {"  SVC_API_PORT", "  SVC_LOG_FORMAT"}


def test_a_database_that_does_not_answer_is_told_to_who_migrates_in_words() -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "migrate", "--noinput", "--skip-checks"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "DATABASE_URL": "postgres://svc:hunter2@127.0.0.1:1/svc"},
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "127.0.0.1" in done.stderr
    assert "DATABASE_URL" in done.stderr
    assert "hunter2" not in done.stderr


def test_a_build_worker_that_cannot_write_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "manage.py", "buildworker"],
        cwd=ROOT,
        env={**os.environ, "SVC_DATA_DIR": str(tmp_path / "file" / "data")},
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert str(tmp_path / "file" / "data") in done.stderr
    assert "SVC_DATA_DIR" in done.stderr


def test_an_address_that_is_left_empty_does_not_open_the_machine() -> None:
    assert value_of("s.SVC_BIND_HOST", {"SVC_BIND_HOST": ""}) == "127.0.0.1"
    assert value_of("s.DOCKER_HOST", {"DOCKER_HOST": ""}) == "unix:///var/run/docker.sock"


def test_the_api_answers_to_its_own_names_unless_others_are_given() -> None:
    given = {"SVC_BIND_HOST": "10.0.0.7", "SVC_WEB_URL": "https://web.example/svc"}
    own = ["localhost", "127.0.0.1", "[::1]", "10.0.0.7", "web.example"]
    assert value_of("s.ALLOWED_HOSTS", given) == [*own, socket.gethostname().lower()]
    for everywhere in ("0.0.0.0", "::"):  # noqa: S104 - a setting, not bound
        hosts = value_of("s.ALLOWED_HOSTS", {"SVC_BIND_HOST": everywhere})
        assert isinstance(hosts, list)
        assert "*" not in hosts
        assert everywhere not in hosts
    assert value_of("s.ALLOWED_HOSTS", {"SVC_ALLOWED_HOSTS": "a.example, *"}) == ["a.example", "*"]


@pytest.mark.parametrize(
    ("bound", "required"),
    [("", False), ("127.0.0.9", False), ("::1", False), ("localhost", False), ("::", True),
     ("0.0.0.0", True), ("10.0.0.7", True), ("api.example", True)],  # noqa: S104 - not bound
)  # fmt: skip
def test_the_owner_has_to_be_said_to_who_listens_beyond_this_machine(
    bound: str, required: bool
) -> None:
    assert value_of("s.SVC_REQUIRE_OWNER", {"SVC_BIND_HOST": bound}) is required
    told = {"SVC_BIND_HOST": bound, "SVC_REQUIRE_OWNER": str(not required)}
    assert value_of("s.SVC_REQUIRE_OWNER", told) is not required


def test_builds_and_runs_do_not_share_a_queue() -> None:
    done = load({"WORKSPACE_RUN_QUEUE": "one", "WORKSPACE_BUILD_QUEUE": "one"})
    assert "WORKSPACE_RUN_QUEUE: Must differ from WORKSPACE_BUILD_QUEUE" in done.stderr


@pytest.mark.parametrize("name", ["CORS_ALLOWED_ORIGINS", "SVC_CORS_ALLOWED_ORIGINS"])
def test_a_fault_bears_the_name_that_was_given(name: str) -> None:
    assert f"  {name}: Not an origin" in load({name: "web.example"}).stderr


@pytest.mark.parametrize("url", ["postgres://u:hunter2@h:port/d", "hunter2", "postgres://[::1/d"])
def test_an_address_that_is_none_shows_nothing_of_its_password(url: str) -> None:
    done = load({"DATABASE_URL": url})
    assert "DATABASE_URL: Must have the form" in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize(
    "url",
    ["postgres://%2Fvar%2Frun%2Fpostgresql/svc", "postgresql://u@[::1]:5433/d?sslmode=require"],
)
def test_addresses_as_people_write_them_are_taken(url: str) -> None:
    assert value_of("s.DATABASE_URL", {"DATABASE_URL": url}) == url


# ---------------------------------------------------------------- where the web settings apply


@pytest.mark.django_db
def test_pages_name_their_place_under_the_canonical_address(settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["10.0.0.7", "testserver"]
    settings.SVC_WEB_URL = "https://web.example/svc/"
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    place = '<https://web.example/svc{}>; rel="canonical"'
    for path in ("/admin/", "/docs", "/admin/login/"):
        page = client.get(path, headers={"host": "10.0.0.7:4000"}, follow=False)
        if page.status_code == 200:
            assert page.headers["link"] == place.format(path)
    assert client.get("/docs").headers["link"] == place.format("/docs")
    for path in ("/", "/healthz", "/openapi.json", "/metrics", "/admin/nothing/here/"):
        assert "link" not in client.get(path).headers, path


@pytest.mark.django_db
def test_the_admin_takes_forms_from_trusted_origins_and_no_others(settings: Settings) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://web.example"]
    client = Client(enforce_csrf_checks=True)
    client.get("/admin/login/")
    token = client.cookies["csrftoken"].value
    form = {"csrfmiddlewaretoken": token, "username": "nobody", "password": "x"}
    statuses = {
        origin: client.post("/admin/login/", form, headers={"origin": origin}).status_code
        for origin in ("https://web.example", "https://evil.example")
    }
    assert statuses == {"https://web.example": 200, "https://evil.example": 403}


# ---------------------------------------------------------------- secrets


def test_generated_secrets_are_64_hex_characters_made_once(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("WEB_AUTH_SECRET=my-own\n")
    ensure_secrets(file)
    first = read_settings(file)
    for name in ("SVC_DB_PASSWORD", "SVC_RABBITMQ_PASSWORD", "WORKSPACE_SSH_GATEWAY_TOKEN"):
        assert re.fullmatch(r"[0-9a-f]{64}", first[name]), name
    assert first["WEB_AUTH_SECRET"] == "my-own"
    assert ensure_secrets(file) == []
    assert read_settings(file) == first
    assert file.stat().st_mode & 0o777 == 0o600
    other = tmp_path / "other"
    ensure_secrets(other)
    assert re.fullmatch(r"[0-9a-f]{64}", read_settings(other)["WEB_AUTH_SECRET"])


# ---------------------------------------------------------------- code, example and documentation

_FOUND_OR_SECRET = {"DATABASE_URL", "DOCKER_CLI", "DOCKER_HOST"}


def test_the_examples_values_are_the_defaults() -> None:
    example = dict(
        re.findall(r"^#([A-Z][A-Z0-9_]+)=(.+)$", EXAMPLE.read_text(), flags=re.MULTILINE)
    )
    assert len(example) > 90
    shown = (
        "{n: str(v) for n, v in vars(s).items()"
        " if n.isupper() and isinstance(v, (str, int, float, list, dict))}"
    )
    relative = {"SVC_DATA_DIR": "", "SSH_GATEWAY_HOST_KEY_PATH": ""}
    left_out = {*_FOUND_OR_SECRET, *relative, "SVC_INSTANCE_ID"}
    given = {name: value for name, value in example.items() if name not in left_out}
    defaults, with_example = value_of(shown, {}), value_of(shown, given)
    assert isinstance(defaults, dict)
    assert isinstance(with_example, dict)
    made_anew = {"SECRET_KEY"}
    differing = {
        name
        for name, value in with_example.items()
        if name not in made_anew and defaults[name] != value
    }
    assert differing == set(), json.dumps(sorted(differing))


def test_the_documentation_lists_no_setting_that_nobody_reads() -> None:
    table = README.read_text().partition("\n| Setting | Default | Meaning |")[2]
    rows = re.findall(r"^\| (`[^|]+) \|", table.partition("\n\n")[0], flags=re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", row)}
    code = "".join(
        path.read_text()
        for folder in ("controlplane", "deploy", "runs", "builds")
        for path in (ROOT / folder).rglob("*.py")
    )
    in_containers = "".join(
        path.read_text()
        for path in [ROOT / "deploy" / "install.sh", *(ROOT / "deploy" / "install").iterdir()]
    )
    assert len(listed) > 100
    unread = {name for name in listed if f'"{name}"' not in code}
    assert {name for name in unread if not re.search(rf"\b{name}\b", in_containers)} == set()
