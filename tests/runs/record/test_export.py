"""Exports: terminal recordings, plain text, and the whole record line by line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runs.agent.record.frames import Kind, Stream
from runs.models import Run, RunHead
from tests.conftest import Api
from tests.runs.record_factory import Source, make_run, record

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    return make_run(mode=Run.Mode.INTERACTIVE)


@pytest.fixture
def source(run: Run) -> Source:
    source = Source(run)
    source.open()
    source.started()
    return source


def export(api: Api, run: Run, query: str) -> bytes:
    return api.get(f"/v1/runs/{run.pk}/export?{query}").content


def cast(api: Api, run: Run, query: str = "") -> tuple[dict[str, Any], list[list[Any]]]:
    lines = export(api, run, f"format=asciicast{query}").decode().splitlines()
    header, *events = [json.loads(line) for line in lines]
    return header, events


def text(api: Api, run: Run, query: str = "") -> str:
    return export(api, run, f"format=text{query}").decode()


def test_a_run_without_output_is_a_header_only(api: Api, run: Run) -> None:
    header, events = cast(api, run)
    assert (header["version"], header["term"]) == (3, {"cols": 100, "rows": 24})
    assert events == []
    assert text(api, run) == ""


def test_what_a_terminal_showed_is_given_as_it_was(api: Api, run: Run, source: Source) -> None:
    process = source.process(["bash", "-l"], streams=["pty", "ptyInput"])
    source.event(Kind.TERMINAL_RESIZED, {"columns": 80, "rows": 24}, process=process)
    for body in ("é".encode()[:1], "é".encode()[1:] + b"\x1b[1m", b"\n\xff"):
        source.output(process, body, stream=Stream.PTY_OUTPUT)
    source.output(process, b"ls\r", stream=Stream.PTY_INPUT)
    source.event(Kind.TERMINAL_RESIZED, {"columns": 120, "rows": 40}, process=process)
    source.append()

    header, events = cast(api, run)

    assert header["term"] == {"cols": 80, "rows": 24}
    assert header["title"] == "shell bash -l"
    assert events == [
        [0.004, "o", "é\x1b[1m"],
        [0.001, "o", "\n\ufffd"],
        [0.002, "r", "120x40"],
    ]
    _, events = cast(api, run, "&input=true")
    assert [event[1:] for event in events][2] == ["i", "ls\r"]


def test_version_2_of_a_recording_has_times_since_the_start(
    api: Api, run: Run, source: Source
) -> None:
    process = source.process(["bash"], streams=["pty"])
    source.event(Kind.TERMINAL_RESIZED, {"columns": 80, "rows": 24}, process=process)
    for body in (b"a", b"b"):
        source.output(process, body, stream=Stream.PTY_OUTPUT)
    source.exited(process, code=5)
    source.append()
    header, events = cast(api, run, "&version=2")
    assert header == {"version": 2, "width": 80, "height": 24, "title": "shell bash"}
    assert events == [[0.003, "o", "a"], [0.004, "o", "b"]]


def test_times_between_lines_add_up_to_the_time_since_the_start(
    api: Api, run: Run, source: Source
) -> None:
    process = source.process()
    for number in range(1, 1001):  # a third of a microsecond later each: alone it would be nothing
        source.event(
            Kind.IO_CHUNK,
            process=process,
            stream=Stream.STDOUT,
            offset=number - 1,
            body=b"x",
            monotonic_ns=2_000_000 + number * 333,
        )
    source.append()
    _, events = cast(api, run)
    _, since_start = cast(api, run, "&version=2")
    assert sum(round(event[0] * 1_000_000) for event in events) == 1_333
    assert since_start[-1][0] == 0.001333


@pytest.mark.parametrize(
    ("ended", "shown"),
    [
        ({"code": 0}, "0"),
        ({"code": 5}, "5"),
        ({"code": None, "signal": "SIGKILL"}, "137"),
        ({"code": None, "signal": "\x1b[2J"}, None),
        ({"code": "x"}, None),
    ],
)
def test_a_recording_ends_with_the_exit_code(
    api: Api, run: Run, source: Source, ended: dict[str, Any], shown: str | None
) -> None:
    process = source.process()
    source.exited(process, **ended)
    source.output(process, b"written by a child that lives on")
    source.append()
    _, events = cast(api, run)
    exits = [] if shown is None else [[0, "x", shown]]
    assert events[1:] == exits
    assert len(events) == 1 + len(exits)


def test_several_processes_have_no_exit_code(api: Api, run: Run, source: Source) -> None:
    for process in (source.process(), source.process()):
        source.exited(process)
    source.append()
    assert cast(api, run)[1] == []


def test_each_line_of_a_recording_is_one_line_whatever_was_printed(
    api: Api, run: Run, source: Source
) -> None:
    printed = 'a\x85b\u2028c\x0b\x0c\x1b]0;\x07\x00\x7f"\\'
    source.output(source.process(), printed.encode() + b"\xff\xed\xa0\x80")
    source.append()
    _, line, rest = export(api, run, "format=asciicast").split(b"\n")
    assert json.loads(line)[2] == printed + "\ufffd" * 4
    assert rest == b""


def test_output_of_pipes_is_merged_as_a_terminal_would_show_it(
    api: Api, run: Run, source: Source
) -> None:
    process = source.process()
    source.output(process, b"out\n")
    source.output(process, b"err\r\n", stream=Stream.STDERR)
    source.output(process, b"in", stream=Stream.STDIN)
    source.append()
    header, events = cast(api, run)
    assert header["term"] == {"cols": 100, "rows": 24}
    assert [event[1:] for event in events] == [["o", "out\r\n"], ["o", "err\r\n"]]


def test_all_leaders_are_given_or_the_process_that_is_named(
    api: Api, run: Run, source: Source
) -> None:
    first, second = source.process(), source.process()
    child = source.process(leader=False)
    for process in (first, second, child):
        source.output(process, f"{process}".encode())
    source.append()
    assert text(api, run) == "12"
    assert text(api, run, "&processId=3") == "3"
    answer = api.get(f"/v1/runs/{run.pk}/export?format=text&processId=4", expect=400)
    assert answer.codes == {"processId": "unknown-process"}


def test_a_recording_is_of_the_only_terminal(api: Api, run: Run, source: Source) -> None:
    copied = source.process(["sftp-server"])
    source.output(copied, b"\0\1files")
    shell = source.process(["bash", "-l"], streams=["pty"])
    source.output(shell, b"$ ", stream=Stream.PTY_OUTPUT)
    source.append()

    header, events = cast(api, run)

    assert header["title"] == "shell bash -l"
    assert [event[1:] for event in events] == [["o", "$ "]]
    assert "$ " in text(api, run)
    assert "files" in text(api, run)
    assert [event[2] for event in cast(api, run, f"&processId={copied}")[1]] == ["\0\1files"]


def test_which_terminal_is_recorded_has_to_be_said_where_there_are_several(
    api: Api, run: Run, source: Source
) -> None:
    shells = [source.process(["bash", str(number)], streams=["pty"]) for number in range(60)]
    for shell in shells:
        source.event(Kind.TERMINAL_RESIZED, {"columns": 80 + shell, "rows": 9}, process=shell)
        source.output(shell, b"shell %d\n" % shell, stream=Stream.PTY_OUTPUT)
    source.append()

    answer = api.get(f"/v1/runs/{run.pk}/export?format=asciicast", expect=400)

    assert answer.codes == {"processId": "required"}
    detail = answer.body["errors"][0]["detail"]
    assert detail.startswith("The run has several terminals; choose one: 1, 2, 3,")
    assert detail.endswith(", 50 and 10 more.")
    header, events = cast(api, run, "&processId=7")
    assert header["term"]["cols"] == 87
    assert [event[1:] for event in events] == [["o", "shell 7\n"]]
    assert text(api, run).splitlines() == [f"shell {shell}" for shell in shells]
    assert len(export(api, run, "format=ndjson").splitlines()) == 1 + 1 + 3 * 60 + 1


def test_missing_output_is_marked(api: Api, run: Run, source: Source) -> None:
    process = source.process()
    source.output(process, "aé".encode()[:2])
    source.output(process, b"b", offset=10)
    source.closed(process)
    source.append()
    _, events = cast(api, run)
    assert [event[1:] for event in events] == [
        ["o", "a"],
        ["o", "\ufffd"],
        ["m", "8 bytes of stdout are missing"],
        ["o", "b"],
    ]
    assert text(api, run) == "a\ufffd\n[8 bytes of stdout are missing]\nb"


def test_times_never_go_back(api: Api, run: Run, source: Source) -> None:
    process = source.process()
    for nanoseconds in (9_000_000_000, 5_000_000_000, 10_000_000_000):
        source.event(
            Kind.IO_CHUNK,
            process=process,
            stream=Stream.STDOUT,
            body=b"x",
            monotonic_ns=nanoseconds,
        )
    source.append()
    _, events = cast(api, run, "&version=2")
    times = [event[0] for event in events]
    assert times == sorted(times)
    assert min(event[0] for event in cast(api, run)[1]) >= 0


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["\x1b[31mred\x1b[0m"], "red"),
        (["\x1b", "[3", "1mred"], "red"),
        (["\x1b]0;title\x07a", "\x1b]8;;http://x\x1b\\b"], "ab"),
        (["a\r", "\nb\r\n"], "a\nb\n"),
        (["10%\r20%\r"], "10%\r20%\r"),
        (["a\x08\x07b\x00\x7f"], "ab"),
        (["\x1b(Ba\x1b=b\x1bMc"], "abc"),
        (["\x1b]0;" + "x" * 9000], "]0;" + "x" * 9000),
        (["end\x1b["], "end["),
    ],
)
def test_text_has_no_escape_sequences(
    api: Api, run: Run, source: Source, pieces: list[str], shown: str
) -> None:
    process = source.process()
    for piece in pieces:
        source.output(process, piece.encode())
    source.append()
    assert text(api, run) == shown


def test_the_record_is_exported_line_by_line(api: Api) -> None:
    run = make_run()
    record(run, [b"\xff\0"] * 200)
    lines = [json.loads(line) for line in export(api, run, "format=ndjson").splitlines()]
    kinds = [line["type"] for line in lines]
    assert kinds == ["record", *["event"] * 205, "seal"]
    assert [int(line["sequence"]) for line in lines[1:-1]] == list(range(1, 206))
    assert lines[0]["runId"] == str(run.pk)


def test_an_export_of_a_record_that_goes_on_ends_where_its_head_stood(
    api: Api, run: Run, source: Source
) -> None:
    source.append()
    lines = [json.loads(line) for line in export(api, run, "format=ndjson").splitlines()]
    assert [line["type"] for line in lines] == ["record", "event", "open"]
    head = RunHead.objects.get(pk=run.number)
    assert lines[-1]["chainHead"] == bytes(head.chain_head).hex()


def test_each_format_has_its_type(api: Api, run: Run) -> None:
    for name, media in {
        "asciicast": "application/x-asciicast",
        "text": "text/plain; charset=utf-8",
        "ndjson": "application/x-ndjson",
        "in-toto": "application/vnd.dsse.envelope.v1+json",
        "ocsf": "application/x-ndjson",
        "otlp": "application/json",
    }.items():
        answer = api.get(f"/v1/runs/{run.pk}/export?format={name}")
        assert answer.headers["content-type"] == media


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("", "format"),
        ("format=mp4", "format"),
        ("format=text&processId=x", "processId"),
        ("format=asciicast&input=perhaps", "input"),
        ("format=asciicast&version=1", "version"),
        ("format=text&limit=1", "limit"),
    ],
)
def test_a_wrong_parameter_is_named(api: Api, run: Run, query: str, parameter: str) -> None:
    assert set(api.get(f"/v1/runs/{run.pk}/export?{query}", expect=400).codes) == {parameter}


@pytest.mark.parametrize("size", [{"columns": 0, "rows": 5}, {"columns": "x"}, {}, [], 5])
def test_a_forged_size_is_passed_over(api: Api, run: Run, source: Source, size: object) -> None:
    process = source.process()
    source.event(Kind.TERMINAL_RESIZED, size, process=process)
    source.event(Kind.TERMINAL_RESIZED, {"columns": 10**12, "rows": 5}, process=process)
    source.append()
    header, events = cast(api, run)
    assert events == []
    assert header["term"]["rows"] in {5, 24}
