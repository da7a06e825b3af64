"""What the SSH gateway refuses: whoever is refused is told what, and what to do."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator

import pytest
import requests

from tests.conftest import OWNER
from tests.stack.api_relay import Exchange, Relay, relay_to
from tests.stack.service import HARNESS, GitServer, Stack
from tests.stack.ssh import HOST, SECONDS, Client, Done
from tests.stack.ssh_access import SshAccess, access_of
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.docker

REFUSED = 255
MARK = "/tmp/was-executed"
PLAIN = str.maketrans("\u201c\u201d\u2018\u2019", "\"\"''")
"""OpenSSH shows a reason in ASCII only."""


@pytest.fixture(scope="module")
def access(
    stack: Stack, git_server: GitServer, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SshAccess]:
    """One workspace for all tests here."""
    with access_of(stack, git_server, run_queue, tmp_path_factory.mktemp("refusals")) as made:
        yield made


@pytest.fixture(scope="module")
def client(access: SshAccess) -> Client:
    """A client that may enter it."""
    return access.client()


def refused(client: Client, *options: str) -> str:
    """Try to leave a mark in a workspace; return what the client says when it may not."""
    done = client.command(f"touch {MARK}", *options)
    assert done.code == REFUSED, done
    assert done.out == b""
    assert len(done.err.strip().splitlines()) <= 2, done.err
    return done.err


def assert_untouched(access: SshAccess, runs: list[str]) -> None:
    """Nothing was executed, and no run is open."""
    assert access.place.inside(f"test ! -e {MARK} && echo nothing") == "nothing"
    for run in set(access.runs()) - set(runs):
        assert access.place.ended(run)["status"] in {"failed", "cancelled"}


# ---------------------------------------------------------------- who


def test_an_unknown_key_opens_nothing(access: SshAccess) -> None:
    runs = access.runs()
    said = refused(access.client(owner=None))
    assert "Permission denied (publickey)" in said
    assert access.runs() == runs


def test_a_key_that_was_deleted_opens_nothing_any_more(access: SshAccess) -> None:
    client = access.client()
    assert client.said("echo in") == b"in\n"
    api = access.place.stack.api
    keys = api.get(f"/v1/ssh-keys?ownerUserId={OWNER}").body["items"]
    fingerprint = (
        client.run("ssh-keygen", "-lf", str(client.folder / "key")).out.decode().split()[1]
    )
    (key,) = [key for key in keys if key["fingerprint"] == fingerprint]
    path = f"/v1/ssh-keys/{key['sshKeyId']}?ownerUserId={OWNER}"
    api.request("DELETE", path, expect=200)
    assert "Permission denied (publickey)" in refused(client)


def test_passwords_are_not_asked_for(client: Client) -> None:
    said = refused(client, "-o", "PubkeyAuthentication=no", "-o", "BatchMode=no")
    assert "Permission denied (publickey)" in said


def test_a_client_that_knows_another_gateway_is_warned(access: SshAccess) -> None:
    client = access.client()
    other = client.folder / "known_hosts"
    blob = client.public_key.split()[1]
    other.write_text(f"[127.0.0.1]:{access.gateway.port} ssh-ed25519 {blob}\n")
    done = client.command("true")
    assert done.code == REFUSED
    assert "Host key verification failed" in done.err


# ---------------------------------------------------------------- where


def test_a_foreign_workspace_is_as_absent_as_an_unknown_one(
    access: SshAccess, client: Client
) -> None:
    runs = access.runs()
    unknown = str(uuid.uuid4())
    told = {
        refused(access.client(owner="usr_other")).replace(access.workspace_id, "…"),
        refused(client, "-l", f"ws-{unknown}").replace(unknown, "…"),
    }
    assert len(told) == 1, told
    assert "you have no workspace …" in told.pop()
    assert_untouched(access, runs)


def test_a_workspace_that_is_not_ready_says_why(access: SshAccess, client: Client) -> None:
    stack = access.place.stack
    failing = {"lifecycle": {"setup": [{"id": "fail", "run": "exit 3"}]}, **HARNESS}
    failed = stack.failed(failing)
    said = refused(client, "-l", f"ws-{failed.answer['workspaceId']}")
    reason = stack.api.get(f"/v1/workspaces/{failed.answer['workspaceId']}").body["reason"]
    assert "cannot be entered now" in said
    assert reason["message"].translate(PLAIN) in said


@pytest.mark.parametrize(
    "user",
    [
        "root",
        "ws",
        "ws-",
        "ws-not-an-id",
        "other-{id}",
        "WS-{id}",
        "ws-{id}x",
        " ws-{id}",
        "ws-{id}/../x",
        "ws-ü",
        "ws-\x1b[31mred\x07",
        "w" * 1000,
    ],
)
def test_a_name_that_is_no_workspaces_is_refused_with_how_one_looks(
    access: SshAccess, user: str
) -> None:
    runs = access.runs()
    said = refused(access.client(user=user.format(id=access.workspace_id)))
    assert "ws-<workspaceId>" in said or "ws-<workspace" in said
    assert "\x1b" not in said
    assert access.runs() == runs


# ---------------------------------------------------------------- what


@pytest.mark.parametrize("host", ["example.org", "10.0.0.1", "169.254.169.254", "0.0.0.0"])  # noqa: S104
def test_only_the_workspaces_own_ports_are_forwarded(client: Client, host: str) -> None:
    done = client.ssh("-o", "LogLevel=INFO", "-W", f"{host}:80", HOST)
    assert done.code != 0
    assert "open failed: administratively prohibited" in done.err
    assert "localhost" in done.err


def test_ports_of_the_clients_machine_are_not_forwarded_to_the_workspace(client: Client) -> None:
    option = ("-R", "9999:localhost:22")
    done = client.command("echo in", "-o", "LogLevel=INFO", *option)
    assert done.out == b"in\n"
    assert "remote port forwarding failed" in done.err
    strict = client.command("echo in", "-o", "ExitOnForwardFailure=yes", *option)
    assert strict.code == REFUSED
    assert strict.out == b""


def test_the_clients_keys_are_not_forwarded(client: Client) -> None:
    with client.start("ssh-agent", "-D", "-a", str(client.folder / "agent")) as agent:
        eventually((client.folder / "agent").exists, what="the agent of the keys is there")
        forward = f"ForwardAgent={client.folder}/agent"
        done = client.command('echo "agent:$SSH_AUTH_SOCK"', "-o", forward)
        assert agent.poll() is None
    assert done.out == b"agent:\n"


def test_the_clients_display_is_not_forwarded(client: Client) -> None:
    argv = ["env", "DISPLAY=:0", "ssh", "-F", str(client.config), "-o", "LogLevel=INFO", "-X"]
    done = client.run(*argv, HOST, 'echo "display:$DISPLAY"')
    assert done.out == b"display:\n"
    assert "X11 forwarding request failed" in done.err


def test_sockets_are_not_forwarded(client: Client) -> None:
    path = client.folder / "local"
    option = (
        "-o",
        "LogLevel=INFO",
        "-o",
        "ExitOnForwardFailure=yes",
        "-L",
        f"{path}:/run/some.sock",
    )
    with client.begun("echo in; cat", *option) as begun, socket.socket(socket.AF_UNIX) as local:
        local.connect(str(path))
        local.settimeout(90)
        assert local.recv(1) == b""
        _, errors = begun.process.communicate(b"", SECONDS)
    assert b"open failed" in errors


def test_a_subsystem_that_there_is_not_is_refused(client: Client) -> None:
    done = client.ssh("-s", HOST, "netconf")
    assert (done.code, done.out) == (127, b"")
    assert "netconf" in done.err


def test_more_channels_than_are_allowed_are_refused_and_the_others_stay(
    access: SshAccess,
) -> None:
    with access.another_gateway(SSH_GATEWAY_MAX_CHANNELS="2") as gateway:
        client = access.client(gateway=gateway)
        with client.connection() as shared:
            script = "echo open; cat"
            with client.begun(script, *shared) as first, client.begun(script, *shared):
                # A client that may not have a channel makes a connection of its own.
                done = client.command("echo third", *shared)
                assert "Session open refused by peer" in done.err
                assert first.process.communicate(b"told\n", SECONDS)[0] == b"told\n"
            assert client.said("echo fourth", *shared) == b"fourth\n"


def test_more_connections_of_one_owner_than_are_allowed_are_refused(access: SshAccess) -> None:
    with access.another_gateway(SSH_GATEWAY_MAX_CONNECTIONS_PER_PRINCIPAL="1") as gateway:
        client = access.client(gateway=gateway)
        with client.connection():
            assert "connections" in refused(client)
        eventually(lambda: client.command("echo in").code == 0, what="the place is free")


# ---------------------------------------------------------------- what cannot be recorded


@pytest.fixture
def relay(access: SshAccess) -> Iterator[Relay]:
    """The API behind something that may answer otherwise."""
    with relay_to(access.api.port) as relay:
        yield relay


def is_announcement(exchange: Exchange) -> bool:
    """Whether this is where a session's run is created."""
    return (exchange.method, exchange.path) == ("POST", "/v1/runs")


def behind(access: SshAccess, relay: Relay, **changes: str) -> Done:
    """Try to enter through a gateway that sees the API through the relay."""
    with access.another_gateway(SSH_GATEWAY_API_BASE_URL=relay.url, **changes) as gateway:
        return access.client(gateway=gateway).command(f"touch {MARK}; echo in")


def test_the_run_is_there_before_anything_is_executed(access: SshAccess, relay: Relay) -> None:
    statuses: list[str] = []

    def notice(exchange: Exchange) -> None:
        if exchange.method == "PATCH" and exchange.status == 200:
            statuses.append(json.loads(exchange.content)["status"])

    relay.hook = notice
    with access.another_gateway(SSH_GATEWAY_API_BASE_URL=relay.url) as gateway, access.run() as run:
        client = access.client(gateway=gateway)
        said = client.said("echo $SVC_RUN_ID").decode().strip()
    assert said == run.id
    assert relay.seen.index(("POST", "/v1/runs")) < relay.seen.index(("PATCH", f"/v1/runs/{said}"))
    assert statuses[0] == "running"


def test_nothing_is_executed_when_no_run_can_be_created(access: SshAccess, relay: Relay) -> None:
    runs = access.runs()
    relay.refused.add(("POST", "/v1/runs"))
    done = behind(access, relay)
    assert (done.code, done.out) == (REFUSED, b"")
    assert "record" in done.err
    assert_untouched(access, runs)


def test_nothing_is_executed_when_the_run_cannot_be_begun(access: SshAccess, relay: Relay) -> None:
    def close(exchange: Exchange) -> None:
        if is_announcement(exchange):
            run = json.loads(exchange.content)["runId"]
            relay.refused.add(("PATCH", f"/v1/runs/{run}"))

    runs = access.runs()
    relay.hook = close
    done = behind(access, relay)
    assert (done.code, done.out) == (REFUSED, b"")
    assert "control plane" in done.err
    assert access.place.inside(f"test ! -e {MARK} && echo nothing") == "nothing"
    assert len(set(access.runs()) - set(runs)) == 1


def test_nothing_is_executed_when_the_record_cannot_be_written(
    access: SshAccess, relay: Relay
) -> None:
    def take_its_place(exchange: Exchange) -> None:
        if is_announcement(exchange):
            run = json.loads(exchange.content)["runId"]
            access.place.inside(f"echo taken > /var/lib/svc/runs/{run}", user="root")

    runs = access.runs()
    relay.hook = take_its_place
    done = behind(access, relay)
    assert (done.code, done.out) == (REFUSED, b"")
    assert "record" in done.err
    assert_untouched(access, runs)


def test_nothing_is_executed_when_the_session_is_cancelled_before_it_begins(
    access: SshAccess, relay: Relay
) -> None:
    def cancel(exchange: Exchange) -> None:
        if is_announcement(exchange):
            run = json.loads(exchange.content)["runId"]
            body = {"ownerUserId": OWNER, "status": "cancelled"}
            answer = requests.patch(f"{access.api.url}/v1/runs/{run}", json=body, timeout=LONG_WAIT)
            assert answer.ok, answer.text

    runs = access.runs()
    relay.hook = cancel
    done = behind(access, relay)
    assert (done.code, done.out) == (REFUSED, b"")
    assert_untouched(access, runs)


def test_sessions_need_no_record_where_the_operator_says_so(
    access: SshAccess, relay: Relay
) -> None:
    with access.run() as run:
        done = behind(access, relay, SSH_GATEWAY_RECORD_POLICY="off")
    assert (done.code, done.out) == (0, b"in\n")
    access.place.inside(f"rm {MARK}")
    eventually(
        lambda: access.place.read(run.id)["status"] == "completed", what="the run was completed"
    )
    assert not access.place.read(run.id)["recorded"]


def test_a_gateway_without_the_token_says_whose_fault_it_is(access: SshAccess) -> None:
    with access.another_gateway(WORKSPACE_SSH_GATEWAY_TOKEN="another") as gateway:
        done = access.client(gateway=gateway).command("true")
    assert done.code == REFUSED
    assert "token" in done.err or "Permission denied" in done.err


def test_the_banner_is_shown_before_anything_else(access: SshAccess) -> None:
    with access.another_gateway(SSH_GATEWAY_BANNER="Grüße. Recorded.") as gateway:
        done = access.client(gateway=gateway).command("echo in", "-o", "LogLevel=INFO")
    assert done.out == b"in\n"
    assert done.err.strip() == "Grüße. Recorded."
