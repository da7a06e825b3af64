"""Records as OCSF events, each held against the published schema of its class."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from ocsf_json_schema import OcsfJsonSchemaEmbedded, get_ocsf_schema

from runs.agent.record.frames import Kind
from runs.models import Run
from runs.record.egress_decisions import EgressDecisions
from tests.conftest import Api
from tests.runs.record_factory import START_US, Source, make_run, record
from tests.workspaces.egress.decided.decided_rows import decision, with_policy
from workspaces.egress.decided.keeping import Pass
from workspaces.egress.decided.sums import Line, line_of
from workspaces.egress.decisions import Summed

pytestmark = pytest.mark.django_db

HOSTILE = 'a\u2028"\\\n\x1b[2J\x00,{}é'
NO_UTF_8 = {"text": "\ufffd", "base64": "/w=="}
VALIDATORS: dict[tuple[int, tuple[str, ...]], Any] = {}


@pytest.fixture(scope="module")
def schema() -> OcsfJsonSchemaEmbedded:
    return OcsfJsonSchemaEmbedded(get_ocsf_schema(version="1.8.0"))


@pytest.fixture
def run() -> Run:
    return make_run(mode=Run.Mode.INTERACTIVE)


@pytest.fixture
def source(run: Run) -> Source:
    source = Source(run)
    source.open()
    return source


def validator(schema: OcsfJsonSchemaEmbedded, class_uid: int, profiles: tuple[str, ...]) -> Any:
    """Return the validator of a class; making one takes longer than using it a hundred times."""
    made = VALIDATORS.get((class_uid, profiles))
    if made is None:
        name = schema.lookup_class_name_from_uid(class_uid)
        published = schema.get_class_schema(name, list(profiles))
        kind = jsonschema.validators.validator_for(published)
        kind.check_schema(published)
        made = VALIDATORS[class_uid, profiles] = kind(published)
    return made


def told(api: Api, run: Run, schema: OcsfJsonSchemaEmbedded) -> list[dict[str, Any]]:
    """Return the events of a run; each is sound by the schema of its class."""
    content = api.get(f"/v1/runs/{run.pk}/export?format=ocsf").content
    shown = [json.loads(line) for line in content.decode().splitlines()]
    for event in shown:
        profiles = tuple(event["metadata"]["profiles"])
        validator(schema, event["class_uid"], profiles).validate(event)
        assert event["type_uid"] == event["class_uid"] * 100 + event["activity_id"]
        assert event["metadata"]["correlation_uid"] == str(run.pk)
    return shown


def types(events: list[dict[str, Any]]) -> list[int]:
    return [event["type_uid"] for event in events]


def test_processes_are_launched_and_terminated(
    api: Api, run: Run, source: Source, schema: OcsfJsonSchemaEmbedded
) -> None:
    parent = source.process(["/bin/sh", "-c", "a b"])
    child = source.process(["cat"], leader=False, parent=parent)
    source.output(child, b"not an event")
    source.exited(child, code=None, signal="SIGKILL", reason="signaled")
    source.exited(parent, code=3)
    source.append()

    first, second, killed, ended = told(api, run, schema)

    assert types([first, second, killed, ended]) == [100701, 100701, 100702, 100702]
    assert first["process"]["cmd_line"] == "/bin/sh -c 'a b'"
    assert (first["process"]["name"], first["process"]["pid"]) == ("sh", 101)
    assert second["actor"]["process"]["uid"] == first["process"]["uid"]
    assert second["process"]["parent_process"]["uid"] == first["process"]["uid"]
    assert first["time"] == START_US // 1000 + 1
    assert (killed["exit_code"], ended["exit_code"]) == (137, 3)
    assert ended["process"] == first["process"]
    assert ended["duration"] == 1


def test_a_process_that_could_not_be_started_is_a_failure(
    api: Api, run: Run, source: Source, schema: OcsfJsonSchemaEmbedded
) -> None:
    source.process(["nothing"], startFailed="no such file")
    source.append()
    (event,) = told(api, run, schema)
    assert (event["status_id"], event["status_detail"]) == (2, "no such file")


@pytest.mark.parametrize(
    ("change", "activity"),
    [("added", 1), ("modified", 3), ("deleted", 4), ("metadataChanged", 6), ("new", 99)],
)
def test_changes_of_files_are_file_activity(
    api: Api, run: Run, source: Source, schema: OcsfJsonSchemaEmbedded, change: str, activity: int
) -> None:
    meta = {"change": change, "path": "d/a", "root": "/workspace", "type": "file", "size": 7}
    source.event(Kind.FILE_CHANGE, meta)
    source.append()
    (event,) = told(api, run, schema)
    assert (event["class_uid"], event["activity_id"]) == (1001, activity)
    assert event["file"] == {"name": "a", "path": "/workspace/d/a", "type_id": 1, "size": 7}


def test_a_rename_names_the_file_before_and_after(
    api: Api, run: Run, source: Source, schema: OcsfJsonSchemaEmbedded
) -> None:
    meta = {"change": "renamed", "path": "b", "oldPath": "a", "root": "/workspace", "position": 1}
    source.event(Kind.FILE_DIFF_ENTRY, meta)
    source.event(Kind.FILE_ACCESSED, {"action": "move", "path": "/a", "to": "/b", "by": "usr_x"})
    source.append()
    renamed, moved = told(api, run, schema)
    assert types([renamed, moved]) == [100105, 100105]
    assert (renamed["file"]["path"], renamed["file_result"]["path"]) == (
        "/workspace/a",
        "/workspace/b",
    )
    assert (moved["file"]["path"], moved["file_result"]["path"]) == ("/a", "/b")
    assert moved["actor"]["user"] == {"uid": "usr_x"}


def test_a_change_of_files_that_fails_is_a_failed_activity(
    api: Api, run: Run, source: Source, schema: OcsfJsonSchemaEmbedded
) -> None:
    access = {"action": "mkdir", "path": "/a", "by": "usr_x"}
    source.event(Kind.FILE_ACCESSED, access)
    source.event(Kind.FILE_ACCESSED, {**access, "failed": "file-exists"})
    source.append()
    begun, failed = told(api, run, schema)
    assert types([begun, failed]) == [100101, 100101]
    assert "status_id" not in begun
    assert (failed["status_id"], failed["status_detail"]) == (2, "file-exists")
    assert failed["message"] == "files: failed (file-exists): mkdir /a, by usr_x"


def test_connections_and_forwards_are_network_activity(
    api: Api, run: Run, source: Source, schema: OcsfJsonSchemaEmbedded
) -> None:
    process = source.process()
    seen = {"protocol": "tcp6", "peer": "2001:db8::1", "port": 443, "localPort": 50000}
    source.event(Kind.NETWORK_SOURCE_OBSERVED, seen | {"state": "open"}, process=process)
    source.event(Kind.NETWORK_SOURCE_OBSERVED, seen | {"state": "closed"}, process=process)
    where = {"channel": 1, "host": "localhost", "port": 8000, "by": "usr_x"}
    source.event(Kind.FORWARD_OPENED, where)
    source.event(Kind.FORWARD_CLOSED, where | {"sentBytes": 8, "receivedBytes": 6})
    source.append()
    launched, *events = told(api, run, schema)
    assert types(events) == [400101, 400102, 400101, 400102]
    assert events[0]["dst_endpoint"] == {"ip": "2001:db8::1", "port": 443}
    assert events[0]["connection_info"]["protocol_num"] == 6
    assert events[0]["actor"]["process"] == launched["process"]
    assert events[2]["dst_endpoint"]["hostname"] == "localhost"
    assert events[3]["traffic"] == {"bytes_out": 8, "bytes_in": 6}


def test_decisions_of_the_egress_proxy_are_network_activity(
    api: Api, schema: OcsfJsonSchemaEmbedded
) -> None:
    attempt, run = with_policy()
    lines = [
        line_of(decision(attempt.pk, sent=8, received=6, connections=2)),
        line_of(decision(attempt.pk, "b.test", allowed=False)),
        Line(None, False, Summed(7), START_US),
    ]
    assert EgressDecisions().store(Pass(attempt.pk, "journal", 1, lines), patient=True)
    allowed, refused, unnamed = [
        event for event in told(api, run, schema) if event["class_uid"] == 4001
    ]
    assert types([allowed, refused, unnamed]) == [400101, 400105, 400105]
    assert allowed["dst_endpoint"] == {"hostname": "a.test", "port": 443}
    assert allowed["traffic"] == {"bytes_out": 8, "bytes_in": 6}
    assert (allowed["count"], unnamed["count"]) == (2, 7)
    assert refused["status_detail"] == "No rule names it."
    shown = api.get(f"/v1/runs/{run.pk}/timeline?kinds=egressDecided").body["items"]
    assert [event["summary"] for event in shown] == [
        "egress allowed: tls a.test port 443, by rules/0",
        "egress refused: tls b.test port 443, by default",
        "egress refused: 7 more, too many to name each",
    ]


def test_an_ssh_session_is_a_logon_and_ssh_activity_until_its_end(
    api: Api, run: Run, source: Source, schema: OcsfJsonSchemaEmbedded
) -> None:
    origin = {"address": "192.0.2.7", "port": 40000, "client": "SSH-2.0-x", "user": "w"}
    source.started(origin=origin | {"key": "SHA256:abc"})
    source.sealed(exit=None)
    source.append()
    logon, opened, closed = told(api, run, schema)
    assert types([logon, opened, closed]) == [300201, 400701, 400702]
    assert logon["user"] == {"name": "w", "credential_uid": "SHA256:abc"}
    assert logon["src_endpoint"] == {"ip": "192.0.2.7", "port": 40000}
    assert opened["auth_type_id"] == 6


def test_a_command_is_no_session(api: Api, schema: OcsfJsonSchemaEmbedded) -> None:
    run = make_run()
    record(run)
    assert types(told(api, run, schema)) == [100701, 100702]


def test_what_the_record_lacks_is_told_at_the_end(
    api: Api, run: Run, source: Source, schema: OcsfJsonSchemaEmbedded
) -> None:
    source.event(Kind.TELEMETRY_DROPPED, {"what": "files", "count": 3, "reason": "full"})
    source.process()
    source.append()
    launched, lost = told(api, run, schema)
    assert types([launched, lost]) == [100701, 99]
    assert (lost["message"], lost["count"]) == ("files: full", 3)


@pytest.mark.parametrize(
    "value", [HOSTILE, NO_UTF_8, "\ud800", None, [], {}, -1, 2**70, True, "x" * 100_000]
)
def test_whatever_a_workspace_tells_each_line_is_one_event_of_the_schema(
    api: Api, run: Run, source: Source, schema: OcsfJsonSchemaEmbedded, value: Any
) -> None:
    names = ["root", "path", "oldPath", "type", "size", "action", "to", "by", "protocol", "peer"]
    names += ["port", "localPort", "host", "sentBytes", "code", "signal", "durationUs", "cwd"]
    meta = json.dumps(dict.fromkeys([*names, "pid", "parent", "argv", "startFailed"], value))
    kinds = [Kind.FILE_DIFF_ENTRY, Kind.FILE_ACCESSED, Kind.NETWORK_SOURCE_OBSERVED]
    kinds += [Kind.FORWARD_OPENED, Kind.FORWARD_CLOSED, Kind.PROCESS_STARTED, Kind.PROCESS_EXITED]
    for number, kind in enumerate(kinds, 1):
        source.event(kind, meta.encode(), process=number)
    renamed = json.dumps({"change": "renamed", "path": value, "oldPath": value})
    source.event(Kind.FILE_CHANGE, renamed.encode())
    origin = dict.fromkeys(["address", "port", "client", "user", "key"], value)
    source.event(Kind.RECORD_STARTED, json.dumps({"origin": origin}).encode())
    for kind in kinds:
        source.event(kind, b"\xff no JSON", process=2**31)
    source.append()
    events = told(api, run, schema)
    assert len(events) == 2 * len(kinds) + 3


def test_events_of_many_batches_come_in_order_and_once(
    api: Api, run: Run, source: Source, schema: OcsfJsonSchemaEmbedded
) -> None:
    for _ in range(250):
        source.process()
    source.append()
    uids = [event["metadata"]["uid"] for event in told(api, run, schema)]
    assert uids == [f"{run.pk}:{number}" for number in range(1, 251)]
