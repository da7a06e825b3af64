"""Operators stop, start and delete workspaces in the admin."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db.models import Model
from django.db.models.functions import Now
from django.test import Client

from tests.factories import claim, make_job
from tests.runs.ready import ready_attempt
from tests.workspaces.test_admin import act, url
from tests.workspaces.test_lifecycle_api import deleted_workspace, stopped_attempt
from workspaces.models import (
    Attempt,
    BuildJob,
    RuntimeInstance,
    Sandbox,
    Transition,
    Workspace,
    WorkspaceEvent,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def staff() -> Client:
    """A signed-in operator."""
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    return client


def workspace(attempt: Attempt) -> Workspace:
    return Workspace.objects.get(pk=attempt.workspace_id)


def test_a_stop_by_an_operator_is_a_transition_that_says_who_asked(staff: Client) -> None:
    attempt = ready_attempt()
    told = act(staff, Workspace, "stop", [workspace(attempt)])
    assert told == [f"{attempt.workspace_id}: is being stopped."]
    transition = Transition.objects.get()
    assert (transition.kind, transition.cause, transition.requested_by) == (
        "stop",
        "operator",
        "ada",
    )
    assert RuntimeInstance.objects.get(attempt=attempt).status == "stopping"
    event = WorkspaceEvent.objects.get(type="workspace.stop-requested")
    assert event.data == {"cause": "operator", "requestedBy": "ada"}


def test_a_stop_cancels_what_is_being_built(staff: Client) -> None:
    job = make_job()
    act(staff, Workspace, "stop", [workspace(job.attempt)])
    job.refresh_from_db()
    assert (job.status, job.error_message) == (
        "cancelled",
        "An operator asked to stop the workspace.",
    )


@pytest.mark.parametrize("model", [Sandbox, BuildJob])
def test_what_a_worker_has_begun_is_cleared_before_its_workspace_starts_again(
    staff: Client, model: type[Model]
) -> None:
    job = claim(make_job())
    row = job if model is BuildJob else job.attempt.sandbox
    assert act(staff, model, "cancel", [row]) == [f"{row.pk}: cancelled."]
    transition = Transition.objects.open().get(workspace_id=job.attempt.workspace_id)
    assert (transition.kind, transition.cause, transition.requested_by) == (
        "stop",
        "operator",
        "ada",
    )
    (told,) = act(staff, Workspace, "start", [workspace(job.attempt)])
    assert "being stopped" in told
    (told,) = act(staff, Sandbox, "retry", [job.attempt.sandbox])
    assert "being stopped" in told


def test_a_build_that_nobody_began_leaves_nothing_to_clear(staff: Client) -> None:
    job = make_job()
    act(staff, BuildJob, "cancel", [job])
    assert not Transition.objects.exists()
    (told,) = act(staff, Workspace, "start", [workspace(job.attempt)])
    assert told.endswith("is queued.")


def test_what_has_ended_is_not_stopped_again(staff: Client) -> None:
    attempt = stopped_attempt()
    (told,) = act(staff, Workspace, "stop", [workspace(attempt)])
    assert "there is nothing left to do" in told


def test_a_workspace_is_started_again(staff: Client) -> None:
    attempt = stopped_attempt()
    (told,) = act(staff, Workspace, "start", [workspace(attempt)])
    job = BuildJob.objects.order_by("-pk")[0]
    assert told == f"{attempt.workspace_id}: job {job.pk} is queued."
    assert (job.attempt.relation, job.attempt.trigger_type) == ("resume", "manual")
    assert job.attempt.requested_by == "ada"


def test_what_is_live_is_not_started_again(staff: Client) -> None:
    attempt = ready_attempt()
    (told,) = act(staff, Workspace, "start", [workspace(attempt)])
    assert "only one that has ended can be started again" in told


def test_a_delete_is_asked_for_and_the_row_stays(staff: Client) -> None:
    attempt = ready_attempt()
    (told,) = act(staff, Workspace, "delete_workspaces", [workspace(attempt)])
    assert told.endswith("is being deleted.")
    transition = Transition.objects.get()
    assert (transition.kind, transition.cause) == ("delete", "operator")
    assert Workspace.objects.filter(pk=attempt.workspace_id).exists()


def test_several_are_asked_for_and_each_is_answered(staff: Client) -> None:
    gone = Workspace.objects.get(pk=deleted_workspace())
    told = act(staff, Workspace, "stop", [workspace(ready_attempt()), gone])
    assert len(told) == 2
    assert any("was deleted" in one for one in told)


def test_who_may_only_look_may_not_act() -> None:
    user = get_user_model().objects.create_user("bob", password="x", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_workspace"))
    client = Client()
    client.force_login(user)
    attempt = ready_attempt()
    for action in ("stop", "start", "delete_workspaces"):
        act(client, Workspace, action, [workspace(attempt)])
    assert not Transition.objects.exists()
    assert Attempt.objects.count() == 1


def test_a_list_shows_what_is_deleted_and_what_is_wanted(staff: Client) -> None:
    deleted = deleted_workspace()
    attempt = ready_attempt()
    act(staff, Workspace, "stop", [workspace(attempt)])
    Transition.objects.update(waiting_code="adapter-unavailable", retry_at=Now())
    listed = staff.get(url(Workspace, "changelist")).content.decode()
    assert str(deleted) in listed
    assert ">deleted<" in listed
    wanted = staff.get(url(Transition, "changelist")).content.decode()
    assert "adapter-unavailable" in wanted
    transition = Transition.objects.order_by("-pk")[0]
    assert staff.get(url(Transition, "change", transition.pk)).status_code == 200
    assert staff.post(url(Transition, "delete", transition.pk), {"post": "yes"}).status_code == 403
