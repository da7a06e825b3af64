"""Booting: the order of things, once and again, and when a workspace may call itself ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.agent.booted import USER, Workspace, bash_step, command, eventually, step
from tests.support.waiting import LONG_WAIT


def test_setup_runs_before_startup_and_both_before_the_foreground(workspace: Workspace) -> None:
    boot = workspace.boot(
        setup=[step("echo one >> order"), step("echo two >> order")],
        startup=[step("echo three >> order")],
        foreground=command("echo four >> order; exec sleep 60"),
    )
    assert boot.settle()["phase"] == "ready"
    eventually(lambda: workspace.read("order") == "one\ntwo\nthree\nfour\n")


def test_setup_runs_once_and_startup_on_each_boot(workspace: Workspace) -> None:
    for _ in range(2):
        boot = workspace.boot(
            setup=[step("echo setup >> order")], startup=[step("echo startup >> order")]
        )
        assert boot.settle()["phase"] == "ready"
        boot.stop()
    assert workspace.read("order") == "setup\nstartup\nstartup\n"


def test_a_setup_that_failed_half_way_resumes_with_the_step_that_failed(
    workspace: Workspace,
) -> None:
    setup = [
        step("echo first >> order", name="first"),
        step("echo second >> order; test -e repaired", name="second"),
        step("echo third >> order", name="third"),
    ]
    failed = workspace.boot(setup=setup)
    assert failed.settle()["step"]["name"] == "second"
    assert failed.wait() == 70
    (workspace.directory / "repaired").touch()

    assert workspace.boot(setup=setup).settle()["phase"] == "ready"
    assert workspace.read("order") == "first\nsecond\nsecond\nthird\n"


def test_a_setup_killed_half_way_repeats_only_the_step_that_was_interrupted(
    workspace: Workspace,
) -> None:
    setup = [
        step("echo first >> order"),
        step("echo second >> order; test -e go-on || sleep 60"),
    ]
    boot = workspace.boot(setup=setup)
    while not (workspace.directory / "order").exists() or "second" not in workspace.read("order"):
        assert boot.process.poll() is None
    boot.process.kill()
    boot.wait()
    (workspace.directory / "go-on").touch()

    assert workspace.boot(setup=setup).settle()["phase"] == "ready"
    assert workspace.read("order") == "first\nsecond\nsecond\n"


def test_the_environment_is_the_users_and_nothing_of_pid_1_leaks(workspace: Workspace) -> None:
    workspace.write_config(env={"GREETING": "hello world"}, startup=[step("env -0 > environment")])
    boot = workspace.boot_as_configured(
        env={"SSL_CERT_FILE": "/ca.pem", "SECRET_OF_PID_1": "x", "PATH": "/usr/bin:/bin"}
    )
    assert boot.settle()["phase"] == "ready"

    names_and_values = workspace.read("environment").rstrip("\0").split("\0")
    environment = dict(entry.split("=", 1) for entry in names_and_values)
    environment.pop("PWD")
    environment.pop("_", None)
    environment.pop("SHLVL", None)
    environment.pop("OLDPWD", None)
    environment.pop("LANG")
    assert environment == {
        "HOME": str(workspace.home),
        "USER": USER,
        "LOGNAME": USER,
        "SHELL": "/bin/bash",
        "PATH": "/usr/bin:/bin",
        "GREETING": "hello world",
        "SSL_CERT_FILE": "/ca.pem",
        "SVC_RUN_ID": workspace.run_id,
    }


def test_a_step_runs_where_it_asks_to_run(workspace: Workspace) -> None:
    (workspace.directory / "below").mkdir(parents=True)
    workspace.boot(
        startup=[
            step(f"pwd >> {workspace.home}/places"),
            step(f"pwd >> {workspace.home}/places", cwd="below"),
            step(f"pwd >> {workspace.home}/places", cwd="/usr"),
        ]
    ).settle()
    places = (workspace.home / "places").read_text().splitlines()
    assert places == [str(workspace.directory), str(workspace.directory / "below"), "/usr"]


def test_bash_steps_run_in_a_login_shell_and_sh_steps_in_sh(workspace: Workspace) -> None:
    (workspace.home / ".bash_profile").write_text("FROM_PROFILE=yes\n")
    workspace.boot(
        startup=[
            bash_step('shopt -q login_shell && echo "login $FROM_PROFILE" > bash'),
            step('echo "plain $FROM_PROFILE" > sh'),
        ]
    ).settle()
    assert workspace.read("bash") == "login yes\n"
    assert workspace.read("sh") == "plain \n"


def test_steps_find_an_empty_stdin(workspace: Workspace) -> None:
    assert workspace.boot(startup=[step("cat; read -r line || echo end > stdin")]).settle()
    assert workspace.read("stdin") == "end\n"


def test_a_foreground_that_ends_at_once_is_never_ready(workspace: Workspace) -> None:
    workspace.settle_seconds = LONG_WAIT  # however late the processor lets it end
    boot = workspace.boot(foreground=command("echo no such thing >&2; exit 3"))
    status = boot.settle()
    assert status["phase"] == "failed"
    assert status["step"] == {
        "name": "foreground",
        "kind": "foreground",
        "index": 0,
        "exitCode": 3,
        "signal": None,
        "timedOut": False,
    }
    assert status["tail"] == "no such thing\n"
    ended = "the foreground exited with code 3 right after its start; it has to go on running"
    assert status["message"] == ended
    assert boot.wait() == 70


def test_a_harness_on_the_users_path_is_not_started_but_holds_the_workspace_open(
    workspace: Workspace,
) -> None:
    program = workspace.home / "bin" / "a-harness"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ntouch ~/started\n")
    program.chmod(0o755)
    boot = workspace.boot(
        foreground={"kind": "harness", "command": ["a-harness", "--flag"]},
        env={"PATH": f"{program.parent}:/usr/bin:/bin"},
    )
    assert boot.settle()["phase"] == "ready"
    assert boot.process.poll() is None
    assert workspace.processes() == []
    assert not (workspace.home / "started").exists()


@pytest.mark.parametrize("flaw", ["missing", "not executable", "a directory"])
def test_a_harness_that_the_user_cannot_start_fails_the_boot(
    workspace: Workspace, flaw: str
) -> None:
    program = workspace.home / "a-harness"
    if flaw == "not executable":
        program.touch(mode=0o644)
    if flaw == "a directory":
        program.mkdir()
    boot = workspace.boot(
        foreground={"kind": "harness", "command": ["a-harness"]}, env={"PATH": str(workspace.home)}
    )
    status = boot.settle()
    assert status["phase"] == "failed"
    assert "a-harness is not an executable program on the PATH" in status["message"]
    assert boot.wait() == 70


def test_a_missing_configuration_is_a_failed_boot_and_not_a_silent_one(
    workspace: Workspace,
) -> None:
    boot = workspace.boot_as_configured()
    assert boot.wait() == 70
    status = workspace.status()
    assert status["phase"] == "failed"
    assert status["runId"] is None
    assert f"cannot read {workspace.config_path}: No such file or directory" in status["message"]


def test_a_configuration_that_others_may_read_is_refused(workspace: Workspace) -> None:
    workspace.write_config()
    workspace.config_path.chmod(0o644)
    assert workspace.boot_as_configured().wait() == 70
    assert "must belong to the agent's user and have mode 0600" in workspace.status()["message"]


def test_a_working_directory_that_cannot_be_made_fails_the_boot(workspace: Workspace) -> None:
    (workspace.root / "file").touch()
    boot = workspace.boot(workingDirectory=str(workspace.root / "file" / "below"))
    assert boot.wait() == 70
    assert "cannot create the directory" in workspace.status()["message"]


def test_a_state_folder_that_cannot_be_made_fails_the_boot(workspace: Workspace) -> None:
    workspace.state.write_text("in the way")
    assert workspace.boot().wait() == 70


def test_a_status_that_cannot_be_written_fails_the_boot(workspace: Workspace) -> None:
    (workspace.state / "status.json").mkdir(parents=True)
    assert workspace.boot(startup=[step("touch started")]).wait() == 70
    assert not (workspace.directory / "started").exists()


def test_the_second_boot_has_an_identity_of_its_own(workspace: Workspace) -> None:
    first = workspace.boot()
    first_id = first.settle()["bootId"]
    first.stop()
    # The file of the last boot says `stopped`; only a changed identity tells the new one apart.
    second = workspace.boot()
    while workspace.status()["bootId"] == first_id:
        assert second.process.poll() is None
    assert workspace.status()["phase"] != "stopped"
    assert Path(workspace.state, "setup-done").exists()
