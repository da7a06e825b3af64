"""The ordinary life of runs, when the whole service sees to them."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator

import pytest
from pytest_django.fixtures import Settings

from runs.agent.session.channel import FromClient, ToClient
from tests.stack.runs import GATEWAY_TOKEN, REPOSITORY, Place, place_of
from tests.stack.service import GitServer, Stack
from tests.stack.worker_process import eventually

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def place(
    stack: Stack, git_server: GitServer, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """One workspace for all tests here."""
    with place_of(stack, git_server, run_queue, tmp_path_factory.mktemp("runs")) as made:
        yield made


# ---------------------------------------------------------------- what is executed


def test_a_commands_two_outputs_are_kept_apart(place: Place) -> None:
    run = place.shell("echo to be read; echo to be worried about >&2")
    shown = place.completed(run)
    assert shown["exitCode"] == 0
    assert place.output(run) == b"to be read\n"
    assert place.output(run, "stderr") == b"to be worried about\n"


def test_a_program_that_fails_fails_its_run_with_its_exit_code(place: Place) -> None:
    run = place.shell("echo before; exit 41")
    shown = place.ended(run)
    assert (shown["status"], shown["exitCode"], shown["errorCode"]) == ("failed", 41, "run-exited")
    assert place.output(run) == b"before\n"
    assert place.loss(run)["complete"]


def test_a_program_that_there_is_not_is_a_record_all_the_same(place: Place) -> None:
    run = place.run("/no/such/program")
    shown = place.ended(run)
    assert (shown["status"], shown["exitCode"]) == ("failed", 127)
    assert place.loss(run)["complete"]
    place.verify(run)


def test_a_prompt_for_the_shell_is_executed(place: Place) -> None:
    run = place.ask(prompt='echo "I am $(id -un)"')
    place.completed(run)
    assert place.output(run) == b"I am workspace\n"


def test_a_command_reads_its_input_in_its_place_with_its_environment(place: Place) -> None:
    run = place.shell(
        'cat; pwd; printf "%s\\n" "$COLOUR"',
        stdin="told ü\n",
        env={"COLOUR": "a 'b' $c"},
        cwd="/tmp",
    )
    place.completed(run)
    assert place.output(run).decode() == "told ü\n/tmp\na 'b' $c\n"
    assert place.output(run, "stdin").decode() == "told ü\n"


def test_a_command_runs_in_the_repository_unless_told(place: Place) -> None:
    run = place.run("pwd")
    place.completed(run)
    assert place.output(run).decode() == f"{REPOSITORY}\n"


# ---------------------------------------------------------------- how it is ended


def test_a_run_is_ended_at_its_time_limit(place: Place) -> None:
    run = place.shell("echo begun; sleep 600", timeLimitMs=20_000)  # time enough to begin
    shown = place.ended(run)
    assert (shown["status"], shown["exitSignal"]) == ("failed", "SIGTERM")
    assert place.output(run) == b"begun\n"
    (sent,) = place.timeline(run, "signalSent")
    assert sent["ref"]["reason"] == "timeout"
    assert place.loss(run)["complete"]


def test_a_cancelled_program_ends_though_it_ignores_being_asked(place: Place) -> None:
    run = place.shell("trap 'echo no' TERM; echo begun; while :; do sleep 0.1; done")
    place.wait_output(run, b"begun\n")
    place.cancel(run)
    assert place.ended(run)["status"] == "cancelled"
    assert b"no\n" in place.output(run)
    signals = [event["ref"]["signal"] for event in place.timeline(run, "signalSent")]
    assert signals == ["SIGTERM", "SIGKILL"]


# ---------------------------------------------------------------- what it changed


def test_changes_are_those_of_the_working_tree_whatever_is_committed_meanwhile(
    place: Place,
) -> None:
    run = place.shell(
        "set -e; echo more >> kept; git -c user.name=Me -c user.email=me@example.org"
        " commit -q -am during; git rm -q gone; echo x > new;"
        " printf '\\0\\1' > binary; chmod +x kept"
    )
    place.completed(run)
    assert place.changed(run) == {
        b"kept": "modified",
        b"gone": "deleted",
        b"new": "added",
        b"binary": "added",
    }
    changes = place.changes(run)
    assert "+more\n" in changes["diff"]
    by_name = {entry["path"]: entry for entry in changes["files"]}
    assert by_name["binary"]["binary"]
    assert (by_name["kept"]["addedLines"], by_name["kept"]["removedLines"]) == (1, 0)
    assert by_name["kept"]["modeBefore"] != by_name["kept"]["modeAfter"]
    assert changes["exclusive"]


def test_looking_for_changes_leaves_the_users_index_alone(place: Place) -> None:
    index = f"sha256sum < {REPOSITORY}/.git/index"
    before = place.inside(index)
    run = place.shell("echo unstaged > unstaged")
    place.completed(run)
    assert place.changed(run) == {b"unstaged": "added"}
    assert place.inside(index) == before


def test_runs_that_overlap_are_named_in_each_others_changes(place: Place) -> None:
    both = f"/tmp/both-{uuid.uuid4()}"  # of this attempt, should it be run again
    first = place.shell(f"echo here; while [ ! -e {both} ]; do sleep 0.05; done")
    place.wait_output(first, b"here\n")
    second = place.shell(f"echo there; while [ ! -e {both} ]; do sleep 0.05; done")
    place.wait_output(second, b"there\n")
    place.inside(f"touch {both}")
    for run, other in ((first, second), (second, first)):
        place.completed(run)
        changes = place.changes(run)
        assert not changes["exclusive"]
        assert changes["overlappingRunIds"] == [other]


# ---------------------------------------------------------------- how it is read


@pytest.fixture(scope="module")
def told(place: Place) -> str:
    """A run with several chunks of output."""
    run = place.python(
        "import os, sys, time\n"
        "for number in range(20):\n"
        "    os.write(1, b'%04d \\xff\\x00\\n' % number)\n"
        "    time.sleep(0.03)\n"
    )
    place.completed(run)
    return run


def test_a_timeline_in_pages_is_the_whole_of_it(place: Place, told: str) -> None:
    whole = place.timeline(told)
    assert place.timeline(told, limit=3) == whole
    assert [int(event["sequence"]) for event in whole] == list(range(1, len(whole) + 1))
    assert (whole[0]["kind"], whole[-1]["kind"]) == ("recordStarted", "recordSealed")
    outputs = place.timeline(told, "ioChunk")
    assert len(outputs) > 3
    assert outputs == [event for event in whole if event["kind"] == "ioChunk"]


def test_scrollback_is_the_same_in_pieces_as_in_raw_bytes(place: Place, told: str) -> None:
    written = b"".join(b"%04d \xff\x00\n" % number for number in range(20))
    assert place.output(told) == written
    pieces, start = [], "0"
    while start is not None:
        piece = place.scrollback(told, fromOffset=start, limitBytes=33)
        pieces.append(base64.b64decode(piece["contentBase64"]))
        start = piece.get("nextOffset")
    assert b"".join(pieces) == written
    assert len(pieces) > 3


def test_an_export_holds_by_itself_and_a_changed_one_does_not(place: Place, told: str) -> None:
    place.verify(told)
    lines = place.export(told).splitlines(keepends=True)
    del lines[len(lines) // 2]
    assert not place.checked(lines).ok


def test_a_text_export_is_what_was_written(place: Place) -> None:
    run = place.shell("echo one; echo two")
    place.completed(run)
    text = place.stack.api.get(f"/v1/runs/{run}/export?format=text").content
    assert b"one\ntwo\n" in text


# ---------------------------------------------------------------- sessions


def test_a_session_is_recorded_as_its_terminal_showed_it(place: Place, settings: Settings) -> None:
    settings.WORKSPACE_SSH_GATEWAY_TOKEN = GATEWAY_TOKEN
    terminal = {"columns": 97, "rows": 31, "term": "xterm"}
    session = place.session("bash", "--norc", pty=terminal, env={"PS1": "ready> "})
    session.until_said(b"ready> ")
    session.send(FromClient.DATA, b"stty size; tty\n")
    session.until_said(b"31 97\r\n")
    session.until_said(b"/dev/pts/")
    size = json.dumps({"columns": 120, "rows": 40}).encode()
    session.send(FromClient.RESIZE, size)
    session.send(FromClient.DATA, b"stty size\n")
    session.until_said(b"40 120\r\n")
    session.send(FromClient.DATA, b"exit 5\n")
    assert session.until(ToClient.EXIT)["code"] == 5
    session.close()

    shown = place.ended(session.run)
    assert (shown["status"], shown["exitCode"]) == ("completed", 5)
    assert place.output(session.run, "pty") == session.said
    assert b"stty size" in place.output(session.run, "ptyInput")
    sizes = [event["ref"] for event in place.timeline(session.run, "terminalResized")]
    assert [(size["columns"], size["rows"]) for size in sizes] == [(97, 31), (120, 40)]
    assert place.loss(session.run)["complete"]
    place.verify(session.run)
    cast = place.stack.api.get(f"/v1/runs/{session.run}/export?format=asciicast").content
    head = json.loads(cast.splitlines()[0])
    assert (head["version"], head["term"]["cols"]) == (3, 97)
    assert json.loads(cast.splitlines()[-1])[1:] == ["x", "5"]


def test_a_session_whose_client_is_gone_is_hung_up_and_recorded_to_its_end(
    place: Place, settings: Settings
) -> None:
    settings.WORKSPACE_SSH_GATEWAY_TOKEN = GATEWAY_TOKEN
    session = place.session("bash", "-c", "echo $$; exec sleep 600")
    session.until_said(b"\n")
    pid = session.said.decode().strip()
    session.close()
    assert place.ended(session.run)["status"] in ("failed", "completed")
    eventually(
        lambda: place.inside(f"test -e /proc/{pid} || echo gone") == "gone", what="it has ended"
    )
    assert place.output(session.run) == session.said
    place.verify(session.run)
