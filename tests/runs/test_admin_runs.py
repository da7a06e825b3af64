"""The admin of runs: the list, cancelling, and the page that shows a record and replays it."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse
from pytest_django.fixtures import Settings
from pytest_django.live_server_helper import LiveServer

from runs.agent.record.frames import Kind, Method, Stream
from runs.models import Run
from tests.runs.executable import claim, make_executable, make_run_worker
from tests.runs.record_factory import Source, make_run, record
from tests.stack.browser import Page, browser

TERMINAL = [
    b"\x1b[2J\x1b[H\x1b[1;32m$\x1b[0m make test\r\n",
    b"collected 3 items\r\n",
    b"\x1b[31mFAILED\x1b[0m one \xe2\x9c\x97\r\n",
]


@pytest.fixture
def staff() -> Client:
    """A signed-in operator."""
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    return client


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A tab of a browser of the test's own."""
    with browser(tmp_path / "profile") as tab:
        yield tab


def sign_in(page: Page, live_server: LiveServer) -> None:
    """Have the browser signed in as an operator."""
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    session = client.cookies[django_settings.SESSION_COOKIE_NAME].value
    page.set_cookie(django_settings.SESSION_COOKIE_NAME, session, live_server.url)


def record_url(run: Run) -> str:
    return reverse("admin:runs_run_change", args=[run.pk])


def record_terminal(run: Run) -> Source:
    """Store the record of a session at a terminal, one changed file and one hole included."""
    source = Source(run)
    source.open()
    source.started()
    process = source.process(["bash", "-l"], streams=["pty"])
    size = {"columns": 60, "rows": 12}
    source.event(Kind.TERMINAL_RESIZED, size, process=process, method=Method.PTY)
    for body in TERMINAL:
        source.output(process, body, stream=Stream.PTY_OUTPUT)
    lost = {"toOffset": 5000, "bytes": 4900, "reason": "spool-full"}
    offset = sum(map(len, TERMINAL))
    source.event(
        Kind.TELEMETRY_DROPPED,
        lost | {"toOffset": offset + 4900},
        process=process,
        stream=Stream.PTY_OUTPUT,
        offset=offset,
    )
    source.exited(process)
    changed = {
        "position": 1,
        "root": "/workspace",
        "path": "src/<b>a</b>.py",
        "change": "modified",
        "binary": False,
        "addedLines": 1,
        "removedLines": 1,
        "patchTruncated": False,
    }
    patch = b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+<script>new</script>\n"
    source.event(Kind.FILE_DIFF_ENTRY, changed, body=patch, method=Method.SNAPSHOT)
    source.sealed()
    source.append()
    return source


@pytest.mark.django_db
def test_a_run_is_found_by_its_id_and_links_to_its_record(staff: Client) -> None:
    run = make_run()
    make_run()
    answer = staff.get(reverse("admin:runs_run_changelist"), {"q": str(run.pk)})
    text = answer.content.decode()
    assert text.count(f'<a href="{record_url(run)}') == 1
    assert text.count('class="short-id"') == 1


@pytest.mark.django_db
def test_the_record_of_an_unknown_run_is_not_found(staff: Client) -> None:
    for unknown in (str(uuid.uuid4()), "x", "%00", "a/b"):
        path = reverse("admin:runs_run_changelist") + f"{unknown}/change/"
        assert staff.get(path).status_code == 404


@pytest.mark.django_db
def test_the_record_is_shown_only_to_who_may_see_runs() -> None:
    run = make_run()
    assert Client().get(record_url(run)).status_code == 302
    user = get_user_model().objects.create_user("bob", password="x", is_staff=True)
    client = Client()
    client.force_login(user)
    assert client.get(record_url(run)).status_code == 404
    user.user_permissions.add(Permission.objects.get(codename="view_run"))
    assert client.get(record_url(run)).status_code == 200


@pytest.mark.django_db
def test_only_the_page_with_the_player_may_run_compiled_code(staff: Client) -> None:
    run = make_run()
    record_page = staff.get(record_url(run)).headers["content-security-policy"]
    assert "script-src 'self' 'wasm-unsafe-eval';" in record_page
    runs = staff.get(reverse("admin:runs_run_changelist")).headers["content-security-policy"]
    assert "script-src 'self';" in runs


@pytest.mark.django_db
def test_cancelling_in_the_admin_ends_a_queued_run_and_asks_a_running_one(staff: Client) -> None:
    queued = make_run(status=Run.Status.QUEUED)
    running = make_run(status=Run.Status.RUNNING)
    over = make_run()
    record(over)
    staff.post(
        reverse("admin:runs_run_changelist"),
        {"action": "cancel", "_selected_action": [str(run.pk) for run in (queued, running, over)]},
    )
    for run in (queued, running, over):
        run.refresh_from_db()
    assert queued.status == Run.Status.CANCELLED
    assert running.status == Run.Status.RUNNING
    assert running.cancel_requested_at is not None
    assert over.status == Run.Status.COMPLETED
    assert over.cancel_requested_at is None


ORIGIN = {
    "address": "203.0.113.7",
    "port": 50123,
    "client": "SSH-2.0-OpenSSH_9.9",
    "user": "usr_ada",
    "key": "SHA256:<abc>",
}


def record_session(run: Run) -> Source:
    """Store the record of a connection: two shells, and a copy between them."""
    source = Source(run)
    source.open()
    source.started(origin=ORIGIN)
    for number, kind in enumerate(["shell", "subsystem", "shell"], 1):
        terminal = kind == "shell"
        streams = ["pty"] if terminal else ["stdout", "stderr"]
        argv = ["bash", "-l"] if terminal else ["sftp-server", "<b>x</b>"]
        process = source.process(argv, streams=streams, channel=number + 4, kind=kind)
        if terminal:
            size = {"columns": 60, "rows": 12}
            source.event(Kind.TERMINAL_RESIZED, size, process=process, method=Method.PTY)
        stream = Stream.PTY_OUTPUT if terminal else Stream.STDOUT
        source.output(process, b"output of %d\r\n" % process, stream=stream)
        source.exited(process, code=number)
    source.sealed(code=3)
    source.append()
    return source


@pytest.mark.django_db
def test_the_page_of_a_session_says_who_connected_and_what_was_started(staff: Client) -> None:
    run = make_run(mode=Run.Mode.INTERACTIVE)
    record_session(run)

    text = staff.get(record_url(run)).content.decode()

    assert (
        "usr_ada from 203.0.113.7 port 50123 with SSH-2.0-OpenSSH_9.9, key SHA256:&lt;abc&gt;"
    ) in text
    assert "sftp-server &lt;b&gt;x&lt;/b&gt;" in text
    for told in ("exited with code 2", "subsystem", "<td>6</td>"):
        assert told in text
    shown = re.findall(r'class="(terminal|output)" data-process="(\d)"', text)
    assert shown == [("terminal", "1"), ("output", "2"), ("terminal", "3")]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "forged",
    [
        {"origin": [], "channel": [], "kind": 5},
        {"origin": {"user": {"text": []}, "port": "\x1b[2J"}, "channel": {"a": 1}, "kind": "\n"},
        {"origin": {"key": "x" * 5000}, "channel": "x" * 5000, "kind": {"text": 7}},
    ],
)
def test_the_page_of_a_session_whose_record_is_forged_is_shown(
    staff: Client, forged: dict[str, object]
) -> None:
    run = make_run(mode=Run.Mode.INTERACTIVE)
    source = Source(run)
    source.open()
    source.event(Kind.RECORD_STARTED, forged)
    told = {"leader": True, "argv": 7, "streams": "pty"}
    source.event(Kind.PROCESS_STARTED, forged | told, process=1, wall_us=2**63 - 1)
    source.append()

    answer = staff.get(record_url(run))

    assert answer.status_code == 200
    assert b"\x1b" not in answer.content
    assert len(answer.content) < 50_000


@pytest.mark.django_db
def test_of_very_many_processes_the_first_are_shown(staff: Client) -> None:
    run = make_run(mode=Run.Mode.INTERACTIVE)
    source = Source(run)
    source.open()
    for _ in range(205):
        source.process(streams=["pty"])
    source.append()

    assert "And 5 more" in staff.get(record_url(run)).content.decode()


@pytest.mark.django_db
def test_the_list_shows_which_worker_records_a_run(staff: Client) -> None:
    make_run_worker("worker-a")
    claim(make_executable())
    for _ in range(2):
        claim(make_executable(mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING))
    make_executable(mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING)

    runs = staff.get(reverse("admin:runs_run_changelist")).content.decode()

    assert runs.count('<td class="field-recorder">worker-a</td>') == 3
    assert runs.count('<td class="field-recorder">none yet</td>') == 1


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_browser_replays_each_terminal_of_a_session(
    live_server: LiveServer, page: Page, settings: Settings
) -> None:
    settings.SVC_REQUIRE_OWNER = True
    run = make_run(mode=Run.Mode.INTERACTIVE)
    record_session(run)
    sign_in(page, live_server)

    page.open(live_server.url + record_url(run))
    page.wait_for("document.getElementById('record').dataset.replay === 'ready 1'")
    page.wait_for("document.querySelector('#replay').innerText.includes('output of 1')")
    page.evaluate("document.querySelector('button[data-process=\"3\"]').click()")
    page.wait_for("document.getElementById('record').dataset.replay === 'ready 3'")
    page.wait_for("document.querySelector('#replay').innerText.includes('output of 3')")

    shown = page.evaluate("document.querySelector('#replay').innerText")
    assert "output of 1" not in shown
    href = page.evaluate("document.getElementById('asciicast').href")
    assert href.endswith(f"/export?format=asciicast&processId=3&ownerUserId={run.owner_user_id}")
    assert page.console == []


@pytest.mark.django_db
def test_a_run_opens_with_its_record_and_has_its_fields_on_another_page(staff: Client) -> None:
    run = make_run()
    record(run)
    opened = staff.get(reverse("admin:runs_run_change", args=[run.pk])).content.decode()
    fields = reverse("admin:runs_run_fields", args=[run.pk])
    assert f'<a href="{fields}">Fields</a>' in opened
    assert 'id="replay"' in opened
    shown = staff.get(fields).content.decode()
    for column in ("claim_count", "time_limit_ms", "cancel_requested_at"):
        assert f"field-{column}" in shown
        assert f"field-{column}" not in opened


@pytest.mark.django_db
def test_operators_read_records_where_a_proxy_names_owners(
    staff: Client, settings: Settings
) -> None:
    settings.SVC_TRUSTED_OWNER_HEADER = "X-Forwarded-User"
    settings.SVC_TRUSTED_PROXIES = ["192.0.2.0/24"]
    run = make_run()
    record(run)
    below = reverse("admin:runs_run_api", args=[run.pk, "timeline"])
    timeline = staff.get(f"{below}?ownerUserId={run.owner_user_id}")
    assert timeline.status_code == 200
    assert timeline.json()["items"][0]["kind"] == "recordStarted"
    assert staff.get(f"{below}?ownerUserId=usr_stranger").status_code == 404
    assert staff.post(below).status_code == 405
    nowhere = reverse("admin:runs_run_api", args=[run.pk, "nowhere"])
    assert staff.get(nowhere).status_code == 404
    assert Client().get(below).status_code == 302
    visitor = Client()
    visitor.force_login(get_user_model().objects.create_user("bob", password="x", is_staff=True))
    assert visitor.get(below).status_code == 404
    assert staff.get(f"/v1/runs/{run.pk}/timeline").status_code == 401


@pytest.mark.django_db
@pytest.mark.parametrize(
    "rest", ["attach", "events/1", "input", "timeline/", "../timeline", f"../{uuid.UUID(int=0)}"]
)
def test_who_may_only_view_runs_reaches_no_more_than_the_page_reads(rest: str) -> None:
    run = make_run()
    record(run)
    viewer = Client()
    user = get_user_model().objects.create_user("vera", password="x", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_run"))
    viewer.force_login(user)
    page = reverse("admin:runs_run_api", args=[run.pk, "-"]).removesuffix("-")
    owner = f"?ownerUserId={run.owner_user_id}"
    assert viewer.get(f"{page}{rest}{owner}").status_code == 404
    for read in ("timeline", "stream", "scrollback", "loss", "changes", "export"):
        more = {"scrollback": "&stream=stdout", "export": "&format=ndjson"}.get(read, "")
        assert viewer.get(f"{page}{read}{owner}{more}").status_code == 200


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"prompt": "Mend the\ntest"}, "Mend the"),
        ({"command": {"executable": "make", "args": ["-C", "<src>"]}}, "make -C &lt;src&gt;"),
        ({"prompt": "x" * 5000}, "x" * 60),
        ({"command": None}, "shell"),
    ],
)
def test_the_list_says_what_a_run_does(
    staff: Client, values: dict[str, object], shown: str
) -> None:
    run = make_run()
    Run.objects.filter(pk=run.pk).update(harness_id="shell", **values)
    listed = staff.get(reverse("admin:runs_run_changelist")).content.decode()
    [cell] = re.findall(r'<td class="field-what">(.*?)</td>', listed)
    assert cell.startswith(shown)
    assert len(cell) < 100


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_browser_shows_what_a_process_wrote_in_pieces(
    live_server: LiveServer, page: Page, tmp_path: Path
) -> None:
    run = make_run(status=Run.Status.RUNNING)
    source = Source(run)
    source.open()
    source.started()
    process = source.process(["make"], streams=["stdout", "stderr"])
    line = "\x1b[32mgr\u00fcn\x1b[0m <b>\r\n".encode()
    for _ in range(10):
        source.output(process, line * 3000, stream=Stream.STDOUT)
    source.output(process, b"warned\n", stream=Stream.STDERR)
    source.exited(process)
    source.append()
    sign_in(page, live_server)
    page.open(live_server.url + record_url(run), width=1280)
    page.wait_for("document.getElementById('record').dataset.output === '1 stdout'")
    written = "document.getElementById('output-text').textContent"
    assert page.evaluate(f"{written}.startsWith('gr\\u00fcn <b>\\ngr')")
    for read in (256 * 1024, 512 * 1024):
        note = "document.getElementById('output-note').textContent"
        page.wait_for(f"{note} === 'process 1, {read} bytes'")
        page.evaluate("document.getElementById('more-output').click()")
    page.wait_for("document.getElementById('more-output').hidden")
    assert page.evaluate(f"{written}.split('\\n').length") == 30_001
    assert page.evaluate(f"{written}.replaceAll('gr\\u00fcn <b>\\n', '')") == ""
    page.evaluate("document.querySelector('button[data-stream=stderr]').click()")
    page.wait_for(f"{written} === 'warned\\n'")
    assert json.loads(page.evaluate("JSON.stringify(document.documentElement.scrollWidth)")) <= 1280
    assert page.console == []


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_page_that_is_open_follows_the_run_to_its_end(
    live_server: LiveServer, page: Page, tmp_path: Path
) -> None:
    run = make_run(mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING)
    source = Source(run)
    source.open()
    source.started()
    source.append()
    sign_in(page, live_server)
    page.open(live_server.url + record_url(run), width=1280)
    page.wait_for("document.getElementById('record').dataset.followed === 'yes'")

    process = source.process(["bash"], streams=["pty"])
    size = {"columns": 60, "rows": 12}
    source.event(Kind.TERMINAL_RESIZED, size, process=process, method=Method.PTY)
    source.output(process, b"$ make\r\n", stream=Stream.PTY_OUTPUT)
    source.append()
    page.wait_for("document.querySelector('#replay').innerText.includes('$ make')")
    page.wait_for("document.querySelectorAll('#processes tbody tr').length === 1")
    assert page.evaluate("document.querySelectorAll('#replay .ap-line').length") == 12

    source.output(process, b"done\r\n", stream=Stream.PTY_OUTPUT)
    other = source.process(["tee"], streams=["stdout", "stderr"])
    source.output(other, b"copied\n", stream=Stream.STDOUT)
    source.append()
    page.wait_for("document.querySelector('#replay').innerText.includes('done')")
    page.wait_for("document.getElementById('output-text').textContent === 'copied\\n'")

    source.output(other, b"closed\n", stream=Stream.STDOUT)
    source.exited(other)
    source.exited(process)
    source.sealed()
    source.append()
    page.wait_for("document.getElementById('record').dataset.followed === 'ended'")
    assert page.evaluate("document.getElementById('output-text').textContent") == "copied\nclosed\n"
    assert page.evaluate("document.getElementById('status').textContent") == "completed"
    kinds = page.evaluate(
        "[...document.querySelectorAll('#timeline tbody tr')].map(r => r.cells[0].textContent)"
    )
    assert kinds == [str(number) for number in range(1, len(kinds) + 1)]
    page.wait_for("document.getElementById('record').dataset.replay === 'ready 1'")
    assert page.console == []


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("rows", [12, 50])
def test_a_browser_shows_every_row_of_a_terminal(
    live_server: LiveServer, page: Page, tmp_path: Path, rows: int
) -> None:
    run = make_run(mode=Run.Mode.INTERACTIVE)
    source = Source(run)
    source.open()
    source.started()
    process = source.process(["htop"], streams=["pty"])
    source.event(
        Kind.TERMINAL_RESIZED, {"columns": 100, "rows": rows}, process=process, method=Method.PTY
    )
    drawn = "".join(f"\x1b[{row};1Hrow {row} of {rows}" for row in range(1, rows + 1))
    source.output(process, drawn.encode(), stream=Stream.PTY_OUTPUT)
    source.exited(process)
    source.sealed()
    source.append()
    sign_in(page, live_server)
    page.open(live_server.url + record_url(run), width=1280)
    page.wait_for("document.getElementById('record').dataset.replay === 'ready 1'")
    page.wait_for(f"document.querySelector('#replay').innerText.includes('row {rows} of {rows}')")
    page.screenshot(tmp_path / "rows.png")
    # Each row has its height, and all are within the frame.
    frame, lines = json.loads(
        page.evaluate(
            "JSON.stringify(['.ap-player', '.ap-line'].map(name =>"
            " [...document.querySelectorAll('#replay ' + name)].map(each => {"
            " const box = each.getBoundingClientRect(); return [box.top, box.bottom]; })))"
        )
    )
    assert len(lines) == rows
    steps = [below[0] - above[0] for above, below in pairwise(lines)]
    assert min(steps) > 10
    assert max(steps) - min(steps) < 1
    assert frame[0][0] <= lines[0][0]
    assert lines[-1][1] <= frame[0][1]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_browser_shows_timeline_loss_changes_and_the_replay(
    live_server: LiveServer, page: Page, tmp_path: Path
) -> None:
    run = make_run(mode=Run.Mode.INTERACTIVE)
    record_terminal(run)
    sign_in(page, live_server)

    page.open(live_server.url + record_url(run))
    page.wait_for("document.getElementById('record').dataset.replay === 'ready 1'")
    page.wait_for("document.querySelectorAll('#timeline tbody tr').length === 10")
    page.wait_for("document.querySelector('#changes pre') !== null")
    page.wait_for("document.getElementById('complete').textContent === 'no'")

    # The poster is the last picture of the recording, drawn by the player itself.
    page.wait_for("document.querySelector('#replay').innerText.includes('FAILED')")
    kinds = page.evaluate(
        "[...document.querySelectorAll('#timeline tbody tr')].map(r => r.cells[2].textContent)"
    )
    assert kinds[0] == "recordStarted"
    assert kinds[-1] == "recordSealed"
    assert "telemetryDropped" in kinds
    assert "spool-full" in page.evaluate("document.getElementById('loss').innerText")
    changes = page.evaluate("document.getElementById('changes').innerText")
    assert "src/<b>a</b>.py" in changes
    assert "<script>new</script>" in changes
    assert page.console == []
    page.screenshot(tmp_path / "record.png")
    assert (tmp_path / "record.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_narrow_window_shows_what_happened_in_whole_words(
    live_server: LiveServer, page: Page, tmp_path: Path
) -> None:
    run = make_run(mode=Run.Mode.INTERACTIVE)
    record_terminal(run)
    sign_in(page, live_server)
    page.open(live_server.url + record_url(run), width=400)
    page.wait_for("document.querySelectorAll('#timeline tbody tr').length === 10")
    page.screenshot(tmp_path / "narrow.png")
    first = "document.querySelector('#timeline tbody tr')"
    # Its text is two lines at most; a column as narrow as a word would have twelve.
    assert page.evaluate(f"{first}.offsetHeight") < 60
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
