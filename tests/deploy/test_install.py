"""What deploy/install.sh checks before it starts anything, and how it treats secrets."""

from __future__ import annotations

import base64
import fcntl
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml

from tests.deploy.installation import CHECKOUT, SCRIPT, Installation, listening, made_installation
from tests.stack.disks import fill, read_only, small_disk
from tests.stack.free_ports import free_ports
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import DOCKER_HOST

HEX = {
    "SVC_DB_PASSWORD",
    "SVC_RABBITMQ_PASSWORD",
    "SVC_REGISTRY_PASSWORD",
    "WORKSPACE_SSH_GATEWAY_TOKEN",
    "WEB_AUTH_SECRET",
}
KEYS = {"SVC_CREDENTIALS_KEY", "SVC_RECORD_SIGNING_KEY"}
BUILDS = {"buildworker", "enginebuildworkers"}
RUNS = {"runworker", "enginerunworkers"}
OURS = {"api", *BUILDS, *RUNS, "sshgateway", "previewgateway", "egressproxy"}


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    """A folder with settings and nothing that runs."""
    return made_installation(tmp_path)


def _change(installation: Installation, **settings: str) -> None:
    made = {**installation.settings, **settings}
    installation.env.write_text("".join(f"{name}={value}\n" for name, value in made.items()))
    installation.env.chmod(0o600)


# ------------------------------------------------------------------------------- checks


def test_nothing_stands_in_the_way_of_a_good_folder(installation: Installation) -> None:
    done = installation.run("check", "--min-free-mb", "1")
    assert (done.returncode, done.stdout) == (0, "nothing stands in the way\n")
    assert [path.name for path in installation.home.iterdir()] == [".env"]


def test_an_engine_whose_socket_only_the_settings_name_is_used(installation: Installation) -> None:
    _change(installation, CONTAINER_SOCKET_PATH=DOCKER_HOST.removeprefix("unix://"))
    elsewhere = {"DOCKER_HOST": "unix:///nothing/is/here.sock"}
    done = installation.run("check", "--min-free-mb", "1", environ=elsewhere)
    assert (done.returncode, done.stdout) == (0, "nothing stands in the way\n"), done.stderr


def test_all_faults_are_told_at_once(installation: Installation) -> None:
    with listening() as first, listening() as second:
        _change(
            installation,
            SVC_API_PORT=str(first.getsockname()[1]),
            SVC_SSH_PORT=str(second.getsockname()[1]),
            SVC_REGISTRY_PORT="70000",
            RABBITMQ_CONSUMER_TIMEOUT_MS="60000",
            WEB_AUTH_SECRET="short",
        )
        before = installation.env.read_bytes()
        done = installation.run("install", "--min-free-mb", "999999999")
    assert done.returncode == 1
    for told in (
        r"SVC_API_PORT: something else listens on 127\.0\.0\.1 port \d+",
        r"SVC_SSH_PORT: something else listens",
        r"SVC_REGISTRY_PORT: 70000 is no port",
        r"RABBITMQ_CONSUMER_TIMEOUT_MS is 60000, the longest job takes \d+",
        r"WEB_AUTH_SECRET has fewer than 32 characters",
        r"has \d+ MB free, 999999999 are needed",
    ):
        assert re.search(told, done.stderr), told
    # Nothing was begun.
    assert installation.env.read_bytes() == before


def test_the_admin_may_have_a_port_of_its_own_on_this_machine_alone(
    installation: Installation,
) -> None:
    _change(installation, SVC_BIND_HOST="0.0.0.0", SVC_ADMIN_PORT="4999")  # noqa: S104
    assert installation.call("find_docker; settle").returncode == 0
    done = installation.run("compose", "config")
    assert done.returncode == 0, done.stderr
    api = yaml.safe_load(done.stdout)["services"]["api"]
    (admin,) = [str(each) for each in api["ports"] if "4999" in str(each)]
    assert "127.0.0.1" in admin
    assert "0.0.0.0" not in admin  # noqa: S104
    assert str(api["environment"]["SVC_ADMIN_PORT"]) == "4999"


def test_no_service_is_called_ill_because_the_machine_is_slow(installation: Installation) -> None:
    assert installation.call("find_docker; settle").returncode == 0
    _change(installation, SVC_E2B_PORT="4990")
    done = installation.run("compose", "config")
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    checked = {name for name, service in services.items() if "healthcheck" in service}
    assert checked == {*OURS, "e2bfacade", "postgres", "rabbitmq", "registry"}
    for name in checked:
        assert services[name]["healthcheck"]["timeout"] in ("60s", "1m", "1m0s"), name


def test_the_e2b_facade_is_a_container_of_its_own_once_it_has_a_port(
    installation: Installation, tmp_path: Path
) -> None:
    templates = tmp_path / "templates"
    templates.mkdir()
    assert installation.call("find_docker; settle").returncode == 0
    _change(installation, SVC_E2B_PORT="4990", SVC_E2B_TEMPLATES_DIR=str(templates))
    done = installation.run("compose", "config")
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    facade = services["e2bfacade"]
    gateway = services["sshgateway"]
    for name in ("image", "read_only", "cap_drop", "security_opt", "restart", "logging"):
        assert facade[name] == gateway[name], name
    (port,) = [str(each) for each in facade["ports"]]
    assert "127.0.0.1" in port
    assert "4990" in port
    assert f"{templates}" in str(facade["volumes"])
    assert _environment(facade)["SVC_E2B_TEMPLATES_DIR"] in _mounts(facade)
    knows = set(_environment(facade)) & {*HEX, *KEYS, "DATABASE_URL", "RABBITMQ_URL", "DOCKER_HOST"}
    assert knows == {"WORKSPACE_SSH_GATEWAY_TOKEN"}
    assert facade["healthcheck"]["test"][-1] == "e2bfacade"


@pytest.mark.parametrize("off", [{}, {"SVC_E2B_PORT": "0"}], ids=["unset", "0"])
def test_there_is_no_e2b_facade_without_a_port(
    installation: Installation, off: dict[str, str]
) -> None:
    assert installation.call("find_docker; settle").returncode == 0
    _change(installation, **off)
    done = installation.run("compose", "config", "--services")
    assert "e2bfacade" not in done.stdout.split(), done.stderr
    assert "api" in done.stdout.split()


def test_an_e2b_facade_that_would_not_start_is_told_before_anything_is(
    installation: Installation,
) -> None:
    _change(
        installation,
        SVC_E2B_PORT="4990",
        SVC_BIND_HOST="0.0.0.0",  # noqa: S104
        SVC_E2B_TEMPLATES_DIR="/no such folder",
    )
    done = installation.run("check", "--min-free-mb", "1")
    assert done.returncode == 1
    assert "SVC_E2B_TEMPLATES_DIR: /no such folder is no folder" in done.stderr
    assert "SVC_E2B_PORT: with SVC_BIND_HOST=0.0.0.0 everybody who reaches it" in done.stderr
    _change(installation, SVC_TRUSTED_OWNER_HEADER="X-Owner", SVC_E2B_TEMPLATES_DIR="")
    done = installation.run("check", "--min-free-mb", "1")
    assert done.returncode == 0, done.stderr


def test_the_web_may_have_no_port_of_its_own(installation: Installation) -> None:
    _change(installation, SVC_WEB_PORT="0")
    assert installation.call("find_docker; settle").returncode == 0
    done = installation.run("compose", "config")
    assert done.returncode == 0, done.stderr
    assert len(yaml.safe_load(done.stdout)["services"]["api"]["ports"]) == 1
    assert installation.run("check", "--min-free-mb", "1").returncode == 0


@pytest.mark.parametrize(
    "name",
    [
        *("SVC_ADMIN_PORT", "SVC_API_PORT", "SVC_WEB_PORT", "SVC_SSH_PORT", "SVC_PREVIEW_PORT"),
        *("SVC_REGISTRY_PORT", "SVC_E2B_PORT"),
    ],
)
def test_every_port_that_is_taken_is_told_before_anything_is_started(
    installation: Installation, name: str
) -> None:
    with listening() as taken:
        port = taken.getsockname()[1]
        _change(installation, **{name: str(port)})
        before = installation.env.read_bytes()
        done = installation.run("install", "--min-free-mb", "1")
    assert done.returncode == 1
    assert f"{name}: something else listens on 127.0.0.1 port {port}; stop it or" in done.stderr
    assert installation.env.read_bytes() == before


@pytest.mark.docker
@pytest.mark.parametrize("command", ["install", "upgrade", "backup", "uninstall"])
def test_a_folder_that_may_only_be_read_is_told_in_one_line(
    installation: Installation, command: str
) -> None:
    with read_only(installation.home):
        done = installation.run(command, "--yes", "--min-free-mb", "1")
    assert done.returncode == 1
    assert done.stderr == (
        f"install.sh: nothing can be written to {installation.home}: Read-only file system\n"
    )


@pytest.mark.docker
def test_a_full_disk_is_told_and_no_secret_is_lost_to_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "home", "64k") as home:
        installation = made_installation(home)
        (home / ".lock").touch()
        before = installation.env.read_bytes()
        ballast = fill(home)
        told = installation.run("install")
        assert told.returncode == 1
        assert f"the installation's folder ({home}) has 0 MB free" in told.stderr
        # Even when nobody looks how much there is.
        done = installation.run("install", "--min-free-mb", "0")
        assert done.returncode == 1
        assert f"install.sh: {installation.env} could not be written; it is as it was" in (
            done.stderr
        )
        assert installation.env.read_bytes() == before
        assert {path.name for path in home.iterdir()} == {".env", ".lock", ballast.name}
        ballast.unlink()
        assert installation.call("find_docker; settle").returncode == 0
        assert set(installation.settings) > HEX | KEYS


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - asked for, not bound
def test_a_port_that_is_taken_is_told_wherever_one_binds(
    installation: Installation, bind: str
) -> None:
    with listening() as taken:
        _change(installation, SVC_BIND_HOST=bind, SVC_API_PORT=str(taken.getsockname()[1]))
        done = installation.run("check", "--min-free-mb", "1")
    assert "SVC_API_PORT: something else listens" in done.stderr


def test_an_engine_that_is_not_there_is_told(installation: Installation) -> None:
    _change(installation, CONTAINER_SOCKET_PATH=str(installation.home / "none.sock"))
    done = installation.run("check")
    assert done.returncode == 1
    assert "no Docker Engine" in done.stderr
    done = installation.run("check", environ={"DOCKER_HOST": "tcp://127.0.0.1:1"})
    assert done.returncode == 1


def test_a_lost_password_is_not_replaced_while_its_database_is_there(
    installation: Installation,
) -> None:
    client = docker.DockerClient(base_url=DOCKER_HOST, timeout=round(LONG_WAIT))
    volume = client.volumes.create(f"{installation.settings['SVC_INSTANCE_ID']}_postgres")
    try:
        done = installation.run("install", "--min-free-mb", "1")
        assert done.returncode == 1
        assert "SVC_DB_PASSWORD is gone" in done.stderr
        assert "SVC_DB_PASSWORD" not in installation.settings
    finally:
        volume.remove()
        client.close()


def test_two_at_once_do_not_get_into_each_others_way(installation: Installation) -> None:
    with (installation.home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = installation.run("install", "--wait", "0")
    assert done.returncode == 1
    assert "another install.sh works" in done.stderr


def test_one_that_is_about_to_end_is_waited_for(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    with (installation.home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = installation.begin("backup", "--wait", str(int(LONG_WAIT)))
        assert waiting.stderr is not None
        assert "waiting for at most" in waiting.stderr.readline()
    _, said = waiting.communicate(timeout=LONG_WAIT)
    assert waiting.returncode == 1
    assert "nothing is installed" in said


@pytest.mark.parametrize("seconds", ["", "soon", "-1", "1.5"])
def test_a_wait_is_a_number_of_seconds(installation: Installation, seconds: str) -> None:
    done = installation.run("install", "--wait", seconds)
    assert done.returncode == 1
    assert "--wait needs a number of seconds" in done.stderr


@pytest.mark.parametrize("command", ["upgrade", "status", "backup", "uninstall"])
def test_without_an_installation_there_is_nothing_to_look_after(
    tmp_path: Path, command: str
) -> None:
    done = Installation(tmp_path).run(command, "--yes")
    assert done.returncode == 1
    assert "nothing is installed" in done.stderr


@pytest.mark.parametrize("arguments", [["--what"], ["explode"]])
def test_what_is_not_known_is_refused(installation: Installation, arguments: list[str]) -> None:
    done = installation.run(*arguments)
    assert done.returncode == 1
    assert "usage:" in done.stderr


def test_nothing_is_removed_without_an_answer(installation: Installation) -> None:
    done = installation.run("uninstall")
    assert done.returncode == 1
    assert "nobody is there to answer" in done.stderr
    assert installation.env.exists()


@pytest.mark.parametrize("name", ["", "*", "Svc", "a b", "-x", "a=b"])
def test_an_installation_without_a_proper_name_removes_nothing(
    installation: Installation, name: str
) -> None:
    _change(installation, SVC_INSTANCE_ID=name)
    done = installation.run("uninstall", "--yes")
    assert done.returncode == 1
    assert "SVC_INSTANCE_ID" in done.stderr
    assert installation.env.exists()


# ------------------------------------------------------------------------------- secrets


@pytest.mark.parametrize("function", ["check_all", "settle", "do_upgrade ''"])
def test_a_checkout_that_names_no_release_is_told_and_nothing_is_written(
    installation: Installation, tmp_path: Path, function: str
) -> None:
    before = installation.env.read_text()
    place = tmp_path / "not a checkout"
    done = installation.call(f"checkout='{place}'; find_docker; {function}; echo 'it went on'")
    assert done.returncode == 1
    assert "this checkout does not say which release it is" in done.stderr
    assert f"{place}/controlplane/settings_fixed.py" in done.stderr
    assert "it went on" not in done.stdout
    assert installation.env.read_text() == before


def test_a_version_in_the_settings_needs_no_release_of_the_checkout(
    installation: Installation, tmp_path: Path
) -> None:
    _change(installation, SVC_VERSION="9.9.9")
    done = installation.call(f"checkout='{tmp_path}'; find_docker; settle")
    assert done.returncode == 0, done.stderr
    assert installation.settings["SVC_VERSION"] == "9.9.9"


def test_secrets_are_made_once_and_never_again(installation: Installation) -> None:
    first = installation.call("find_docker; settle")
    assert first.returncode == 0, first.stderr
    made = installation.settings
    assert all(re.fullmatch("[0-9a-f]{64}", made[name]) for name in HEX)
    assert all(len(base64.b64decode(made[name], validate=True)) == 32 for name in KEYS)
    assert len({made[name] for name in HEX | KEYS}) == 7
    assert installation.env.stat().st_mode & 0o777 == 0o600
    before = installation.env.read_bytes()
    again = installation.call("find_docker; settle")
    assert (again.returncode, again.stdout) == (0, "")
    assert installation.env.read_bytes() == before
    # None of them was shown.
    assert not any(made[name] in first.stdout + first.stderr for name in HEX | KEYS)


def test_a_last_line_without_an_end_stays_what_it_is(installation: Installation) -> None:
    text = installation.env.read_text() + "\nSVC_OWNER_USER_ID=usr_somebody"
    installation.env.write_text(text)
    assert installation.call("find_docker; settle").returncode == 0
    assert installation.settings["SVC_OWNER_USER_ID"] == "usr_somebody"
    assert installation.env.read_text().startswith(text + "\n")


def test_a_secret_of_the_operators_own_stays(installation: Installation) -> None:
    mine = "0123456789abcdef" * 3
    _change(installation, WEB_AUTH_SECRET=mine, SVC_DB_PASSWORD="old.but-mine")
    assert installation.call("find_docker; settle").returncode == 0
    made = installation.settings
    assert (made["WEB_AUTH_SECRET"], made["SVC_DB_PASSWORD"]) == (mine, "old.but-mine")


def test_one_that_is_written_but_empty_counts_as_missing(installation: Installation) -> None:
    _change(installation, SVC_DB_PASSWORD="")
    assert installation.call("find_docker; settle").returncode == 0
    assert re.fullmatch("[0-9a-f]{64}", installation.settings["SVC_DB_PASSWORD"])


def test_a_password_that_an_address_cannot_hold_is_refused(installation: Installation) -> None:
    _change(installation, SVC_DB_PASSWORD="p@ss/word")
    done = installation.run("check", "--min-free-mb", "1")
    assert done.returncode == 1
    assert "SVC_DB_PASSWORD may hold letters" in done.stderr
    assert "p@ss" not in done.stderr


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604, 0o400])
def test_wrong_permissions_are_repaired_with_a_word(installation: Installation, mode: int) -> None:
    installation.env.chmod(mode)
    done = installation.run("check", "--min-free-mb", "1")
    assert done.returncode == 0
    assert f"had mode {mode:o} and has 600 now" in done.stderr
    assert installation.env.stat().st_mode & 0o777 == 0o600


def test_secrets_elsewhere_are_refused(installation: Installation) -> None:
    elsewhere = installation.home / "elsewhere"
    installation.env.rename(elsewhere)
    installation.env.symlink_to(elsewhere)
    done = installation.run("check")
    assert done.returncode == 1
    assert "symbolic link" in done.stderr


def test_secrets_of_another_account_are_refused(installation: Installation) -> None:
    if os.geteuid() != 0:  # only root can give a file away
        return
    os.chown(installation.env, 65534, 65534)
    done = installation.run("check")
    assert done.returncode == 1
    assert "belongs to account 65534" in done.stderr


# ------------------------------------------------------------------------------- the composition


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """compose.yaml as Compose understands it, with nothing set that need not be."""
    ports = free_ports(3)
    installation = made_installation(
        tmp_path_factory.mktemp("composed"),
        SVC_API_PORT=str(ports[0]),
        SVC_CREDENTIALS_KEY=base64.b64encode(b"k" * 32).decode(),
    )
    assert installation.call("find_docker; settle").returncode == 0
    leaked = {"DATABASE_URL": "postgres://leaked", "SVC_API_PORT": "1", "SVC_VERSION": "leaked"}
    done = installation.run("compose", "config", environ=leaked)
    assert done.returncode == 0, done.stderr
    # What the caller's shell happens to export is nobody's setting.
    assert "leaked" not in done.stdout
    found = yaml.safe_load(done.stdout)
    assert isinstance(found, dict)
    return found


def _mounts(service: dict[str, Any]) -> set[str]:
    return {
        str(mount["target"]) if isinstance(mount, dict) else mount.split(":")[1]
        for mount in service.get("volumes", [])
    }


def _environment(service: dict[str, Any]) -> dict[str, Any]:
    return dict(service["environment"])


def test_only_the_build_worker_sees_the_engines_socket(composed: dict[str, Any]) -> None:
    seeing = {
        name
        for name, service in composed["services"].items()
        if "/var/run/docker.sock" in _mounts(service)
    }
    assert seeing == {"buildworker"}


def test_every_service_is_watched_and_started_again(composed: dict[str, Any]) -> None:
    for name, service in composed["services"].items():
        if name == "migrate":
            assert service["restart"] == "no"
            continue
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"], name


def test_ours_have_no_rights_that_they_do_not_need(composed: dict[str, Any]) -> None:
    for name in OURS | {"migrate"}:
        service = composed["services"][name]
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service


def test_everything_is_bound_to_loopback(composed: dict[str, Any]) -> None:
    bound = {
        name: [
            mapping["host_ip"]
            if isinstance(mapping, dict)
            else mapping.rpartition(":")[0].rpartition(":")[0]
            for mapping in service["ports"]
        ]
        for name, service in composed["services"].items()
        if service.get("ports")
    }
    assert bound.pop("api") == ["127.0.0.1"] * 2
    assert bound == {name: ["127.0.0.1"] for name in ("registry", "sshgateway", "previewgateway")}


def test_each_process_knows_only_its_own_secrets(composed: dict[str, Any]) -> None:
    services = composed["services"]
    knowing = {
        name: {service for service in services if name in _environment(services[service])}
        for name in (*HEX, *KEYS, "DATABASE_URL", "REGISTRY_PASSWORD", "SCM_APP_PRIVATE_KEY")
    }
    assert knowing == {
        "SVC_DB_PASSWORD": set(),
        "SVC_RABBITMQ_PASSWORD": set(),
        "SVC_REGISTRY_PASSWORD": set(),
        "REGISTRY_PASSWORD": {"api", *BUILDS},
        "WORKSPACE_SSH_GATEWAY_TOKEN": {"api", "sshgateway", "previewgateway"},
        "WEB_AUTH_SECRET": {"api"},
        "SVC_CREDENTIALS_KEY": {"api", *BUILDS, "egressproxy"},
        "SVC_RECORD_SIGNING_KEY": {"api", *BUILDS, *RUNS},
        "DATABASE_URL": {"migrate", "api", *BUILDS, *RUNS, "egressproxy"},
        "SCM_APP_PRIVATE_KEY": {"api", *BUILDS},
    }


def test_gateways_read_how_engines_are_reached_and_only_who_knows_that_writes_it(
    composed: dict[str, Any],
) -> None:
    def mounted(name: str) -> tuple[str, bool] | None:
        for mount in composed["services"][name].get("volumes", ()):
            if isinstance(mount, str):
                source, target, *mode = mount.split(":")
                found = (source, target, "ro" in mode)
            else:
                found = (mount["source"], mount["target"], mount.get("read_only", False))
            if found[1] == "/var/lib/svc/engines":
                return found[0], found[2]
        return None

    assert {name: mounted(name) for name in composed["services"] if mounted(name)} == {
        "api": ("engines", False),
        "enginerunworkers": ("engines", False),
        "sshgateway": ("engines", True),
        "previewgateway": ("engines", True),
    }


def test_who_has_no_socket_goes_through_the_proxy(composed: dict[str, Any]) -> None:
    for name in ("runworker", "sshgateway", "previewgateway"):
        service = composed["services"][name]
        assert _environment(service)["DOCKER_HOST"] == "unix:///run/svc-engineproxy/engine.sock"
        assert "/run/svc-engineproxy" in _mounts(service)


def test_the_broker_keeps_its_name_its_data_and_its_timeout(composed: dict[str, Any]) -> None:
    broker = composed["services"]["rabbitmq"]
    environment = _environment(broker)
    assert broker["hostname"] == "rabbitmq"
    assert environment["RABBITMQ_NODENAME"] == "svc@rabbitmq"
    assert "/var/lib/rabbitmq" in _mounts(broker)
    timeout = int(environment["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"].split()[-1])
    told = _environment(composed["services"]["api"])["RABBITMQ_CONSUMER_TIMEOUT_MS"]
    assert timeout == int(told) >= 2 * 3_600_000


def test_the_api_in_containers_answers_to_its_own_names_and_pages(composed: dict[str, Any]) -> None:
    environment = _environment(composed["services"]["api"])
    hosts = environment["SVC_ALLOWED_HOSTS"].split(",")
    # The gateway asks for `api`, the health check for 127.0.0.1.
    assert {"localhost", "127.0.0.1", "[::1]", "api"} <= set(hosts)
    assert "*" not in hosts
    port = environment["SVC_API_PORT"]
    origins = environment["SVC_CORS_ALLOWED_ORIGINS"].split(",")
    assert {f"http://localhost:{port}", f"http://127.0.0.1:{port}"} < set(origins)
    assert "*" not in origins
    # It listens everywhere in its container, and on loopback as far as the machine is concerned.
    assert environment["SVC_REQUIRE_OWNER"] == "false"


def test_every_setting_reaches_a_process() -> None:
    example = (CHECKOUT / "deploy" / ".env.example").read_text()
    text = "".join(path.read_text() for path in (CHECKOUT / "deploy").glob("compose*.yaml"))
    text += "".join(path.read_text() for path in (CHECKOUT / "deploy" / "install").iterdir())
    text += SCRIPT.read_text()
    # In a container these are where they are, whatever the machine outside looks like; the last two
    # are of `make up` alone, and debug pages are for nobody's installation.
    elsewhere = {
        *("SVC_DATA_DIR", "SSH_GATEWAY_HOST_KEY_PATH", "SVC_DEBUG"),
        *("SVC_UP_PRIVATE", "SVC_OWNER_USER_ID"),
    }
    settings = set(re.findall(r"^#([A-Z][A-Z0-9_]+)=", example, flags=re.MULTILINE))
    unheard = {name for name in settings if not re.search(rf"\b{name}\b", text)}
    assert unheard == elsewhere


def test_the_scripts_are_sound_shell() -> None:
    scripts = [SCRIPT, *(CHECKOUT / "deploy").glob("install/*.sh")]
    scripts += (CHECKOUT / "deploy").glob("images/*/*.sh")
    assert len(scripts) > 5
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
