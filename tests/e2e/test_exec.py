"""Execs in a real workspace: what goes in, what comes out, how they end, many at once."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from runs.exec.waiting import stop_listening
from runs.models import RunInput
from tests.conftest import Answer, Api
from tests.stack.runs import REPOSITORY, Place, place_of
from tests.stack.service import GitServer, Stack
from tests.stack.worker_process import eventually

pytestmark = pytest.mark.docker

PATTERN = bytes(range(256)) * 1024
SIZES = [0, 1, 4095, 4096, 4097, 65535, 65536, 65537]


@pytest.fixture(scope="module")
def place(
    stack: Stack, git_server: GitServer, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """One workspace for all tests here."""
    with place_of(stack, git_server, run_queue, tmp_path_factory.mktemp("execs")) as made:
        yield made
    stop_listening()


def exec_in(place: Place, command: Any, *, expect: int = 200, **members: Any) -> Any:
    """Execute a command and return the body of the answer."""
    path = f"/v1/workspaces/{place.started.answer['workspaceId']}/exec"
    return place.stack.api.post(path, {"command": command, **members}, expect=expect).body


def sha(content: bytes) -> str:
    """Return the SHA-256 as programs print it."""
    return hashlib.sha256(content).hexdigest()


def written(answer: Any, stream: str = "stdout") -> bytes:
    """Return the bytes of an output of an answer."""
    if f"{stream}Base64" in answer:
        return base64.b64decode(answer[f"{stream}Base64"])
    return str(answer[stream]).encode()


def test_a_shells_text_is_executed_in_the_repository_and_recorded(place: Place) -> None:
    answer = exec_in(place, "pwd; id -un; echo no >&2; exit 4")
    assert (answer["status"], answer["exitCode"]) == ("failed", 4)
    assert answer["stdout"] == f"{REPOSITORY}\nworkspace\n"
    assert answer["stderr"] == "no\n"
    assert place.output(answer["runId"]) == answer["stdout"].encode()
    place.verify(answer["runId"])


@pytest.mark.parametrize("size", SIZES)
def test_input_and_output_are_the_same_bytes(place: Place, size: int) -> None:
    content = PATTERN[:size]
    answer = exec_in(place, ["tee", "/dev/stderr"], stdinBase64=base64.b64encode(content).decode())
    assert sha(written(answer)) == sha(content)
    assert sha(written(answer, "stderr")) == sha(content)
    assert not answer["truncated"]


def test_a_command_that_does_not_read_its_input_ends_as_it_likes(place: Place) -> None:
    answer = exec_in(place, "exec <&-; echo done; exit 5", stdin="x" * 700_000)
    assert (answer["status"], answer["exitCode"], answer["stdout"]) == ("failed", 5, "done\n")


@pytest.mark.slow
def test_a_hundred_mebibytes_are_in_the_record_byte_for_byte(place: Place) -> None:
    size = 100 * 1024**2
    script = "import sys; [sys.stdout.buffer.write(bytes(range(256)) * 4096) for _ in range(100)]"
    answer = exec_in(place, ["python3", "-c", script])
    assert answer["truncated"]
    assert sha(written(answer)) == sha(bytes(range(256)) * 4096)
    whole = place.output(answer["runId"])
    assert (len(whole), sha(whole)) == (size, sha(bytes(range(256)) * 4096 * 100))


def test_a_command_that_takes_too_long_is_ended(place: Place) -> None:
    answer = exec_in(place, ["sleep", "600"], timeLimitMs=300)
    assert (answer["status"], answer["errorCode"]) == ("failed", "run-timeout")
    assert answer["exitSignal"] == "SIGTERM"


def test_a_command_that_there_is_not_says_so(place: Place) -> None:
    answer = exec_in(place, ["/no/such/program"])
    assert (answer["exitCode"], answer["errorCode"]) == (127, "run-start-failed")
    assert "/no/such/program" in answer["errorMessage"]


def test_secrets_of_its_environment_are_masked_in_its_answer(place: Place) -> None:
    answer = exec_in(place, "echo $MY_TOKEN", env={"MY_TOKEN": "correct-horse"})
    assert answer["stdout"] == "*" * len("correct-horse") + "\n"


def test_one_in_the_background_goes_on_and_can_be_cancelled(place: Place) -> None:
    answer = exec_in(place, "echo begun; exec sleep 600", background=True, expect=202)
    place.wait_output(answer["runId"], b"begun\n")
    place.cancel(answer["runId"])
    assert place.ended(answer["runId"])["status"] == "cancelled"


def test_changes_are_in_the_record_of_an_exec_that_asks_for_them(place: Place) -> None:
    answer = exec_in(place, "echo new >made", changes=True)
    assert place.changed(answer["runId"]) == {b"made": "added"}
    without = exec_in(place, "rm made")
    assert place.changed(without["runId"]) == {}


def test_fifty_at_once_have_each_their_own_answer(place: Place) -> None:
    path = f"/v1/workspaces/{place.started.answer['workspaceId']}/exec"

    def ask(number: int) -> Answer:
        """Ask as a client does that tries again when it is told to."""
        api, found = Api(), []
        try:
            body = {"command": ["echo", str(number)]}

            def answered() -> bool:
                found.append(api.request("POST", path, body))
                return found[-1].status != 503

            eventually(answered, what="a place to wait in")
            return found[-1]
        finally:
            connections.close_all()

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(ask, range(50)))
    assert [answer.body["stdout"] for answer in answers] == [f"{each}\n" for each in range(50)]
    assert len({answer.body["runId"] for answer in answers}) == 50


# ---------------------------------------------------------------- input


def give(place: Place, run: str, *, expect: int = 202, **members: Any) -> Any:
    """Give a run input and return the body of the answer."""
    return place.stack.api.post(f"/v1/runs/{run}/input", members, expect=expect).body


def opened(place: Place, command: Any, **members: Any) -> str:
    """Execute a command whose input stays open; return its run."""
    members = {"openStdin": True, "background": True, **members}
    return str(exec_in(place, command, expect=202, **members)["runId"])


def test_input_reaches_a_running_program_once_however_often_it_is_sent(place: Place) -> None:
    run = opened(place, ["cat"], stdin="zero ")
    assert give(place, run, stdin="one ", offset=5) == {"offset": 9, "ended": False}
    assert give(place, run, stdin="one two ", offset=5) == {"offset": 13, "ended": False}
    place.wait_output(run, b"zero one two ")
    again = give(place, run, stdin="one two three", offset=5, end=True)
    assert again == {"offset": 18, "ended": True}
    place.completed(run)
    assert place.output(run) == b"zero one two three"
    assert place.output(run, "stdin") == b"zero one two three"


def test_input_of_many_pieces_arrives_byte_for_byte(place: Place) -> None:
    run = opened(place, ["sha256sum"])
    pieces = [PATTERN[size:] + bytes([size % 256]) * size for size in SIZES]
    for piece in pieces:
        give(place, run, stdinBase64=base64.b64encode(piece).decode())
    give(place, run, end=True)
    place.completed(run)
    assert place.output(run).decode().split()[0] == sha(b"".join(pieces))


def test_a_signal_overtakes_input_that_nobody_reads(place: Place) -> None:
    script = "trap 'echo told; exit 3' INT; echo begun; while :; do sleep 0.1; done"
    run = opened(place, ["bash", "-c", script])
    place.wait_output(run, b"begun\n")
    # More than the agent keeps and is handed at once: the rest waits in the database.
    for _ in range(8):
        give(place, run, stdinBase64=base64.b64encode(PATTERN * 2).decode())
    give(place, run, signal="INT")
    shown = place.ended(run)
    assert shown.get("exitCode") == 3, shown
    assert place.output(run) == b"begun\ntold\n"


def test_a_terminal_has_the_size_that_it_is_given_and_echoes_what_is_typed(place: Place) -> None:
    script = "stty size; read line; stty size; echo got $line"
    run = opened(place, ["bash", "-c", script], terminal={"columns": 80, "rows": 24})
    place.wait_output(run, b"24 80\r\n", "pty")
    give(place, run, resize={"columns": 100, "rows": 30}, stdin="typed\n")
    place.completed(run)
    assert place.output(run, "pty") == b"24 80\r\ntyped\r\n30 100\r\ngot typed\r\n"
    place.verify(run)


def test_a_program_that_does_not_read_fills_up_and_says_so(place: Place) -> None:
    run = opened(place, ["sleep", "600"])
    piece = base64.b64encode(PATTERN * 2).decode()
    answers: list[Answer] = []

    def is_full() -> bool:
        path = f"/v1/runs/{run}/input"
        answers.append(place.stack.api.request("POST", path, {"stdinBase64": piece}))
        return answers[-1].status == 503

    eventually(is_full, what="it is full")
    assert answers[-1].body["code"] == "input-full"
    # What the agent keeps, what is kept here, and what lies in the pipe.
    assert len(answers) * len(PATTERN) * 2 <= 8 * 1024**2
    place.cancel(run)
    shown = place.ended(run)
    assert shown["status"] == "cancelled", shown
    assert give(place, run, stdin="late", expect=409)["code"] == "run-ended"


def test_input_whose_announcement_got_lost_reaches_the_program(place: Place) -> None:
    run = opened(place, ["cat"])
    place.wait_begun(run)
    give(place, run, stdin="told ", offset=0)
    place.wait_output(run, b"told ")
    data = base64.b64encode(b"and not told").decode()
    for position, detail in enumerate(
        [{"kind": "bytes", "offset": 5, "data": data}, {"kind": "end"}], 2
    ):
        RunInput.objects.create(run_id=run, position=position, size=0, detail=detail)
    place.completed(run)
    assert place.output(run) == b"told and not told"


def test_input_survives_the_worker_that_was_to_hand_it_over(place: Place) -> None:
    run = opened(place, ["cat"])
    place.wait_begun(run)
    with place.unrecorded():
        give(place, run, stdin="while nobody ", offset=0)
        give(place, run, stdin="looked", offset=13, end=True)
    place.completed(run)
    assert place.output(run) == b"while nobody looked"
