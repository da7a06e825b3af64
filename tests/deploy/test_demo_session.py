"""What the demo's session over SSH is made of, as far as it needs no workspace."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from pytest_django.live_server_helper import LiveServer

from accounts.models import SshKey
from accounts.public_keys import fingerprint_of, parse_public_key
from deploy.services.errors import SetupError
from deploy.up import demo_session
from deploy.up.api import Api
from deploy.up.demo_session import client_options, ensure_key, on_terminal, write_known_hosts
from deploy.up.layout import Layout


def test_a_program_on_a_terminal_is_seen_byte_by_byte() -> None:
    script = "stty -opost; stty size; echo $TERM; printf 'a\\r\\nb'; echo aside >&2; exit 7"
    assert on_terminal(["sh", "-c", script]) == (7, b"24 80\nxterm-256color\na\r\nb", "aside\n")


def test_a_program_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_session, "_SECONDS", 0.5)
    with pytest.raises(SetupError, match="has not ended"):
        on_terminal(["sleep", "60"])
    with pytest.raises(SetupError, match="cannot be run: No such file"):
        on_terminal(["no-such-program"])


@pytest.mark.django_db(transaction=True)
def test_the_demo_registers_one_key_however_often_it_runs(
    layout: Layout, live_server: LiveServer
) -> None:
    first = ensure_key(layout, Api(live_server.url, "usr_local"))
    made = first.read_bytes()
    assert ensure_key(layout, Api(live_server.url, "usr_local")) == first
    assert first.read_bytes() == made
    assert first.stat().st_mode & 0o777 == 0o600
    assert [key.owner_user_id for key in SshKey.objects.all()] == ["usr_local"]


@pytest.mark.django_db(transaction=True)
def test_a_demo_for_another_owner_gets_a_key_of_its_own(
    layout: Layout, live_server: LiveServer
) -> None:
    path = ensure_key(layout, Api(live_server.url, "usr_local"))
    before = path.read_bytes()
    assert ensure_key(layout, Api(live_server.url, "usr_other")) == path
    assert path.read_bytes() != before
    public = parse_public_key(path.with_suffix(".pub").read_text())
    owners = {key.fingerprint: key.owner_user_id for key in SshKey.objects.all()}
    assert len(owners) == 2
    assert owners[fingerprint_of(public.blob)] == "usr_other"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, "[localhost]:2222,[127.0.0.1]:2222"),
        (
            {"SVC_SSH_PORT": "22", "SVC_SSH_HOST": "gateway.example", "SVC_BIND_HOST": "::"},
            "gateway.example,::1",
        ),
    ],
)
def test_a_client_knows_the_gateway_by_its_host_key(
    layout: Layout, tmp_path: Path, given: dict[str, str], names: str
) -> None:
    host_key = tmp_path / "elsewhere"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(host_key)], check=True)
    (layout.data / "ssh").mkdir()
    environ = {**given, "SSH_GATEWAY_HOST_KEY_PATH": str(host_key)}
    line = write_known_hosts(layout, environ).read_text()
    public = host_key.with_suffix(".pub").read_text().split()
    assert line == f"{names} {public[0]} {public[1]}\n"


def test_the_known_hosts_are_one_file_also_on_a_path_with_spaces(tmp_path: Path) -> None:
    known_hosts = tmp_path / "a path with spaces" / "known_hosts"
    options = client_options(tmp_path / "key", known_hosts, 2222)
    (given,) = [each for each in options if each.startswith("UserKnownHostsFile=")]
    # ssh takes what it is given apart as a shell does.
    assert shlex.split(given.partition("=")[2]) == [str(known_hosts)]
