"""What a build worker writes of its engine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from builds.engine_report import EngineReport
from builds.images.engine_images import PulledImage
from tests.bench.empty_jobs import NoCompiler
from tests.support.engines import STALE, make_engine, silence
from workspaces.models import Engine
from workspaces.runtimes.base import EngineFacts

pytestmark = pytest.mark.django_db


class SlowToList(NoCompiler):
    """Has an image, and notes who is heard while it looks for it."""

    def __init__(self) -> None:
        """Note nothing yet."""
        object.__setattr__(self, "heard", [])

    def pulled_images(self, labels: Mapping[str, str]) -> list[PulledImage]:
        """Return the one image."""
        heard = Engine.objects.answering(stale=STALE).values_list("pk", flat=True)
        self.heard.append(list(heard))  # type: ignore[attr-defined]
        return [PulledImage("a/b", "sha256:0", datetime(2026, 1, 1, tzinfo=UTC))]


def test_an_engine_is_heard_before_its_images_are_listed() -> None:
    make_engine("local")
    silence("local")
    compiler = SlowToList()
    facts = EngineFacts(engine_id="e", memory_bytes=5, cpus=2)
    report = EngineReport("local", lambda: facts, compiler, instance_id="test")
    assert report.write() == "e"
    assert report.write() == "e"
    assert compiler.heard == [["local"]]  # type: ignore[attr-defined]
    row = Engine.objects.get()
    assert (row.engine_id, row.memory_bytes, row.cpus, row.images) == ("e", 5, 2, ["a/b"])
