"""Streams of workspaces and owners over real sockets: order, places, statuses, output, ends."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from runs.models import Run
from runs.record import retention
from tests.conftest import OWNER, Api
from tests.runs.record_factory import Source, make_run, record
from tests.runs.streaming.event_stream import Follower, Received, received
from tests.stack.api_process import ApiProcess, api_process
from tests.support.waiting import LONG_WAIT
from workspaces.event_order import PLACED_AT_ONCE, place_events
from workspaces.models import Workspace, WorkspaceEvent
from workspaces.services import create_workspace, record_workspace_event

pytestmark = pytest.mark.django_db(transaction=True)

STOPPED = WorkspaceEvent.Type.WORKSPACE_STOPPED


@pytest.fixture
def server(tmp_path: Path, transactional_db: None) -> Iterator[ApiProcess]:
    """A server with what is customary."""
    with api_process(tmp_path / "api.log") as process:
        yield process


def make_workspace(name: str = "w", owner: str = OWNER) -> Workspace:
    with transaction.atomic():
        return create_workspace(owner_user_id=owner, name=name)


def tell(workspace: Workspace, message: str) -> None:
    with transaction.atomic():
        record_workspace_event(workspace, STOPPED, message)


def delete(workspace: Workspace) -> None:
    with transaction.atomic():
        Workspace.objects.filter(pk=workspace.pk).update(deleted_at=Now())
        record_workspace_event(workspace, WorkspaceEvent.Type.WORKSPACE_DELETED, "deleted")


def path(workspace: Workspace, query: str = "") -> str:
    return f"/v1/workspaces/{workspace.pk}/stream{query}"


def boot(workspace: Workspace) -> tuple[Source, int]:
    """Begin the record of a build and boot of a workspace."""
    source = Source(make_run(mode=Run.Mode.BOOT, workspace=workspace))
    source.open()
    source.started()
    process = source.process()
    source.append()
    return source, process


def until(follower: Follower, done: Callable[[list[Received]], bool]) -> list[Received]:
    found: list[Received] = []
    while not done(found):
        more = follower.receive()
        assert more is not None, f"the stream ended after {found}"
        found += more
    return found


def named(name: str, count: int = 1) -> Callable[[list[Received]], bool]:
    return lambda found: len([each for each in found if each.event == name]) >= count


def messages(events: list[Received]) -> list[str]:
    return [each.json["message"] for each in events if each.event == "event"]


def output(events: list[Received]) -> bytes:
    return b"".join(
        base64.b64decode(each.json["contentBase64"]) for each in events if each.event == "output"
    )


def test_a_workspace_is_followed_from_its_creation_to_its_end(server: ApiProcess) -> None:
    workspace = make_workspace()
    with Follower(server.port, path(workspace)) as follower:
        first = until(follower, named("status"))
        assert messages(first) == ["Workspace w was created."]
        assert first[-1].json["status"] == "queued"
        source, process = boot(workspace)
        source.output(process, b"step 1\n")
        source.append()
        # A boot begins with an event of its workspace.
        tell(workspace, "queued")
        built = until(follower, named("output"))
        source.output(process, b"step 2\n")
        source.exited(process)
        source.sealed()
        source.append()
        built += until(follower, named("output"))
        assert messages(built) == ["queued"]
        assert output(built) == b"step 1\nstep 2\n"
        delete(workspace)
        rest = list(follower.events())
    # The stream may look for events just before the commit, and at the status just after it.
    (status,) = [each for each in rest if each.event == "status"]
    assert sorted(each.event for each in rest[:-1]) == ["event", "status"]
    assert rest[-1].event == "end"
    assert rest[-1].json == status.json
    assert status.json["status"] == "deleted"
    assert server.get(path(workspace, f"?after={rest[-1].id}"))[0] == 204


def whole(api: Api, workspace: Workspace, after: str = "") -> list[Received]:
    query = f"?after={after}" if after else ""
    return received(api.get(path(workspace, query)).content)


def without_status(events: list[Received]) -> list[tuple[str, str, str]]:
    return [(each.event, each.id, each.data) for each in events if each.event != "status"]


def test_every_place_goes_on_with_exactly_what_follows_it(api: Api) -> None:
    workspace = make_workspace()
    for number in range(2):
        tell(workspace, f"{number}")
        record(make_run(mode=Run.Mode.BOOT, workspace=workspace), [b"a", b"b" * 50_000, b"c"])
    delete(workspace)
    api.get(path(workspace, "?after=latest"))
    everything = without_status(whole(api, workspace, "0-0-0"))
    ids = [place for _, place, _ in everything]
    assert len(set(ids)) == len(ids) == 11
    for number, place in enumerate(ids[:-1]):
        assert without_status(whole(api, workspace, place)) == everything[number + 1 :]
    # Without a place: all events, and the output of the latest boot.
    latest = whole(api, workspace)
    assert messages(latest) == ["Workspace w was created.", "0", "1", "deleted"]
    assert output(latest) == b"a" + b"b" * 50_000 + b"c"
    assert [each.event for each in whole(api, workspace, ids[-2])] == ["status", "end"]


def test_a_boot_record_that_was_removed_is_told_and_passed(api: Api) -> None:
    workspace = make_workspace()
    first, second = (make_run(mode=Run.Mode.BOOT, workspace=workspace) for _ in range(2))
    record(first, [b"gone"])
    record(second, [b"there"])
    assert retention.prune([first.number]).runs == 1
    delete(workspace)
    events = whole(api, workspace, "0-0-0")
    (told,) = [each for each in events if each.event == "resync"]
    assert (told.json["reason"], told.json["runId"]) == ("record-removed", str(first.pk))
    assert output(events) == b"there"
    assert "resync" not in [each.event for each in whole(api, workspace, told.id)]


@pytest.mark.parametrize("place", ["5", "1-2", "1-999999999-1", "a-b-c", "1-2-3-4", "-1-0-0"])
def test_a_place_of_another_stream_is_refused(api: Api, place: str) -> None:
    workspace = make_workspace()
    answer = api.get(path(workspace, f"?after={place}"), expect=400)
    assert answer.codes == {"after": "invalid-cursor"}
    assert api.get(f"/v1/stream?ownerUserId=x&after={place}x", expect=400).codes == {
        "after": "invalid-cursor"
    }


def test_a_place_that_no_event_has_had_is_refused(api: Api) -> None:
    workspace = make_workspace()
    run = make_run(mode=Run.Mode.BOOT, workspace=workspace)
    record(run, [b"a"])
    delete(workspace)
    *_, last, end = whole(api, workspace)
    position, number, sequence = map(int, end.id.removesuffix("-end").split("-"))
    assert without_status(whole(api, workspace, last.id)) == without_status([end])
    # As after a restore of the database: a client that went on there would miss what comes first.
    for place in (f"{position + 1}-0-0", f"{position}-{number}-{sequence + 1}"):
        for ended in ("", "-end"):
            refused = api.get(path(workspace, f"?after={place}{ended}"), expect=400)
            assert refused.codes == {"after": "invalid-cursor"}
    owner = f"/v1/stream?ownerUserId={OWNER}"
    refused = api.get(owner, headers={"last-event-id": str(position + 1)}, expect=400)
    assert refused.codes == {"Last-Event-ID": "invalid-cursor"}


def test_a_place_stays_sound_when_its_event_is_gone(server: ApiProcess) -> None:
    workspace, other = make_workspace(), make_workspace("other")
    with Follower(server.port, path(other)) as follower:
        place = until(follower, named("event"))[-1].id
    WorkspaceEvent.objects.filter(workspace=other).delete()
    with Follower(server.port, path(other), last_id=place) as follower:
        assert until(follower, named("status"))
    owner = f"/v1/stream?ownerUserId={OWNER}"
    with Follower(server.port, owner, last_id=place.split("-")[0]) as follower:
        tell(workspace, "later")
        assert messages(until(follower, named("event"))) == ["later"]


def test_a_foreign_workspace_is_absent(api: Api) -> None:
    workspace = make_workspace()
    answer = api.get(path(workspace, "?ownerUserId=somebody"), expect=404)
    assert answer.body["code"] == "workspace-not-found"
    assert api.get("/v1/stream", expect=400).codes == {"ownerUserId": "required"}


def test_an_event_that_is_committed_late_is_not_passed(server: ApiProcess) -> None:
    workspace = make_workspace()
    written, commit = Event(), Event()

    def write_late() -> None:
        try:
            with transaction.atomic():
                record_workspace_event(workspace, STOPPED, "early id, late commit")
                written.set()
                assert commit.wait(LONG_WAIT)
        finally:
            connection.close()

    thread = Thread(target=write_late)
    with Follower(server.port, path(workspace)) as follower:
        until(follower, named("status"))
        thread.start()
        assert written.wait(LONG_WAIT)
        tell(workspace, "late id, early commit")
        first = until(follower, named("event"))
        commit.set()
        thread.join()
        second = until(follower, named("event"))
    assert messages(first + second) == ["late id, early commit", "early id, late commit"]
    with Follower(server.port, path(workspace), last_id=first[-1].id) as follower:
        assert messages(until(follower, named("event"))) == ["early id, late commit"]


def test_positions_are_given_once_by_many_at_the_same_time(server: ApiProcess) -> None:
    workspace = make_workspace()
    WorkspaceEvent.objects.bulk_create(
        WorkspaceEvent(workspace=workspace, type=STOPPED, message=str(number))
        for number in range(PLACED_AT_ONCE + 500)
    )
    followers = [Follower(server.port, path(workspace)) for _ in range(10)]
    expected = ["Workspace w was created.", *map(str, range(PLACED_AT_ONCE + 500))]
    for follower in followers:
        assert messages(until(follower, named("event", len(expected)))) == expected
        follower.close()
    assert not place_events()


def test_an_owner_sees_all_workspaces_and_nobody_elses(server: ApiProcess) -> None:
    mine = [make_workspace(f"w{number}") for number in range(25)]
    others = make_workspace("other", owner="somebody")
    with Follower(server.port, f"/v1/stream?ownerUserId={OWNER}") as follower:
        first = until(follower, named("current"))
        assert [each.json["name"] for each in first[:-1]] == [each.name for each in mine]
        tell(others, "not mine")
        tell(mine[3], "mine")
        status, event = until(follower, named("event"))
        assert (status.event, status.json["workspaceId"]) == ("status", str(mine[3].pk))
        assert (event.json["message"], event.json["workspaceId"]) == ("mine", str(mine[3].pk))
        later = make_workspace("later")
        assert until(follower, named("event"))[0].json["workspaceId"] == str(later.pk)


def test_an_owner_that_comes_back_over_and_over_sees_every_event_once(server: ApiProcess) -> None:
    random = Random(3)
    workspaces = [make_workspace(f"w{number}") for number in range(5)]
    seen: list[str] = []
    place = ""
    expected = []
    for number in range(60):
        with Follower(server.port, f"/v1/stream?ownerUserId={OWNER}", last_id=place) as follower:
            if not place:
                place = until(follower, named("current"))[-1].id
            for _ in range(random.randint(1, 4)):
                expected.append(f"{number}.{random.random()}")
                tell(random.choice(workspaces), expected[-1])
            if random.random() < 0.7:
                found = until(follower, named("event"))
                seen += messages(found)
                place = follower.parser.last_id
    with Follower(server.port, f"/v1/stream?ownerUserId={OWNER}", last_id=place) as follower:
        seen += messages(until(follower, named("event", len(expected) - len(seen))))
    assert seen == expected
