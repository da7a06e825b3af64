"""The Docker adapter launches a workspace that is ready, or says why not and leaves nothing."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from docker.errors import APIError, ImageNotFound

from tests.stack.pausing import runs_beside
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import (
    DOCKERFILE,
    Launcher,
    step,
)
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker import DockerAdapter

pytestmark = pytest.mark.docker


def test_a_launched_workspace_is_ready_labelled_and_reachable_by_exec(launcher: Launcher) -> None:
    request = launcher.request(
        boot={"setup": [step("echo prepared > prepared")], "startup": [step("test -f prepared")]}
    )
    runtime = launcher.launch(request)

    container = launcher.container(runtime)
    assert runtime.adapter == "docker"
    assert runtime.reference == container.name == f"svc-{request.run_id}"
    assert runtime.endpoint == f"docker-exec://{container.id}"
    assert container.labels == {
        "svc.instance": request.instance_id,
        "svc.workspace": str(request.workspace_id),
        "svc.attempt": str(request.attempt_id),
        "svc.run": str(request.run_id),
        "svc.job": str(request.job_id),
        "svc.attempt-count": "1",
        "svc.working-directory": "/workspace/repo",
    }
    code, output = launcher.inside(runtime, "stat", "-c", "%U", "/workspace/repo/prepared")
    assert (code, output.strip()) == (0, "workspace")


def test_a_failing_setup_step_fails_the_launch_with_its_name_exit_code_and_output(
    launcher: Launcher,
) -> None:
    steps = [step("true", "first"), step("echo the disk is on fire; exit 41", "second")]
    with pytest.raises(LaunchError) as caught:
        launcher.launch(launcher.request(boot={"setup": steps}, outbound=True))
    assert caught.value.code == "step-failed"
    assert "second" in caught.value.message
    assert "exit code 41" in caught.value.message
    assert "the disk is on fire" in caught.value.message
    assert launcher.left_over() == []


def test_a_step_killed_by_a_signal_is_reported_with_the_signal(launcher: Launcher) -> None:
    with pytest.raises(LaunchError, match="SIGSEGV") as caught:
        launcher.launch(launcher.request(boot={"startup": [step("kill -SEGV $$")]}))
    assert caught.value.code == "step-failed"


def test_a_step_that_takes_too_long_is_reported_as_out_of_time(launcher: Launcher) -> None:
    # A busy machine may take long to begin with the step.
    limits = {"stepSeconds": 15, "graceSeconds": 1, "tailBytes": 8192}
    setup = [step("echo still here; sleep 600", "slow one")]
    with pytest.raises(LaunchError, match=r"slow one.*its time was over") as caught:
        launcher.launch(launcher.request(boot={"setup": setup, "limits": limits}))
    assert caught.value.code == "step-failed"
    assert "still here" in caught.value.message
    assert launcher.left_over() == []


def test_a_container_that_exits_without_a_word_of_the_agent_is_reported_with_its_logs(
    launcher: Launcher, publish: Callable[[str], str]
) -> None:
    token = "ghp_" + "a" * 36
    entry = f'ENTRYPOINT ["sh", "-c", "echo cannot go on {token} open-sesame; exit 9"]'
    image = publish(f"{DOCKERFILE}{entry}\n")
    with pytest.raises(LaunchError, match="exit code 9") as caught:
        launcher.launch(launcher.request(image=image, boot={"secrets": ["open-sesame"]}))
    assert caught.value.code == "container-exited"
    assert "cannot go on" in caught.value.message
    assert token not in caught.value.message
    assert "sesame" not in caught.value.message
    assert launcher.left_over() == []


def test_an_image_without_the_agent_is_refused_by_the_engine(
    launcher: Launcher, publish: Callable[[str], str]
) -> None:
    image = publish(f'{DOCKERFILE}ENTRYPOINT ["/usr/lib/svc/none"]\n')
    with pytest.raises(LaunchError, match="/usr/lib/svc/none") as caught:
        launcher.launch(launcher.request(image=image, outbound=True))
    assert caught.value.code == "launch-refused"
    assert launcher.left_over() == []


def test_a_launch_that_is_not_ready_in_time_says_what_it_was_doing(launcher: Launcher) -> None:
    setup = [step("echo downloading the internet; sleep 600", "long one")]
    for seconds in (15.0, 60.0, 180.0):  # until the time is over after the step has begun
        with pytest.raises(LaunchError) as caught:
            launcher.launch(launcher.request(boot={"setup": setup}, timeout=seconds, outbound=True))
        assert caught.value.code == "launch-timed-out"
        if "long one" in caught.value.message:
            break
    assert "long one" in caught.value.message
    assert launcher.left_over() == []


def test_a_container_that_cannot_answer_is_removed_when_the_time_is_over(
    launcher: Launcher,
) -> None:
    request = launcher.request(boot={"setup": [step("sleep 600")]}, timeout=8.0)
    over = threading.Event()

    def freeze() -> None:
        while not over.wait(0.02):
            # It is not there or not up yet, or it is just being removed because time is over.
            with contextlib.suppress(APIError):
                container = launcher.client.containers.get(f"svc-{request.run_id}")
                if runs_beside(container, "status"):
                    container.pause()
                    return

    freezing = threading.Thread(target=freeze)
    freezing.start()
    started = time.monotonic()
    try:
        with pytest.raises(LaunchError) as caught:
            launcher.launch(request)
    finally:
        over.set()
        freezing.join()
    assert caught.value.code == "launch-timed-out"
    assert time.monotonic() - started < LONG_WAIT
    assert launcher.left_over() == []


def test_a_cancelled_launch_ends_soon_and_cleans_up(launcher: Launcher) -> None:
    cancelled = threading.Event()
    threading.Timer(2.0, cancelled.set).start()
    started = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        launcher.launch(
            launcher.request(boot={"setup": [step("sleep 600")]}, outbound=True), cancelled
        )
    assert caught.value.code == "launch-cancelled"
    assert time.monotonic() - started < LONG_WAIT
    assert launcher.left_over() == []


def test_an_image_that_only_the_registry_has_is_pulled_by_its_digest(
    launcher: Launcher, publish: Callable[[str], str]
) -> None:
    base = launcher.client.images.get(launcher.image)
    image = publish(f"FROM {base.id}\nLABEL unique={uuid4()}\n")
    for tag in launcher.client.images.get(image).tags:
        launcher.client.images.remove(tag)
    with pytest.raises(ImageNotFound):
        launcher.client.images.get(image)

    runtime = launcher.launch(launcher.request(image=image))
    assert launcher.container(runtime).attrs["Config"]["Image"] == image


def test_a_pull_from_a_registry_that_never_answers_ends_with_the_deadline(
    launcher: Launcher, silent_registry: str
) -> None:
    image = f"{silent_registry}/some/image@sha256:{'0' * 64}"
    started = time.monotonic()
    with pytest.raises(LaunchError, match="image was being pulled") as caught:
        launcher.launch(launcher.request(image=image, timeout=2.0))
    assert caught.value.code == "launch-timed-out"
    assert time.monotonic() - started < LONG_WAIT


def test_an_oci_runtime_that_the_engine_lacks_is_named(launcher: Launcher) -> None:
    with pytest.raises(LaunchError, match="runsc") as caught:
        launcher.launch(launcher.request(oci_runtime="runsc"))
    assert caught.value.code == "oci-runtime-missing"


def test_a_persistent_workspace_is_started_again_by_the_engine_and_a_failed_boot_is_not(
    launcher: Launcher,
) -> None:
    runtime = launcher.launch(launcher.request(restart=True))
    policy = launcher.container(runtime).attrs["HostConfig"]["RestartPolicy"]["Name"]
    assert policy == "unless-stopped"

    with pytest.raises(LaunchError, match="exit code 5") as caught:
        launcher.launch(launcher.request(restart=True, boot={"setup": [step("exit 5")]}))
    assert caught.value.code == "step-failed"


def test_observe_tells_what_became_of_a_runtime(launcher: Launcher) -> None:
    request = launcher.request(attempt_count=3)
    assert launcher.adapter.observe(request.run_id) is None
    began = time.time()
    runtime = launcher.launch(request)

    live = launcher.adapter.observe(request.run_id)
    assert live is not None
    assert (live.run_id, live.job_id, live.attempt_count) == (request.run_id, request.job_id, 3)
    assert (live.resource_id, live.reference) == (runtime.resource_id, runtime.reference)
    assert (live.running, live.exit_code, live.oom_killed) == (True, None, False)
    assert began - 2 <= live.created_at.timestamp() <= time.time() + 2

    launcher.container(runtime).kill()
    launcher.container(runtime).wait()
    ended = launcher.adapter.observe(request.run_id)
    assert ended is not None
    assert (ended.running, ended.exit_code) == (False, 137)
    assert launcher.adapter.list() == [ended]

    launcher.container(runtime).remove()
    assert launcher.adapter.observe(request.run_id) is None
    assert launcher.adapter.list() == []


def test_removal_takes_container_and_network_and_may_be_repeated(launcher: Launcher) -> None:
    request = launcher.request(outbound=True)
    launcher.launch(request)
    assert len(launcher.left_over()) == 2

    assert launcher.adapter.remove(request.run_id) is True
    assert launcher.left_over() == []
    assert launcher.adapter.remove(request.run_id) is False


def test_removals_at_the_same_moment_all_end_well(launcher: Launcher) -> None:
    request = launcher.request(outbound=True)
    launcher.launch(request)
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(launcher.adapter.remove(request.run_id)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_WAIT)
    assert len(results) == 4
    assert any(results)
    assert launcher.left_over() == []


# The SDK leaves a socket to the garbage collector when a connection fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_engine_that_is_not_there_is_an_unavailable_adapter(tmp_path: Path) -> None:
    adapter = DockerAdapter(f"unix://{tmp_path}/none.sock", str(uuid4()))
    for call in (adapter.check, adapter.list, lambda: adapter.remove(uuid4())):
        with pytest.raises(LaunchError) as caught:
            call()
        assert caught.value.code == "adapter-unavailable"
        assert str(tmp_path) not in caught.value.message
    del caught
    gc.collect()


# The SDK leaves a socket to the garbage collector when a connection fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_engine_that_never_answers_is_given_up_after_its_time(silent_engine: str) -> None:
    adapter = DockerAdapter(silent_engine, str(uuid4()), engine_timeout=1.0)
    started = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        adapter.check()
    assert caught.value.code == "adapter-unavailable"
    assert time.monotonic() - started < LONG_WAIT
    del caught
    gc.collect()
