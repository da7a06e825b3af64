"""What the kernel counts by uid, one workspace cannot take from another."""

from __future__ import annotations

import json

import pytest

from tests.workspaces.conftest import BASE_IMAGE, Launcher
from tests.workspaces.conftest import docker_client as docker_client
from tests.workspaces.conftest import launcher as launcher
from tests.workspaces.conftest import make_launcher as make_launcher
from tests.workspaces.conftest import publish as publish
from tests.workspaces.conftest import workspace_image as workspace_image
from workspaces.runtimes.base import LaunchedRuntime

pytestmark = pytest.mark.docker

USUAL = 128
"""The limit that many a machine has for all of them together."""

GREEDY = """
import ctypes, json, os, resource, signal, sys
kernel = ctypes.CDLL(None, use_errno=True)
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
each = min(most, int(sys.argv[2])) - 16
children, taken = [], 0
for _ in range(int(sys.argv[1])):
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        opened = 0
        while opened < each and kernel.inotify_init() >= 0:
            opened += 1
        os.write(tell, str(opened).encode())
        os.close(tell)
        signal.pause()
    os.close(tell)
    children.append(child)
    taken += int(os.read(told, 16) or b"0")
    os.close(told)
with open("/tmp/telling", "w") as file:
    json.dump({"taken": taken, "asked": each * len(children)}, file)
os.rename("/tmp/telling", "/tmp/told")
signal.pause()
"""


def take(launcher: Launcher, runtime: LaunchedRuntime, processes: int, each: int) -> bool:
    """Whether a workspace gets so many instances, which it keeps, in so many processes."""
    api = launcher.client.api
    command = ["python3", "-c", GREEDY, str(processes), str(each)]
    execution = api.exec_create(runtime.resource_id, command, user="workspace")
    api.exec_start(execution["Id"], detach=True)
    wait = "until [ -s /tmp/told ]; do :; done; cat /tmp/told"
    code, printed = launcher.inside(runtime, "bash", "-c", wait)
    assert code == 0, printed
    told = json.loads(printed)
    assert told["asked"] > USUAL
    return bool(told["taken"] == told["asked"])


def test_a_workspace_that_takes_all_instances_of_inotify_leaves_others_theirs(
    launcher: Launcher,
) -> None:
    assert launcher.adapter.lift_kernel_limits(image=BASE_IMAGE) == ""
    greedy, other = launcher.launch(), launcher.launch()
    assert take(launcher, greedy, 4, 8192)
    assert take(launcher, other, 1, 1024)


def test_lifting_again_changes_nothing_and_leaves_no_container(launcher: Launcher) -> None:
    for _ in range(2):
        assert launcher.adapter.lift_kernel_limits(image=BASE_IMAGE) == ""
    assert launcher.left_over() == []
