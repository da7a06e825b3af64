"""A container that inherits our label from its image, and was not made by a launch, is not ours.

Images carry the installation's label, so that old ones are found. Whatever is made from them
inherits it: what somebody starts by hand, and for a moment the containers in which the engine's
classic builder puts the label on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from docker.models.containers import Container
from structlog.testing import capture_logs

from tests.support.removal import remove_container
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import Launcher
from workspaces.runtimes.base import LaunchError

pytestmark = pytest.mark.docker


@pytest.fixture
def labelled(launcher: Launcher, publish: Callable[[str], str]) -> str:
    """An image with the installation's label, as builds make them."""
    base = launcher.client.images.get(launcher.image)
    return publish(f"FROM {base.id}\nLABEL svc.instance={launcher.instance_id}\n")


@pytest.fixture
def by_hand(launcher: Launcher, labelled: str) -> Iterator[Callable[..., Container]]:
    """Make containers of that image by hand."""
    made: list[Container] = []

    def make(name: str | None = None) -> Container:
        made.append(
            launcher.client.containers.create(
                labelled, name=name, entrypoint=["sleep", "infinity"], network_mode="none"
            )
        )
        assert made[-1].labels == {"svc.instance": launcher.instance_id}
        return made[-1]

    yield make
    for container in made:
        remove_container(container)


def test_it_is_not_among_the_workspaces_and_no_word_is_lost_on_it(
    launcher: Launcher, labelled: str, by_hand: Callable[..., Container]
) -> None:
    by_hand()
    by_hand().start()
    runtime = launcher.launch(launcher.request(image=labelled))

    with capture_logs() as logs:
        found = launcher.adapter.list()

    assert [one.resource_id for one in found] == [runtime.resource_id]
    assert logs == []


def test_one_with_the_name_of_a_run_is_neither_asked_nor_replaced(
    launcher: Launcher, labelled: str, by_hand: Callable[..., Container]
) -> None:
    request = launcher.request(image=labelled)
    container = by_hand(f"svc-{request.run_id}")
    container.start()

    with pytest.raises(LaunchError) as asked:
        launcher.adapter.call_agent(request.run_id, ("status",), timeout=LONG_WAIT)
    with pytest.raises(LaunchError) as launched:
        launcher.launch(request)

    assert asked.value.code == "runtime-gone"
    assert launched.value.code == "launch-refused"
    assert not launcher.adapter.remove(request.run_id)
    container.reload()
    assert container.status == "running"
