"""No credential is in any record, tail, status or log, in whatever usual spelling it is printed."""

from __future__ import annotations

import base64
import json
import re
import shlex
import textwrap
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from runs.agent.masking.masker import Masker
from runs.agent.record.frames import Stream
from tests.runs.agent.booted import UNTIL_GO, Workspace, command, eventually, step
from tests.runs.agent.credentialed import (
    ACCESS,
    ALL,
    CLAUDE,
    GENERIC,
    GITHUB,
    REFRESH,
    Credentialed,
    account,
    codex,
)
from tests.runs.agent.recorded import Runs

CANARIES = (CLAUDE, GITHUB, GENERIC, ACCESS, REFRESH)
HARD = "a/b'c\"d$e\\f(g) h&i=\u00fc%!`j"

SHOW = (
    'echo "$CLAUDE_CODE_OAUTH_TOKEN $GH_TOKEN $SERVICE_LOGIN"; cat ~/.codex/auth.json;'
    'printf "%s" "xx$CLAUDE_CODE_OAUTH_TOKEN" | base64 -w0; echo;'
    'printf "%s" "$SERVICE_LOGIN" | base64 -w0; echo'
)


def spellings(value: str) -> list[bytes]:
    """How programs usually write a value."""
    raw = value.encode()
    texts = [
        *(quote(value, safe=safe) for safe in ("", "/", "!'()*", ";,/?:@&=+$-_.!~*'()#", "!~*'()")),
        *(quote_plus(value, safe=safe) for safe in ("", "/")),
        re.sub("%..", lambda match: match[0].lower(), quote(value, safe="")),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        json.dumps(value)[1:-1].replace("/", "\\/"),
        shlex.quote(value).removeprefix("'").removesuffix("'"),
        value.replace("'", "'\\''"),
        raw.hex(),
        raw.hex().upper(),
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(b"one" + raw).decode(),
    ]
    return [raw, *(text.encode() for text in texts)]


def canaries_in(content: bytes) -> list[str]:
    """Which of the canaries can be read in it, in any of these spellings."""
    found = []
    for canary in CANARIES:
        raw = canary.encode()
        forms = [raw, raw.hex().encode(), quote(canary).encode()]
        forms += [base64.b64encode(b"x" * n + raw)[4:-4] for n in range(3)]
        found += [canary for form in forms if form in content]
    return found


@pytest.mark.parametrize("number", range(17))
def test_a_value_is_masked_in_every_usual_spelling(number: int) -> None:
    for value in (HARD, GENERIC, CLAUDE):
        form = spellings(value)[number]
        masked = Masker([value.encode()]).mask(b"<" + form + b">")
        assert len(masked) == len(form) + 2
        left = masked.strip(b"<>").replace(b"*", b"")
        # Of base64, what is beside the value shares characters with it.
        assert len(left) <= 8, (form, masked)
        assert value.encode()[:8] not in masked


@pytest.mark.parametrize("width", [76, 64])
@pytest.mark.parametrize("end", ["", "\n"], ids=["alone", "line"])
def test_a_long_value_is_masked_in_base64_that_is_broken_into_lines(width: int, end: str) -> None:
    value = "".join(f"long-{number:04d}." for number in range(40))
    encoded = base64.b64encode((value + end).encode()).decode()
    text = "\n".join(textwrap.wrap(encoded, width)).encode()
    masked = Masker([value.encode()]).mask(text)
    assert masked.count(b"*") > len(encoded) - 24
    assert len(masked.replace(b"*", b"").replace(b"\n", b"")) < 24


def test_the_file_of_an_account_is_masked_when_it_is_printed_in_base64(
    workspace: Workspace,
) -> None:
    credentialed = Credentialed(workspace)
    runs = Runs(workspace)
    workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    file = "~/.codex/auth.json"
    renewed = codex("renewed-access-canary-0123" * 5, at="2026-01-02T00:00:00Z")
    (workspace.directory / "new").write_text(renewed)
    shown = runs.run(
        "sh", "-c", f"base64 {file}; cp new {file}; sleep 0.1; base64 -w 64 {file}; cat {file}"
    ).stream(Stream.STDOUT)
    assert b'"last_refresh": "2026-01-02' in shown
    for text in (codex(), renewed):
        encoded = base64.b64encode(text.encode())
        assert all(encoded[at : at + 24] not in shown for at in range(len(encoded) - 24))


def test_what_a_boot_prints_of_them_is_in_none_of_its_records(credentialed: Credentialed) -> None:
    boot = credentialed.boot(
        setup=[step(SHOW)], startup=[step(f"{SHOW}; exit 5", name="the failing one")]
    )
    credentialed.deliver(*ALL)
    status = boot.settle()
    assert status["phase"] == "failed"
    assert "*" * len(CLAUDE) in status["tail"]
    boot.wait()
    state = credentialed.workspace.state
    written = b"".join(path.read_bytes() for path in state.rglob("*") if path.is_file())
    assert b"*" * len(CLAUDE) in written
    assert b"*" * len(CLAUDE) in boot.output
    assert canaries_in(written) == []
    assert canaries_in(boot.output) == []


def test_the_log_has_everything_else_that_a_boot_prints(credentialed: Credentialed) -> None:
    lines = "; ".join(f"echo line {number}; echo error {number} >&2" for number in range(50))
    boot = credentialed.boot(startup=[step(lines)])
    credentialed.deliver(*ALL)
    assert boot.settle()["phase"] == "ready"
    boot.stop()
    told = boot.output.decode().splitlines()
    assert [line for line in told if line.startswith("line")] == [f"line {n}" for n in range(50)]
    assert [line for line in told if line.startswith("err")] == [f"error {n}" for n in range(50)]


def test_a_run_that_began_before_a_new_delivery_masks_the_old_values_and_the_new(
    workspace: Workspace,
) -> None:
    credentialed = Credentialed(workspace)
    runs = Runs(workspace)
    workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    file = "~/.codex/auth.json"
    run = runs.start("sh", "-c", f"{SHOW}; {UNTIL_GO}; {SHOW}; cat {file}; echo the end")
    runs.wait_for_output(run, b"*" * len(CLAUDE))

    access, refresh = "new-access-canary-987654321", "new-refresh-canary-987654321"
    credentialed.deliver(account(2, "codex", codex(access, refresh)))
    workspace.go()
    shown = runs.sealed(run).stream(Stream.STDOUT)
    assert shown.endswith(b"the end\n")
    assert canaries_in(shown) == []
    assert b"*" * len(access) in shown
    assert access.encode() not in shown
    assert refresh.encode() not in shown
    # Earlier values may still be in the hands of what runs.
    again = runs.run("sh", "-c", f"echo {CLAUDE}; cat {file}").stream(Stream.STDOUT)
    assert again.startswith(b"*" * len(CLAUDE) + b"\n")
    assert access.encode() not in again


@pytest.mark.parametrize("how", ["cp new {0}", "cp new ~/.codex/new && mv ~/.codex/new {0}"])
def test_what_a_tool_renews_is_masked_from_then_on(workspace: Workspace, how: str) -> None:
    credentialed = Credentialed(workspace)
    runs = Runs(workspace)
    workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    renewed = codex("renewed-access-canary-0123", "renewed-refresh-canary-0123")
    (workspace.directory / "new").write_text(renewed)
    put = how.format("~/.codex/auth.json")
    record = runs.run("sh", "-c", f"echo begun; sleep 0.1; {put}; cat ~/.codex/auth.json")
    shown = record.stream(Stream.STDOUT)
    assert b"last_refresh" in shown
    assert b"renewed-" not in shown


def test_a_file_of_the_users_cannot_make_the_record_unreadable(workspace: Workspace) -> None:
    credentialed = Credentialed(workspace)
    runs = Runs(workspace)
    workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    hostile = {
        "a_token": "the next command",
        "b_token": "short",
        "tokens": {"account_id": "x" * 30},
    }
    write = f"printf '%s' {shlex.quote(json.dumps(hostile))} > ~/.codex/auth.json"
    record = runs.run("sh", "-c", f"{write}; sleep 0.1; echo the next command is short {'x' * 30}")
    assert record.stream(Stream.STDOUT) == f"the next command is short {'x' * 30}\n".encode()


def test_a_link_of_the_users_gives_recorders_nothing_to_read(workspace: Workspace) -> None:
    credentialed = Credentialed(workspace)
    runs = Runs(workspace)
    workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    word = "a-word-in-the-file-of-somebody-else"
    secret = Path(workspace.root / "of-root.json")
    secret.write_text(json.dumps({"token": word}))
    secret.chmod(0o600)
    link = f"rm ~/.codex/auth.json; ln -s {secret} ~/.codex/auth.json"
    # If it were read, the mask would tell whoever guesses the word that the guess is right.
    record = runs.run("sh", "-c", f"{link}; sleep 0.1; echo {word}")
    assert record.stream(Stream.STDOUT) == f"{word}\n".encode()


def test_a_command_that_has_a_credential_in_it_is_recorded_without(workspace: Workspace) -> None:
    credentialed = Credentialed(workspace)
    runs = Runs(workspace)
    workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    record = runs.run("sh", "-c", f"true {CLAUDE} {REFRESH}")
    assert {tuple(canaries_in(event.meta)) for event in record.events} == {()}


def test_the_foreground_of_a_ready_workspace_is_masked_after_a_new_delivery(
    credentialed: Credentialed,
) -> None:
    boot = credentialed.boot(foreground=command(f"{UNTIL_GO}; cat ~/.codex/auth.json; sleep 60"))
    credentialed.deliver(*ALL)
    assert boot.settle()["phase"] == "ready"
    access = "new-access-canary-987654321"
    credentialed.deliver(account(2, "codex", codex(access)))
    credentialed.workspace.go()
    eventually(lambda: b"last_refresh" in boot.output)
    assert b"*" * len(access) in boot.output
    assert access.encode() not in boot.output
