"""``svc`` against the whole service, as people and programs call it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane_cli.sources import wanted_files
from controlplane_client import Client, Workspace
from tests.clients.places import SVC, Svc
from tests.conftest import OWNER
from tests.scm.conftest import git
from tests.stack.service import HARNESS, GitServer
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.docker


@pytest.fixture
def typed(svc_environ: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``svc`` as a terminal does, so that it can be interrupted; nothing of it is left."""
    started: list[subprocess.Popen[str]] = []

    def call(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*SVC, *words],
            env=svc_environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate()


# ---------------------------------------------------------------- commands


def test_a_command_ends_with_its_own_exit_code_and_keeps_its_outputs_apart(
    svc: Svc, workspace: Workspace
) -> None:
    done = svc("exec", workspace.id, "echo out; echo err >&2; exit 7", code=7)
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    assert svc("exec", workspace.id, "kill -TERM $$", code=143).stdout == ""


def test_several_words_are_a_program_and_its_arguments_with_their_options(
    svc: Svc, workspace: Workspace
) -> None:
    done = svc("exec", "-e", "COLOUR=blue", "-w", "/tmp", workspace.id, "env", "--null")
    assert {"COLOUR=blue", "PWD=/tmp"} & set(done.stdout.split("\0")) >= {"COLOUR=blue"}


def test_two_dashes_before_the_command_are_no_part_of_it(svc: Svc, workspace: Workspace) -> None:
    assert svc("exec", workspace.id, "--", "echo", "out").stdout == "out\n"
    assert svc("exec", workspace.id, "--", "echo", "--", "out").stdout == "-- out\n"
    assert "COMMAND" in svc("exec", workspace.id, "--", code=2).stderr


def test_a_program_that_there_is_not_and_a_time_limit_are_named(
    svc: Svc, workspace: Workspace
) -> None:
    absent = svc("exec", workspace.id, "no-such-program", "--help", code=127)
    assert "cannot run no-such-program" in absent.stderr
    assert "(run-start-failed)" in absent.stderr
    assert "time limit" in svc("exec", "--timeout", "1", workspace.id, "sleep 300", code=143).stderr


def test_input_goes_into_the_command(svc: Svc, workspace: Workspace) -> None:
    assert svc("exec", "-i", workspace.id, "sort", stdin="b\na\n").stdout == "a\nb\n"


def test_a_command_that_cannot_be_executed_is_told_from_one_that_failed(svc: Svc) -> None:
    assert "no workspace nowhere" in svc("exec", "nowhere", "true", code=125).stderr


def test_programs_get_json(svc: Svc, workspace: Workspace) -> None:
    told = json.loads(svc("exec", "--json", workspace.id, "echo out; exit 3", code=3).stdout)
    assert (told["exitCode"], told["stdout"], told["stderr"]) == (3, "out\n", "")
    assert json.loads(svc("ls", "--json").stdout)[0]["workspaceId"]
    refused = svc("rm", "--json", "00000000-0000-0000-0000-000000000000", code=1)
    assert json.loads(refused.stderr)["code"] == "workspace-not-found"


def test_the_first_interrupt_is_for_the_command(
    typed: Callable[..., subprocess.Popen[str]], workspace: Workspace
) -> None:
    script = "trap 'echo caught; exit 9' INT; echo begun; while :; do sleep 0.1; done"
    process = typed("exec", workspace.id, script)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "caught\n"
    assert process.wait(LONG_WAIT) == 9


def test_the_second_interrupt_leaves_a_command_that_goes_on(
    typed: Callable[..., subprocess.Popen[str]], workspace: Workspace, client: Client
) -> None:
    script = "trap 'echo no' INT; echo begun; while :; do sleep 0.1; done"
    process = typed("exec", workspace.id, script)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "no\n"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=LONG_WAIT)
    assert process.returncode == 130
    run = client.run(told.split()[-1])
    assert run.info is not None
    assert run.info.status == "running"
    run.cancel()
    run.wait()


def test_a_prompt_is_given_to_the_harness(svc: Svc, workspace: Workspace) -> None:
    assert svc("run", workspace.id, "echo prompted; exit 2", code=2).stdout == "prompted\n"


# ---------------------------------------------------------------- files and ports


def test_files_and_folders_are_copied_both_ways(
    svc: Svc, workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("one\n")
    svc("cp", str(tmp_path / "folder"), f"{workspace.id}:/tmp/")
    assert svc("cp", f"{workspace.id}:/tmp/folder/a", "-").stdout == "one\n"
    svc("cp", "-", f"{workspace.id}:/tmp/folder/b", stdin="two\n")
    svc("cp", f"{workspace.id}:/tmp/folder", str(tmp_path / "back"))
    assert {each.name: each.read_text() for each in (tmp_path / "back").iterdir()} == {
        "a": "one\n",
        "b": "two\n",
    }
    assert "exactly one of the two" in svc("cp", "a", "b", code=2).stderr


@pytest.mark.parametrize(
    ("path", "copied"),
    [
        ("", "here/a"),
        (".", "here/a"),
        ("/tmp/there", "there/in/a"),
        ("/tmp/there/.", "there/in/a"),
        ("/tmp/there/in/..", "in/a"),
    ],
)
def test_a_folder_is_copied_into_the_one_where_svc_is(
    svc: Svc, workspace: Workspace, tmp_path: Path, path: str, copied: str
) -> None:
    workspace.files.write("here/a", "one\n")
    workspace.files.write("/tmp/there/in/a", "two\n")
    home = tmp_path / "home"
    home.mkdir()
    svc("cp", f"{workspace.id}:{path}", ".", cwd=home)
    assert (home / copied).is_file()
    assert [each.name for each in tmp_path.iterdir()] == ["home"], "nothing beside it"
    assert not list(home.rglob("*.part"))


def test_what_cannot_be_stored_here_is_one_line(
    svc: Svc, workspace: Workspace, tmp_path: Path
) -> None:
    workspace.files.write("kept", "one\n")
    there = str(tmp_path / "no" / "kept")
    refused = svc("cp", f"{workspace.id}:kept", there, code=1).stderr
    assert refused == f"svc: {tmp_path}/no/.kept.part: No such file or directory\n"


def test_ports_are_listed(svc: Svc, workspace: Workspace) -> None:
    listen = "s = socket.create_server(('127.0.0.1', 4322)); print('up', flush=True)"
    run = workspace.spawn(["python3", "-c", f"import socket, time; {listen}; time.sleep(600)"])
    for event in run.follow():
        if event.stream == "stdout":
            break
    (told,) = json.loads(svc("ports", "--json", workspace.id).stdout)
    assert (told["port"], told["process"]) == (4322, "python3")
    assert "4322" in svc("ports", workspace.id).stdout
    link = svc("ports", workspace.id, "--open", "4322", "--path", "/a?b=c").stdout
    assert re.match(rf"http://4322-{workspace.id}\.[^/]+/a\?", link)
    told = json.loads(svc("ports", "--json", "--open", "4322", workspace.id).stdout)
    assert set(told) == {"url", "token", "expiresAt"}
    run.cancel()
    run.wait()


# ---------------------------------------------------------------- records


def test_a_run_is_replayed_compared_and_verified(
    svc: Svc, workspace: Workspace, client: Client, tmp_path: Path
) -> None:
    run = workspace.exec("echo shown; echo new >made-by-svc", changes=True).run_id
    assert svc("replay", run).stdout.split() == ["shown"]
    assert json.loads(svc("replay", "--cast", run).stdout.splitlines()[0])["version"] == 3
    assert "+new" in svc("diff", run).stdout
    assert svc("logs", run).stdout == "shown\n"
    assert "complete and as sealed" in svc("verify", run).stdout
    export = tmp_path / "record.ndjson"
    content = b"".join(client.run(run).export())
    export.write_bytes(content)
    assert json.loads(svc("verify", "--json", str(export)).stdout)["ok"] is True
    export.write_bytes(content.replace(b'"process":', b'"Process":', 1))
    assert "was altered" in svc("verify", str(export), code=1).stdout


# ---------------------------------------------------------------- life


def test_a_folder_becomes_a_workspace_without_what_git_ignores(svc: Svc, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "cache").mkdir(parents=True)
    (folder / "cache" / "big").write_text("no")
    (folder / ".gitignore").write_text("cache\n")
    (folder / "main.py").write_text("print('hello')\n")
    (folder / "svc.json").write_text(json.dumps(HARNESS))
    git(folder, "init", "-q")
    made = svc("up", str(folder), "--name", "from folder")
    assert "from folder is ready" in made.stderr
    assert svc("exec", "from folder", "python3", "main.py").stdout == "hello\n"
    assert svc("exec", "from folder", "ls").stdout.split() == ["main.py", "svc.json"]
    assert "from folder" in svc("ls").stdout
    assert svc("stop", "from folder").stdout == made.stdout
    assert json.loads(svc("ls", "--json", "--status", "stopped").stdout)[0]["name"] == "from folder"
    svc("start", "from folder")
    svc("rm", "from folder")
    assert "no workspace" in svc("stop", "from folder", code=1).stderr


def test_without_git_a_checkout_is_not_sent_with_what_git_ignores(
    svc: Svc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "svc.json").write_text(json.dumps(HARNESS))
    (tmp_path / "inner").mkdir()
    (tmp_path / "nothing").mkdir()
    without = {"PATH": str(tmp_path / "nothing")}
    monkeypatch.setenv("PATH", without["PATH"])
    assert wanted_files(tmp_path) is None, "no checkout: all of it is sent"
    (tmp_path / ".git").mkdir()
    before = svc("ls", "--json").stdout
    refused = svc("up", str(tmp_path), code=1, **without).stderr
    assert refused.startswith("Error: git cannot be started (No such file or directory), ")
    assert "/inner" in svc("up", str(tmp_path / "inner"), code=1, **without).stderr
    assert svc("ls", "--json").stdout == before, "no workspace was made"


def test_the_address_of_a_repository_becomes_a_workspace_and_its_build_is_shown(
    svc: Svc, git_server: GitServer
) -> None:
    url = git_server.publish("project", {"kept": "one\n"})
    made = svc("up", url)
    assert "digest: sha256:" in made.stderr, "the build's own output"
    assert svc("exec", "project", "cat kept").stdout == "one\n"
    assert made.stdout.strip() in svc("rm", "project").stdout


def test_a_devcontainer_becomes_a_workspace_with_its_commands_done(
    svc: Svc, tmp_path: Path
) -> None:
    folder = tmp_path / "a shop"
    folder.mkdir()
    (folder / "hello.txt").write_text("hello")
    (folder / ".devcontainer.json").write_text("""{ // as an editor writes it
        "image": "debian",
        "containerEnv": {"COLOUR": "green"},
        "postCreateCommand": {"a": "cat hello.txt >made.txt", "b": ["sh", "-c", "echo $COLOUR"]},
        "forwardPorts": [3000,],
        "runArgs": ["--privileged"],
    }""")
    made = svc("up", str(folder))
    assert "svc: devcontainer.json: runArgs: " in made.stderr
    assert "\ngreen\n" in made.stderr
    assert "svc ports 'a shop' --open 3000" in made.stderr
    assert svc("exec", "a shop", "cat", "made.txt").stdout == "hello"
    svc("rm", "a shop")


def test_a_repository_with_a_devcontainer_is_set_up_as_it_says(
    svc: Svc, git_server: GitServer
) -> None:
    told = {"postCreateCommand": "cp kept copied", "postStartCommand": "false || echo >started"}
    files = {"kept": "one\n", ".devcontainer/devcontainer.json": json.dumps(told)}
    made = svc("up", "--name", "contained", git_server.publish("contained", files))
    assert "devcontainer.json" not in made.stderr, "nothing of it was left out"
    assert svc("exec", "contained", "cat copied; ls started").stdout == "one\nstarted\n"
    svc("rm", "contained")


def test_a_command_of_a_devcontainer_that_fails_is_the_end_of_it(svc: Svc, tmp_path: Path) -> None:
    told = {"postCreateCommand": "echo no >&2; exit 3", "postStartCommand": "touch started"}
    (tmp_path / ".devcontainer.json").write_text(json.dumps(told))
    made = svc("up", "--name", "failing", str(tmp_path), code=1)
    assert "no\nsvc: postCreateCommand failed: exit code 3" in made.stderr
    assert svc("exec", "failing", "ls started", code=2).stdout == ""
    svc("rm", "failing")


def test_what_is_nothing_is_said_so_and_a_wrong_blueprint_names_its_faults(
    svc: Svc, tmp_path: Path
) -> None:
    assert "not a file, a folder" in svc("up", "/nowhere", code=1).stderr
    (tmp_path / "wrong.json").write_text('{"harness": {"id": "shell"}, "neither": 1}')
    assert "/spec/neither" in svc("up", str(tmp_path / "wrong.json"), code=1).stderr


def test_an_interrupted_start_is_stopped(
    typed: Callable[..., subprocess.Popen[str]], client: Client, tmp_path: Path
) -> None:
    steps = {"setup": [{"id": "wait", "run": "echo waiting; sleep 600"}]}
    (tmp_path / "slow.json").write_text(json.dumps({**HARNESS, "lifecycle": steps}))
    process = typed("up", str(tmp_path / "slow.json"))
    assert process.stderr is not None
    while "waiting" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(LONG_WAIT) == 130
    (found,) = [each for each in client.workspaces() if each.name == "slow"]
    assert found.status in {"stopped", "cancelled"}


# ---------------------------------------------------------------- contexts, completion


def ids(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the ids of listed workspaces."""
    return [each["workspaceId"] for each in json.loads(done.stdout)]


def test_contexts_say_which_service_is_asked(svc: Svc, svc_environ: dict[str, str]) -> None:
    where = svc_environ["SVC_BASE_URL"]
    none = {"SVC_BASE_URL": "", "SVC_OWNER_USER_ID": ""}
    assert svc("config", **none).stdout.startswith("http://localhost:4000 for usr_local")
    svc("config", "set", "here", "--url", where, "--owner", OWNER, **none)
    svc("config", "set", "nowhere", "--url", "http://127.0.0.1:1", **none)
    svc("config", "use", "here", **none)
    assert ids(svc("ls", "--json", **none)) == ids(svc("ls", "--json")) != []
    assert svc("-c", "nowhere", "config", **none).stdout.startswith("http://127.0.0.1:1 ")
    svc("config", "rm", "here", **none)
    assert "nowhere" in svc("config", **none).stdout


def test_the_owner_of_the_environment_may_have_its_older_name(svc: Svc) -> None:
    assert f" for {OWNER} " in svc("config", SVC_OWNER="usr_older").stdout
    older = svc("config", SVC_OWNER_USER_ID="", SVC_OWNER="usr_older").stdout
    assert " for usr_older " in older


def test_the_registry_of_the_environment_is_where_images_are_published(
    svc: Svc, tmp_path: Path
) -> None:
    blueprint = tmp_path / "svc.json"
    blueprint.write_text(json.dumps(HARNESS))
    refused = svc("up", str(blueprint), SVC_REGISTRY_ID="elsewhere", code=1).stderr
    assert "registry-not-found" in refused


def test_an_address_without_its_protocol_is_said_to_lack_it(svc: Svc) -> None:
    refused = svc("ls", SVC_BASE_URL="localhost:4000", code=1).stderr
    assert "write http://localhost:4000" in refused


def test_shells_complete_commands_and_names(svc: Svc, workspace: Workspace) -> None:
    assert "_SVC_COMPLETE" in svc("completion", "bash").stdout
    name = workspace.refresh().name
    asked = {"_SVC_COMPLETE": "bash_complete", "COMP_CWORD": "2"}
    told = svc("x", **asked, COMP_WORDS=f"svc stop {name[:4]}").stdout
    assert f"plain,{name}".replace(" ", "\\ ") in told.splitlines()
