"""The page of ``docs/users/streams.md`` in a real browser: typed in, cut off, and back again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runs.models import Run
from tests.docs.pages import ROOT, read_page
from tests.runs.attach.test_attach_served import end, given, kinds, opened, write
from tests.runs.streaming.test_live_stream import Relay, site
from tests.stack.api_process import api_process
from tests.stack.browser import browser
from tests.stack.worker_process import eventually

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = ROOT / "docs" / "users" / "streams.md"
AROUND = """(() => {
    window.shown = ""; window.exit = null; window.opened = 0;
    const runId = %s;
    const terminal = {
        write: (bytes) => { window.shown += new TextDecoder().decode(bytes); },
        onData: (listener) => { window.type = listener; },
        onResize: (listener) => { window.resize = listener; },
    };
    const done = (code) => { window.exit = code; };
    %s
    window.ready = () => socket.readyState === WebSocket.OPEN;
})()"""


def script(run: object, port: int) -> str:
    """Return the page's own script, with what it takes for granted, for a server at ``port``."""
    (shown,) = [
        "\n".join(each.lines)
        for each in read_page(PAGE).blocks
        if each.language == "js" and "WebSocket" in "".join(each.lines)
    ]
    assert "localhost:4000" in shown
    return AROUND % (json.dumps(str(run)), shown.replace("localhost:4000", f"127.0.0.1:{port}"))


def await_typed(run: Run, typed: str) -> None:
    """Wait until so much input is taken, and no other."""
    eventually(lambda: given(run) == typed.encode(), what="it is taken")


def test_a_page_of_a_trusted_origin_has_a_terminal_that_comes_back_by_itself(
    tmp_path: Path, transactional_db: None
) -> None:
    run, source, process = opened()
    with site() as elsewhere:
        trusted = {"SVC_WEB_TRUSTED_ORIGINS": elsewhere.rstrip("/")}
        with (
            api_process(tmp_path / "api.log", **trusted) as api,
            Relay(api.port) as relay,
            browser(tmp_path / "profile") as page,
        ):
            page.open(elsewhere)
            page.evaluate(script(run.pk, relay.port))
            expected = ""
            for number in range(6):
                page.wait_for("window.ready()")
                page.evaluate(f"window.type('{number}')")
                await_typed(run, "".join(map(str, range(number + 1))))
                expected += f"{number}\n"
                write(source, process, f"{number}\n".encode())
                page.wait_for(f"window.shown === {json.dumps(expected)}")
                if number % 2:
                    relay.drop()
                    page.wait_for("!window.ready()")
            page.wait_for("window.ready()")
            page.evaluate("window.resize({cols: 100, rows: 30})")
            eventually(lambda: kinds(run)[-1] == "resize", what="the size is taken")
            end(source, process, code=5)
            page.wait_for("window.exit === 5")
            assert page.evaluate("window.shown") == expected


def test_a_page_of_another_origin_has_none(tmp_path: Path, transactional_db: None) -> None:
    run, _, _ = opened()
    with (
        site() as elsewhere,
        api_process(tmp_path / "api.log") as api,
        browser(tmp_path / "profile") as page,
    ):
        page.open(elsewhere)
        page.evaluate(
            "window.code = null; window.opened = false;"
            f"const it = new WebSocket('ws://127.0.0.1:{api.port}/v1/runs/{run.pk}/attach');"
            "it.onopen = () => { window.opened = true; };"
            "it.onclose = ({code}) => { window.code = code; }; null"
        )
        page.wait_for("window.code !== null")
        assert page.evaluate("[window.opened, window.code]") == [False, 1006]
        assert '"event": "origin_refused"' in api.told
