"""An unchanged plan is not built again, and what decides whether it is unchanged."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from registries.services import configured_registry
from tests.stack.service import GitServer, Stack, Started, install

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def spec(git_server: GitServer) -> dict[str, Any]:
    """A blueprint of this module's own."""
    url = git_server.publish("reused", {"file": "1\n"})
    return {
        "harness": install(f"echo {uuid.uuid4()}"),
        "sources": {"workspace": {"url": url}},
    }


@pytest.fixture(scope="module")
def built(stack: Stack, spec: dict[str, Any]) -> Started:
    """The first sandbox of the plan."""
    started = stack.ready(spec)
    assert not started.job.reused
    return started


def test_the_same_plan_under_another_name_is_the_same_image(
    stack: Stack, spec: dict[str, Any], built: Started
) -> None:
    again = stack.ready(spec, repository=f"tests/other-{uuid.uuid4().hex[:8]}", tag="v2")

    assert again.job.reused
    assert again.job.plan_hash == built.job.plan_hash
    assert again.job.published_digest == built.job.published_digest
    assert stack.digest(again) == built.job.published_digest
    published = next(item for item in stack.events(again) if item["type"] == "image.published")
    assert published["data"]["reused"] is True
    assert published["data"]["digest"] == built.job.published_digest


def test_steps_environment_and_limits_are_no_part_of_the_image(
    stack: Stack, spec: dict[str, Any], built: Started
) -> None:
    changed = stack.ready(
        {
            **spec,
            "lifecycle": {"setup": [{"run": "touch /workspace/changed"}]},
            "runtime": {"env": {"A": "1"}, "resources": {"pids": 50}},
        }
    )

    assert changed.job.reused
    assert changed.job.published_digest == built.job.published_digest
    stack.inside(changed, "test -e /workspace/changed")


def test_a_new_commit_is_another_image(
    stack: Stack, spec: dict[str, Any], built: Started, git_server: GitServer
) -> None:
    (git_server.folder / "reused.work" / "file").write_text("2\n")
    git_server.commit("reused", "second")

    newer = stack.ready(spec)

    assert not newer.job.reused
    assert newer.job.published_digest != built.job.published_digest
    assert stack.inside(newer, "cat /workspace/repo/file") == "2"


def test_an_image_that_the_registry_lost_is_built_again(stack: Stack) -> None:
    plan = {"harness": install(f"echo {uuid.uuid4()}")}
    lost = stack.ready(plan)
    digest = lost.job.published_digest
    configured_registry().delete_manifest(lost.answer["repository"], digest)

    again = stack.ready(plan)

    assert not again.job.reused
    assert again.job.plan_hash == lost.job.plan_hash
    assert stack.digest(again) == again.job.published_digest
