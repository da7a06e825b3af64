"""Accounts in a workspace: delivered in memory, seen by every program, in no file of a disk."""

from __future__ import annotations

import json
from pathlib import Path

from tests.runs.agent.booted import USER, Workspace, command, eventually, step
from tests.runs.agent.credentialed import (
    ALL,
    CLAUDE,
    GENERIC,
    GITHUB,
    Credentialed,
    account,
    codex,
    document,
    identity,
)


def test_a_boot_waits_for_its_credentials_and_then_every_step_has_them(
    credentialed: Credentialed,
) -> None:
    boot = credentialed.boot(
        env={"GH_TOKEN": "of the blueprint", "OTHER": "stays"},
        setup=[step("env -0 > setup")],
        startup=[step("env -0 > startup")],
        foreground=command("env -0 > foreground; touch ready; exec sleep 60"),
    )
    credentialed.until("credentials")
    assert not (credentialed.workspace.directory / "setup").exists()

    assert credentialed.deliver(*ALL) == {"notes": []}
    assert boot.settle()["phase"] == "ready"
    eventually((credentialed.workspace.directory / "ready").exists)
    for name in ("setup", "startup", "foreground"):
        env = credentialed.environment(name)
        assert env["CLAUDE_CODE_OAUTH_TOKEN"] == CLAUDE
        assert env["GH_TOKEN"] == env["GITHUB_TOKEN"] == GITHUB
        assert env["SERVICE_LOGIN"] == GENERIC
        assert env["OTHER"] == "stays"


def test_credentials_that_come_before_the_boot_has_begun_are_as_good(
    credentialed: Credentialed,
) -> None:
    credentialed.workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    assert credentialed.boot().settle()["phase"] == "ready"


def test_a_delivery_without_any_account_lets_the_boot_go_on(credentialed: Credentialed) -> None:
    boot = credentialed.boot(startup=[step("env -0 > environment")])
    credentialed.until("credentials")
    credentialed.deliver()
    assert boot.settle()["phase"] == "ready"
    assert "GH_TOKEN" not in credentialed.environment()


def test_a_boot_that_waits_in_vain_fails_and_says_so(credentialed: Credentialed) -> None:
    limits = credentialed.workspace.limits(credentialSeconds=0.3)
    boot = credentialed.boot(limits=limits)
    status = boot.settle()
    assert status["phase"] == "failed"
    assert status["message"] == "the credentials did not arrive within 0.3 seconds"
    assert boot.wait() == 70


def test_whoever_waits_for_the_boot_learns_that_it_waits_for_credentials(
    credentialed: Credentialed,
) -> None:
    credentialed.boot()
    credentialed.until("credentials")
    told = credentialed.workspace.agent("status", "--wait", "3600")
    assert told.returncode == 3
    assert json.loads(told.stdout)["phase"] == "credentials"


def test_a_delivery_can_go_on_as_a_question_for_the_status(credentialed: Credentialed) -> None:
    credentialed.boot()
    argv = ["deliver", "--wait", "60", "--state-dir", str(credentialed.workspace.state)]
    ended = credentialed.call(*argv, stdin=document(*ALL))
    notes, status = ended.stdout.splitlines()
    assert json.loads(notes) == {"notes": []}
    assert json.loads(status)["phase"] == "ready"
    assert ended.returncode == 0


def test_a_boot_that_waits_obeys_a_stop(credentialed: Credentialed) -> None:
    boot = credentialed.boot(startup=[step("touch started")])
    credentialed.until("credentials")
    assert boot.stop() == 143
    assert credentialed.workspace.status()["phase"] == "stopped"
    assert not (credentialed.workspace.directory / "started").exists()


def test_after_a_restart_it_waits_again(credentialed: Credentialed) -> None:
    startup = [step("env -0 > environment")]
    boot = credentialed.boot(startup=startup)
    credentialed.deliver(*ALL)
    assert boot.settle()["phase"] == "ready"
    boot.stop()
    credentialed.forget()

    boot = credentialed.boot(startup=startup)
    credentialed.until("credentials")
    credentialed.deliver(account(1, "claude", "another-value-of-the-account"))
    assert boot.settle()["phase"] == "ready"
    env = credentialed.environment()
    assert env["CLAUDE_CODE_OAUTH_TOKEN"] == "another-value-of-the-account"
    assert "GH_TOKEN" not in env
    # The link of the last life leads nowhere, and would be written through.
    assert not credentialed.auth.is_symlink()


def test_a_workspace_without_credentials_takes_none(workspace: Workspace) -> None:
    workspace.write_config()
    credentialed = Credentialed(workspace)
    ended = credentialed.call("deliver", stdin=document(*ALL))
    assert ended.returncode == 4
    assert b"started without credentials" in ended.stderr
    workspace.write_config(credentials=False)
    assert credentialed.call("collect").returncode == 4


def test_the_files_are_for_root_or_the_user_only(credentialed: Credentialed) -> None:
    credentialed.workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    found = {
        str(path.relative_to(credentialed.current.resolve())): (
            path.owner(),
            oct(path.stat().st_mode & 0o777),
        )
        for path in credentialed.current.resolve().rglob("*")
    }
    root = Path("/proc/self").owner()
    assert found == {
        "accounts.json": (root, "0o600"),
        "gitconfig": (root, "0o644"),
        "codex": (USER, "0o700"),
        "codex/auth.json": (USER, "0o600"),
        "github": (USER, "0o700"),
        "github/token": (USER, "0o600"),
    }
    assert oct(credentialed.current.resolve().stat().st_mode & 0o777) == "0o711"
    assert oct((credentialed.place / "values.json").stat().st_mode & 0o777) == "0o600"
    assert GITHUB not in (credentialed.current / "gitconfig").read_text()


def test_the_harness_finds_its_file_and_may_rewrite_it(credentialed: Credentialed) -> None:
    credentialed.workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    assert credentialed.auth.read_text() == codex()
    assert credentialed.collect() == [{"id": identity(2), "secret": codex()}]

    renewed = codex("renewed-access-0123456789", "renewed-refresh-0123456789")
    wrote = credentialed.as_user('printf "%s" "$SECRET" > ~/.codex/auth.json', SECRET=renewed)
    assert wrote.returncode == 0, wrote.stderr
    assert credentialed.auth.is_symlink()
    assert credentialed.collect() == [{"id": identity(2), "secret": renewed}]


def test_a_file_put_over_the_link_is_collected_and_the_next_delivery_restores_the_link(
    credentialed: Credentialed,
) -> None:
    credentialed.workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    renewed = codex("renewed-access-0123456789", at="2026-01-02T00:00:00.5Z")
    over = 'printf "%s" "$SECRET" > ~/.codex/new && mv ~/.codex/new ~/.codex/auth.json'
    assert credentialed.as_user(over, SECRET=renewed).returncode == 0
    assert not credentialed.auth.is_symlink()
    assert credentialed.collect() == [{"id": identity(2), "secret": renewed}]

    latest = codex("latest-access-0123456789", at="2026-01-03T00:00:00Z")
    credentialed.deliver(account(2, "codex", latest))
    assert credentialed.auth.is_symlink()
    assert credentialed.auth.read_text() == latest
    assert credentialed.collect() == [{"id": identity(2), "secret": latest}]


def test_what_a_tool_renewed_in_the_home_survives_a_restart_that_brings_older_ones(
    credentialed: Credentialed,
) -> None:
    credentialed.workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    renewed = codex("renewed-access-0123456789", at="2026-01-02T00:00:00Z")
    over = 'rm ~/.codex/auth.json && printf "%s" "$SECRET" > ~/.codex/auth.json'
    assert credentialed.as_user(over, SECRET=renewed).returncode == 0
    credentialed.forget()
    credentialed.deliver(*ALL)
    assert credentialed.auth.is_symlink()
    assert credentialed.auth.read_text() == renewed


def test_what_is_withdrawn_is_gone_and_the_rest_stays_as_it_is_now(
    credentialed: Credentialed,
) -> None:
    credentialed.workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    renewed = codex("renewed-access-0123456789")
    credentialed.auth.write_text(renewed)
    credentialed.withdraw(3, 4, 99)
    assert credentialed.auth.read_text() == renewed
    assert not (credentialed.current / "github").exists()
    kept = (credentialed.current / "accounts.json").read_text()
    assert CLAUDE in kept
    assert GITHUB not in kept
    assert GENERIC not in kept

    credentialed.withdraw(2)
    assert credentialed.collect() == []
    assert not credentialed.auth.is_symlink()
    assert not credentialed.auth.exists()


def test_a_login_of_the_users_own_is_not_withdrawn(credentialed: Credentialed) -> None:
    credentialed.workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(account(1, "claude", CLAUDE))
    credentialed.as_user("mkdir ~/.codex && echo '{}' > ~/.codex/auth.json")
    credentialed.withdraw(1, 2)
    assert credentialed.auth.read_text() == "{}\n"


def test_git_learns_the_token_for_the_providers_host_only(credentialed: Credentialed) -> None:
    credentialed.workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    gitconfig = str(credentialed.current / "gitconfig")

    def fill(question: str) -> bytes:
        return credentialed.as_user(
            f"printf '{question}\\n' | git credential fill",
            GIT_CONFIG_SYSTEM=gitconfig,
            GIT_TERMINAL_PROMPT="0",
        ).stdout

    told = fill("protocol=https\\nhost=github.com\\npath=me/private.git\\n").decode().split()
    assert f"password={GITHUB}" in told
    assert "username=x-access-token" in told
    for question in (
        "protocol=http\\nhost=github.com\\n",
        "protocol=https\\nhost=github.com.evil.example\\n",
        "protocol=https\\nhost=evil.example\\n",
        "protocol=https\\nhost=github.com:444\\n",
        "protocol=https\\nhost=github.com\\nusername=somebody\\n",
    ):
        assert GITHUB.encode() not in fill(question)

    credentialed.withdraw(3)
    assert GITHUB.encode() not in fill("protocol=https\\nhost=github.com\\n")


def test_the_helper_itself_gives_nothing_to_another_host(credentialed: Credentialed) -> None:
    credentialed.workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    token = credentialed.current / "github" / "token"
    helper = f"{credentialed.workspace.archive} git-credential --host github.com --token {token}"
    for operation, question in (
        ("get", "protocol=https\\nhost=evil.example\\n\\n"),
        ("get", "protocol=http\\nhost=github.com\\n\\n"),
        ("store", "protocol=https\\nhost=github.com\\n\\n"),
        ("erase", "protocol=https\\nhost=github.com\\npassword=x\\n\\n"),
        ("get", ""),
    ):
        asked = credentialed.as_user(f"printf '{question}' | {helper} {operation}")
        assert (asked.returncode, asked.stdout) == (0, b"")
    asked = credentialed.as_user(f"printf 'protocol=https\\nhost=github.com\\n' | {helper} get")
    assert GITHUB.encode() in asked.stdout


def test_another_host_of_the_provider_can_be_named(credentialed: Credentialed) -> None:
    credentialed.workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(account(3, "github", GITHUB) | {"host": "git.example.org:8443"})
    asked = credentialed.as_user(
        "printf 'protocol=https\\nhost=git.example.org:8443\\n' | git credential fill",
        GIT_CONFIG_SYSTEM=str(credentialed.current / "gitconfig"),
        GIT_TERMINAL_PROMPT="0",
    )
    assert GITHUB.encode() in asked.stdout


def test_what_the_systems_own_configuration_of_git_says_still_counts(
    credentialed: Credentialed,
) -> None:
    own = credentialed.workspace.root / 'own "git" config'
    own.write_text("[user]\n\tname = From the system\n")
    env = {"GIT_CONFIG_SYSTEM": str(own)}
    credentialed.workspace.write_config(credentials=str(credentialed.place), env=env)
    credentialed.deliver(*ALL)
    asked = credentialed.as_user(
        "git config user.name", GIT_CONFIG_SYSTEM=str(credentialed.current / "gitconfig")
    )
    assert asked.stdout == b"From the system\n"
