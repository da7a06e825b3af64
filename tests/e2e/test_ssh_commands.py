"""Commands over SSH: their input, output and end are those of the program, and are recorded."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.stack.runs import REPOSITORY
from tests.stack.service import GitServer, Stack
from tests.stack.ssh import HOST, Client
from tests.stack.ssh_access import SshAccess, access_of, gone
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.docker

MIB = 1024 * 1024
PARALLEL = 50


@pytest.fixture(scope="module")
def access(
    stack: Stack, git_server: GitServer, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SshAccess]:
    """One workspace for all tests here."""
    with access_of(stack, git_server, run_queue, tmp_path_factory.mktemp("commands")) as made:
        yield made


@pytest.fixture(scope="module")
def client(access: SshAccess) -> Client:
    """A client that may enter it."""
    return access.client()


# ---------------------------------------------------------------- output and input


def test_a_command_writes_to_two_outputs_in_the_repository_as_the_user(
    access: SshAccess, client: Client
) -> None:
    with access.run() as run:
        done = client.command("id -un; pwd; echo worried >&2")
    assert (done.code, done.out.decode(), done.err) == (
        0,
        f"workspace\n{REPOSITORY}\n",
        "worried\n",
    )
    assert access.place.completed(run.id)["exitCode"] == 0
    assert access.place.output(run.id) == done.out
    assert access.place.output(run.id, "stderr") == b"worried\n"
    access.place.verify(run.id)


def test_the_first_event_says_from_where_and_by_whom_the_workspace_was_entered(
    access: SshAccess, client: Client
) -> None:
    with access.run() as run:
        client.command("true")
    access.place.completed(run.id)
    (started,) = access.place.timeline(run.id, "recordStarted")
    origin = started["ref"]["origin"]
    assert origin["address"] == "127.0.0.1"
    assert 0 < origin["port"] < 65536
    assert "OpenSSH" in origin["client"]
    assert origin["user"] == access.user
    assert origin["key"] in client.run("ssh-keygen", "-lf", str(client.folder / "key")).out.decode()


def test_a_command_reads_its_input_to_the_end(client: Client) -> None:
    done = client.command("cat; echo after", given=b"\0one\n\xff")
    assert done.out == b"\0one\n\xffafter\n"


def test_a_command_without_input_sees_the_end_of_it_at_once(client: Client) -> None:
    assert client.command("cat; echo after", "-n").out == b"after\n"


def test_a_command_that_reads_nothing_ends_although_input_waits(client: Client) -> None:
    done = client.command("echo done", given=bytes(8 * MIB))
    assert (done.code, done.out) == (0, b"done\n")


def test_a_shell_without_a_terminal_takes_its_commands_from_its_input(
    access: SshAccess, client: Client
) -> None:
    with access.run() as run:
        done = client.ssh("-T", HOST, given=b"echo one; false\necho $?; tty; exit 9\n")
    assert (done.code, done.out) == (9, b"one\n1\nnot a tty\n")
    assert access.place.ended(run.id)["exitCode"] == 9
    assert access.place.output(run.id) == done.out


def test_the_command_is_the_login_shells_and_is_passed_on_as_it_is(client: Client) -> None:
    odd = """printf '%s|' 'a  b' "it's" ü $((1+1)); echo ${BASH_VERSION:+bash}"""
    assert client.said(odd).decode() == "a  b|it's|ü|2|bash\n"


def test_the_environment_has_what_is_on_the_list_and_nothing_else(client: Client) -> None:
    asked = ("-o", "SetEnv=LC_TELEPHONE=C LANG=C.UTF-8 LD_PRELOAD=/tmp/evil.so BASH_ENV=/tmp/evil")
    said = client.said("env", *asked).decode().splitlines()
    assert {"LC_TELEPHONE=C", "LANG=C.UTF-8"} <= set(said)
    names = {line.partition("=")[0] for line in said}
    assert not names & {"LD_PRELOAD", "BASH_ENV"}
    assert {"SVC_RUN_ID", "HOME", "USER", "SHELL", "PATH"} <= names


def test_much_output_of_both_kinds_arrives_to_the_last_byte(
    access: SshAccess, client: Client
) -> None:
    script = (
        "import os\n"
        "for number in range(2000):\n"
        "    os.write(1, b'%07d\\n' % number * 128)\n"
        "    os.write(2, b'%07d\\r' % number * 128)\n"
    )
    with access.run() as run:
        done = client.command(f'python3 -c "{script}"')
    assert done.out == b"".join(b"%07d\n" % number * 128 for number in range(2000))
    assert done.err.encode() == b"".join(b"%07d\r" % number * 128 for number in range(2000))
    access.place.completed(run.id)
    assert access.place.output(run.id) == done.out
    assert access.place.output(run.id, "stderr") == done.err.encode()


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 64 MiB that no compression makes smaller."""
    path = tmp_path_factory.mktemp("big") / "input"
    with path.open("wb") as file:
        for number in range(64):
            block = hashlib.shake_256(b"%d" % number).digest(MIB)
            file.write(block.replace(b"://", b"---"))  # with a @ behind it a password is masked
    return path


@pytest.mark.slow
def test_64_mib_go_in_and_come_out_as_they_are(
    access: SshAccess, client: Client, big: Path, tmp_path: Path
) -> None:
    sent = hashlib.sha256(big.read_bytes()).hexdigest()
    with access.run() as run, big.open("rb") as file:
        done = client.command(
            "cat > /tmp/big && sha256sum < /tmp/big", stdin=file, timeout=LONG_WAIT
        )
    assert (done.code, done.out.decode().split()) == (0, [sent, "-"])
    back = tmp_path / "back"
    with access.run() as other, back.open("wb") as file:
        assert client.command("cat /tmp/big; rm /tmp/big", stdout=file, timeout=LONG_WAIT).code == 0
    assert hashlib.sha256(back.read_bytes()).hexdigest() == sent
    for shown, stream in ((run, "stdin"), (other, "stdout")):
        access.place.completed(shown.id)
        assert hashlib.sha256(access.place.output(shown.id, stream)).hexdigest() == sent


# ---------------------------------------------------------------- how it ends


def test_a_commands_exit_code_is_the_clients(access: SshAccess, client: Client) -> None:
    for code in (0, 1, 41, 127, 255):
        with access.run() as run:
            assert client.command(f"exit {code}").code == code
        shown = access.place.ended(run.id)
        assert (shown["status"], shown["exitCode"]) == ("completed", code)


def test_a_command_that_there_is_not_says_so(client: Client) -> None:
    done = client.command("/no/such/program")
    assert done.code == 127
    assert "No such file or directory" in done.err


@pytest.mark.parametrize("name", ["TERM", "KILL", "HUP"])
def test_a_command_that_a_signal_ends_is_told_by_the_signals_name(
    access: SshAccess, client: Client, name: str
) -> None:
    with access.run() as run:
        done = client.command(f"kill -{name} $$", "-v")
    assert done.code == 255
    assert f"exit-signal reply 0 signal {name}" in done.err or "rtype exit-signal" in done.err
    assert access.place.ended(run.id)["exitSignal"] == f"SIG{name}"


def test_a_client_that_is_interrupted_takes_its_command_with_it(
    access: SshAccess, client: Client
) -> None:
    with access.run() as run, client.begun("echo $$; exec sleep 600") as begun:
        begun.process.send_signal(signal.SIGINT)
        begun.process.wait(LONG_WAIT)
    gone(access.place, begun.line)
    assert access.place.ended(run.id)["exitSignal"] == "SIGHUP"
    assert access.place.loss(run.id)["complete"]


def test_a_command_that_ignores_the_end_of_its_client_is_killed_after_the_grace(
    access: SshAccess, client: Client
) -> None:
    script = "trap '' HUP TERM; echo $$; while :; do sleep 0.1; done"
    with access.run() as run, client.begun(script) as begun:
        begun.process.kill()
        begun.process.wait(LONG_WAIT)
    gone(access.place, begun.line)
    assert access.place.ended(run.id)["exitSignal"] == "SIGKILL"
    assert access.place.loss(run.id)["complete"]


def test_a_command_whose_reader_has_gone_is_told_as_in_any_pipe(
    access: SshAccess, client: Client
) -> None:
    line = f"ssh -F {client.config} {HOST} 'yes; echo $? >&2' | head -n 3"
    done = client.run("bash", "-c", line)
    assert done.out == b"y\ny\ny\n"


def test_what_a_command_leaves_in_the_background_goes_on(access: SshAccess, client: Client) -> None:
    started = client.said("setsid sleep 600 > /dev/null 2>&1 < /dev/null & echo $!")
    pid = started.decode().strip()
    assert client.said(f"kill -0 {pid} && echo still").strip() == b"still"
    client.said(f"kill {pid}")
    gone(access.place, pid)


# ---------------------------------------------------------------- many at once


@pytest.mark.slow
def test_50_connections_at_once_are_50_runs(access: SshAccess, client: Client) -> None:
    before = set(access.runs())
    with ThreadPoolExecutor(PARALLEL) as pool:
        asked = [
            pool.submit(
                client.command, f"cat; echo number {number}", given=b"in\n", timeout=LONG_WAIT
            )
            for number in range(PARALLEL)
        ]
        done = [one.result() for one in asked]
    assert [(one.code, one.out.decode()) for one in done] == [
        (0, f"in\nnumber {number}\n") for number in range(PARALLEL)
    ], [one.err for one in done if one.code]
    runs = set(access.runs()) - before
    assert len(runs) == PARALLEL
    for run in runs:
        access.place.completed(run)
    eventually(
        lambda: access.place.inside("pgrep -fc 'agent sessio[n]' || true") == "0",
        what="no agent is left",
    )
