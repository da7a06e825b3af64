"""Programs that mean no good, or do not care: their records are whole, or say what they lack."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from runs.agent.session.channel import ToClient
from runs.models import Run
from tests.stack.runs import GATEWAY_TOKEN, RECORD, REPOSITORY, Place, place_of
from tests.stack.service import GitServer, Stack
from tests.stack.worker_process import eventually

pytestmark = pytest.mark.docker

MIB = 1024 * 1024
ROWS_WITH = [
    "select count(*) from run_event as it where run_number = %s and it::text like any (%s)",
    "select count(*) from run_process as it where run_number = %s and it::text like any (%s)",
    "select count(*) from run_change as it where run_number = %s and it::text like any (%s)",
]
SPOOL = "/var/lib/svc/runs/$SVC_RUN_ID"


@pytest.fixture(scope="module")
def place(
    stack: Stack, git_server: GitServer, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """One workspace for all tests here; its user may become root."""
    with place_of(stack, git_server, run_queue, tmp_path_factory.mktemp("hostile")) as made:
        yield made


@pytest.fixture
def tidy(place: Place) -> Iterator[None]:
    """Leave the repository as it was."""
    yield
    place.inside(f"cd {REPOSITORY} && git clean -qffdx && git checkout -q .")


# ---------------------------------------------------------------- what is written


def test_every_value_of_a_byte_is_kept(place: Place) -> None:
    run = place.python("import os\nfor _ in range(64): os.write(1, bytes(range(256)))")
    place.completed(run)
    assert place.output(run) == bytes(range(256)) * 64


def test_what_is_no_text_is_kept_in_both_streams(place: Place) -> None:
    odd = b"\0\0 \xff\xfe \xc3( \xed\xa0\x80 \xf4\x90\x80\x80 \x1b]0;title\x07 \r\n"
    run = place.python(f"import os\nos.write(1, {odd!r})\nos.write(2, {odd[::-1]!r})")
    place.completed(run)
    assert place.output(run) == odd
    assert place.output(run, "stderr") == odd[::-1]
    place.verify(run)
    place.timeline(run)


@pytest.mark.slow
def test_much_output_is_kept_to_the_last_byte(place: Place) -> None:
    script = (
        "import hashlib, sys\n"
        "block = hashlib.shake_256(b'much').digest(1 << 20)\n"
        "for number in range(64):\n"
        "    sys.stdout.buffer.write(number.to_bytes(4, 'big') + block[4:])\n"
    )
    run = place.python(script)
    place.completed(run)
    kept = place.output(run)
    assert len(kept) == 64 * MIB
    written = hashlib.sha256()
    block = hashlib.shake_256(b"much").digest(MIB)
    for number in range(64):
        written.update(number.to_bytes(4, "big") + block[4:])
    assert hashlib.sha256(kept).digest() == written.digest()


def test_what_does_not_fit_a_small_spool_is_declared_byte_by_byte(
    place: Place, settings: Settings
) -> None:
    settings.WORKSPACE_SSH_GATEWAY_TOKEN = GATEWAY_TOKEN
    record = {**RECORD, "policy": "drop", "spoolBytes": 256 * 1024, "segmentBytes": 64 * 1024}
    lines = 400_000
    script = f"for number in range({lines}): print('%015d' % number)"
    with place.unrecorded():
        session = place.session("python3", "-c", script, record=record)
        session.until(ToClient.EXIT)
        session.close()
        eventually(lambda: place.waits_sealed(session.run), what="the program ends")
    place.ended(session.run)

    kept = place.output(session.run)
    spans = [
        (int(span["fromOffset"]), int(span["toOffset"]))
        for span in place.loss(session.run)["spans"]
        if span.get("stream") == "stdout"
    ]
    missing = sum(end - start for start, end in spans)
    assert missing > 0
    assert len(kept) + missing == lines * 16
    written = b"".join(b"%015d\n" % number for number in range(lines))
    holes, at = [], 0
    for start, end in sorted(spans):
        holes.append(written[at:start])
        at = end
    assert b"".join([*holes, written[at:]]) == kept
    assert not place.loss(session.run)["complete"]
    place.verify(session.run)


def test_a_secret_written_in_pieces_is_nowhere_in_the_record(place: Place) -> None:
    secret = "Zx9-correct-horse-battery-staple"
    script = (
        "import os\n"
        "secret = os.environ['DEPLOY_TOKEN'].encode()\n"
        "for at in range(0, len(secret), 5): os.write(1, secret[at:at + 5])\n"
        "os.write(2, b'<' + secret + b'>')\n"
        "open('leaked', 'wb').write(secret)\n"
    )
    run = place.python(script, secret, env={"DEPLOY_TOKEN": secret})
    place.completed(run)
    assert place.output(run) == b"*" * len(secret)
    assert place.output(run, "stderr") == b"<" + b"*" * len(secret) + b">"
    number = Run.objects.get(pk=run).number
    with connection.cursor() as cursor:
        for question in ROWS_WITH:
            cursor.execute(question, [number, [f"%{secret}%", f"%{secret.encode().hex()}%"]])
            assert cursor.fetchone() == (0,), question
    place.inside(f"rm {REPOSITORY}/leaked")


# ---------------------------------------------------------------- what does not end


def test_a_daemon_that_keeps_the_outputs_open_does_not_keep_the_run_open(place: Place) -> None:
    run = place.shell("setsid sleep 600 & echo left behind")
    shown = place.ended(run)
    assert (shown["status"], shown["exitCode"]) == ("completed", 0)
    assert place.output(run) == b"left behind\n"
    closed = {event["ref"]["reason"] for event in place.timeline(run, "processStreamClosed")}
    assert "abandoned" in closed


def test_a_program_that_ignores_every_signal_ends_at_its_time_limit(place: Place) -> None:
    script = (
        "import signal, time\n"
        "for number in set(signal.valid_signals()) - {9, 19}:\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "print('begun', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    run = place.python(script, timeLimitMs=20_000)  # time enough to begin, on a busy machine too
    shown = place.ended(run)
    assert (shown["status"], shown["exitSignal"]) == ("failed", "SIGKILL")
    assert place.output(run) == b"begun\n"
    assert place.loss(run)["complete"]


def test_many_short_processes_are_each_told_to_their_end_or_not_at_all(place: Place) -> None:
    run = place.shell("for n in $(seq 300); do /bin/true; done; echo done")
    place.completed(run)
    assert place.output(run) == b"done\n"
    started = [event["processId"] for event in place.timeline(run, "processStarted")]
    ended = [event["processId"] for event in place.timeline(run, "processExited")]
    assert len(set(started)) == len(started)
    assert sorted(started) == sorted(ended)
    assert place.loss(run)["coverage"]["processes"]["state"] in ("on", "limited")


# ---------------------------------------------------------------- what is done to files


@pytest.mark.usefixtures("tidy")
def test_many_file_events_are_told_or_their_loss_is(place: Place) -> None:
    run = place.python(
        "import os\n"
        "os.mkdir('many')\n"
        "for number in range(2000): open('many/%d' % number, 'w').close()\n"
    )
    shown = place.ended(run)
    assert shown["status"] == "completed"
    loss = place.loss(run)
    told = {
        event["ref"]["path"]
        for event in place.timeline(run, "fileChange")
        if event["ref"]["path"].startswith("many/")
    }
    assert len(told) == 2000 or not loss["complete"] or loss["watchOverflowCount"]
    assert len(place.changed(run)) == 2000


@pytest.mark.usefixtures("tidy")
def test_files_of_any_name_are_named_exactly(place: Place) -> None:
    names = [
        b"new\nline",
        b"tab\tand\rreturn",
        b'quote"d',
        b"back\\slash",
        b" spaces ",
        b"-rf",
        b"\xff\xfe not text",
        "\u202egnp.exe".encode(),
        b":(glob)*",
        b"a -> b",
        b"n" * 255,
    ]
    run = place.python(f"for name in {names!r}: open(name, 'w').write('x')")
    place.completed(run)
    assert place.changed(run) == dict.fromkeys(names, "added")


@pytest.mark.usefixtures("tidy")
def test_a_deep_tree_and_what_is_no_file_are_no_trouble(place: Place) -> None:
    run = place.python(
        "import os, socket\n"
        "os.mkfifo('fifo')\n"
        "server = socket.socket(socket.AF_UNIX); server.bind('socket')\n"
        "os.symlink('/etc/passwd', 'link'); os.symlink('loop', 'loop')\n"
        "open('beside', 'w').write('x')\n"
        "for _ in range(200): os.mkdir('d'); os.chdir('d')\n"
        "open('bottom', 'w').write('x')\n"
    )
    shown = place.ended(run)
    assert shown["status"] == "completed"
    changed = place.changed(run)
    assert changed[b"beside"] == "added"
    assert changed[b"link"] == "added"
    assert changed[b"d/" * 200 + b"bottom"] == "added"
    assert "root:x:0" not in place.changes(run)["diff"]


def test_programs_that_a_repository_names_are_not_run(place: Place) -> None:
    place.inside(
        f"""set -e; cd {REPOSITORY}; cp .git/config /tmp/config
        printf '#!/bin/sh\\ntouch /tmp/mark-$(basename $0)-$(id -u)\\ncat\\n' > /tmp/evil
        chmod 755 /tmp/evil
        for name in clean smudge process textconv fsmonitor diff hook pager; do
          cp -p /tmp/evil /tmp/evil-$name; done
        git config core.fsmonitor /tmp/evil-fsmonitor
        git config filter.evil.clean /tmp/evil-clean
        git config filter.evil.smudge /tmp/evil-smudge
        git config filter.evil.process /tmp/evil-process
        git config diff.evil.textconv /tmp/evil-textconv
        git config diff.external /tmp/evil-diff
        git config core.pager /tmp/evil-pager
        mkdir -p .git/evil .git/info
        cp -p /tmp/evil-hook .git/evil/post-index-change
        git config core.hooksPath .git/evil
        echo '* filter=evil diff=evil' > .git/info/attributes
        rm -f /tmp/mark-*; touch kept; git status"""
    )
    try:
        assert "mark-evil-fsmonitor" in place.inside("ls /tmp; rm -f /tmp/mark-*")
        run = place.shell("echo changed >> kept; echo new > fresh")
        shown = place.ended(run)
        assert shown["status"] == "completed"
        assert place.inside("ls /tmp | grep ^mark- || true", user="root") == ""
        assert place.changed(run) == {b"kept": "modified", b"fresh": "added"}
    finally:
        place.inside(
            f"cd {REPOSITORY} && cp /tmp/config .git/config && rm -rf .git/info/attributes"
            " .git/evil fresh && git checkout -q ."
        )


def test_a_repository_that_becomes_a_link_to_everything_is_not_followed(place: Place) -> None:
    try:
        run = place.shell(f"cd / && mv {REPOSITORY} /workspace/aside && ln -s / {REPOSITORY}")
        shown = place.ended(run)
        assert shown["status"] == "completed"
        assert place.changed(run) == {}
        files = place.loss(run)["coverage"]["files"]
        assert files["state"] == "limited"
        assert "link to elsewhere" in files["reason"]
    finally:
        place.inside(f"rm {REPOSITORY} && mv /workspace/aside {REPOSITORY}")


# ---------------------------------------------------------------- what is done to the record


def test_a_supervisor_killed_by_root_ends_the_run_and_its_program(place: Place) -> None:
    go = f"/tmp/go-{uuid.uuid4()}"
    waits = f"echo $$; until [ -e {go} ]; do sleep 0.05; done"
    run = place.shell(f"{waits}; sudo kill -9 $PPID; exec sleep 600")
    place.wait_output(run, b"\n")
    place.inside(f"touch {go}")
    shown = place.lost(run)
    assert shown["errorCode"] == "run-lost"
    assert place.loss(run)["earlyClose"]
    pid = place.output(run).decode().strip()
    assert place.inside(f"test -e /proc/{pid} || echo gone") == "gone"


DEEDS = {
    "deleted": f"rm -rf {SPOOL}",
    "segments-truncated": f"for f in {SPOOL}/*.seg; do : > $f; done",
    "all-truncated": f"for f in {SPOOL}/*; do : > $f; done",
    "segments-with-garbage": f"for f in {SPOOL}/*.seg; do head -c 5000 /dev/urandom >> $f; done",
    "all-with-garbage": f"for f in {SPOOL}/*; do head -c 5000 /dev/urandom >> $f; done",
}


@pytest.fixture(scope="module")
def spoiled(place: Place) -> dict[str, str]:
    """Runs whose spools are spoiled by root, all at the same time, by what is done to them."""
    return {
        name: place.run(
            "sudo",
            "--preserve-env=SVC_RUN_ID",
            "bash",
            "-c",
            f"echo before; sleep 0.5; {deed}; echo after; sleep 0.5",
        )
        for name, deed in DEEDS.items()
    }


@pytest.mark.parametrize("deed", DEEDS)
def test_a_spool_that_root_spoils_ends_the_run_and_is_declared(
    place: Place, spoiled: dict[str, str], deed: str
) -> None:
    place.lost(spoiled[deed])
    assert b"before\nafter\n".startswith(place.output(spoiled[deed]))
