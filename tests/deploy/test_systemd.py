"""The units of deploy/systemd are sound, and give each process what it needs and no more."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.waiting import LONG_WAIT

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDER = CHECKOUT / "deploy" / "systemd"
UNITS = sorted(path.name for path in FOLDER.glob("*.service"))
_PROGRAMS = "/opt/svc/venv/bin/"
EDGE = {
    "svc-runworker.service",
    "svc-enginerunworkers.service",
    "svc-sshgateway.service",
    "svc-previewgateway.service",
}
"""Whose account has nothing else, and who reaches workspaces through the engine proxy."""
EGRESS = "svc-egressproxy.service"
E2B = "svc-e2bfacade.service"


def _values(unit: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", (FOLDER / unit).read_text(), flags=re.MULTILINE)


def test_systemd_takes_the_units_as_they_are(tmp_path: Path) -> None:
    # The programs have to be there; which ones they are is not systemd's business.
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python", "gunicorn"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    copies = []
    for path in sorted(FOLDER.iterdir()):
        copy = tmp_path / path.name
        copy.write_text(path.read_text().replace(_PROGRAMS, f"{programs}/"))
        copies.append(copy)
    verify = shutil.which("systemd-analyze")
    if verify is None:  # where there is no systemd nobody runs its units either
        return
    done = subprocess.run(
        [verify, "verify", "--man=no", *copies],
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if "svc" in line]
    assert (done.returncode, said) == (0, [])


def test_the_target_starts_every_unit() -> None:
    (wanted,) = re.findall(r"^Wants=(.*)$", (FOLDER / "svc.target").read_text(), re.MULTILINE)
    assert sorted(wanted.split()) == UNITS


@pytest.mark.parametrize("unit", UNITS)
def test_each_command_exists(unit: str) -> None:
    (command,) = _values(unit, "ExecStart")
    words = command.removeprefix(_PROGRAMS).split()
    if words[0] == "gunicorn":
        assert (CHECKOUT / words[2]).is_file()
        return
    assert words[:2] == ["python", "manage.py"]
    found = list(CHECKOUT.glob(f"*/management/commands/{words[2]}.py"))
    assert found or words[2] == "migrate"


@pytest.mark.parametrize("unit", UNITS)
def test_only_the_worker_and_the_proxy_are_in_the_engines_group(unit: str) -> None:
    in_it = _values(unit, "SupplementaryGroups") == ["docker"]
    assert in_it == (unit in {"svc-buildworker.service", "svc-engineproxy.service"})


@pytest.mark.parametrize("unit", UNITS)
def test_nobody_runs_as_root_or_becomes_it(unit: str) -> None:
    others = {EGRESS: "svc-egress", **dict.fromkeys({*EDGE, E2B}, "svc-runs")}
    assert _values(unit, "User") == [others.get(unit, "svc")]
    assert _values(unit, "NoNewPrivileges") == ["yes"]
    assert _values(unit, "CapabilityBoundingSet") == [""]


def test_the_egress_proxy_opens_bound_accounts_and_knows_nothing_else_of_ours() -> None:
    (unset,) = _values(EGRESS, "UnsetEnvironment")
    assert {"SCM_APP_PRIVATE_KEY", "SVC_RECORD_SIGNING_KEY", "WEB_AUTH_SECRET"} <= set(
        unset.split()
    )
    assert "SVC_CREDENTIALS_KEY" not in unset.split()
    assert "DOCKER_HOST" not in (FOLDER / EGRESS).read_text()
    assert _values(EGRESS, "LimitCORE") == ["0"]


@pytest.mark.parametrize("unit", sorted(EDGE))
def test_who_uses_the_proxy_knows_neither_accounts_nor_the_engine(unit: str) -> None:
    (unset,) = _values(unit, "UnsetEnvironment")
    assert {"SVC_CREDENTIALS_KEY", "SCM_APP_PRIVATE_KEY", "WEB_AUTH_SECRET"} <= set(unset.split())
    assert "DOCKER_HOST=unix:///run/svc-engineproxy/engine.sock" in _values(unit, "Environment")


def test_who_goes_through_the_proxy_in_containers_does_so_under_systemd() -> None:
    services = yaml.safe_load((FOLDER.parent / "compose.yaml").read_text())["services"]
    through = {
        f"svc-{name}.service": f"DOCKER_HOST={service['environment']['DOCKER_HOST']}"
        for name, service in services.items()
        if "DOCKER_HOST" in service["environment"]
    }
    assert {"svc-api.service", "svc-sshgateway.service"} <= through.keys()
    for unit, told in through.items():
        assert told in _values(unit, "Environment"), unit
        (after,) = _values(unit, "After")
        assert "svc-engineproxy.service" in after.split(), unit


@pytest.mark.parametrize("unit", sorted(path.name for path in FOLDER.glob("*.service")))
def test_who_knows_not_the_registrys_password_knows_not_its_user_either(unit: str) -> None:
    # One without the other is a setting that nobody starts with.
    unset = {name for line in _values(unit, "UnsetEnvironment") for name in line.split()}
    assert ("REGISTRY_PASSWORD" in unset) == ("REGISTRY_USERNAME" in unset)


def test_the_e2b_facade_knows_only_how_to_reach_the_api() -> None:
    (unset,) = _values(E2B, "UnsetEnvironment")
    assert {"SVC_CREDENTIALS_KEY", "DATABASE_URL", "RABBITMQ_URL", "WEB_AUTH_SECRET"} <= set(
        unset.split()
    )
    assert "WORKSPACE_SSH_GATEWAY_TOKEN" not in unset
    assert "DOCKER_HOST" not in (FOLDER / E2B).read_text()


@pytest.mark.parametrize(
    ("told", "starts"),
    [({}, False), ({"SVC_E2B_PORT": "0"}, False), ({"SVC_E2B_PORT": "4090"}, True)],
)
def test_the_e2b_facade_is_started_only_when_it_has_a_port(
    told: dict[str, str], starts: bool
) -> None:
    # Of a command that fails here systemd takes the unit for skipped, and does not start it again.
    (condition,) = _values(E2B, "ExecCondition")
    command = shlex.split(condition.replace("$$", "$"))
    done = subprocess.run(command, env=told, check=False)
    assert done.returncode == (0 if starts else 1)
