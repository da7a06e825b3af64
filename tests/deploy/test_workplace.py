"""The folder in which a base image is built does not outlive a set-up that was killed for long."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.up.workplace import sweep, workplace
from tests.deploy.installation import CHECKOUT
from tests.support.waiting import LONG_WAIT

BUILDING = """
import sys, time
from pathlib import Path
from deploy.up.workplace import workplace
with workplace(Path(sys.argv[1])) as place:
    (place / "rootfs.tar").write_text("x")
    print(place, flush=True)
    time.sleep(600)
"""


def building(root: Path) -> tuple[subprocess.Popen[str], Path]:
    """A set-up that builds a base image, and its folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUILDING, str(root)],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        return process, Path(process.stdout.readline().strip())


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_the_next_set_up_removes_what_a_killed_one_left(
    tmp_path: Path, ending: signal.Signals
) -> None:
    process, left = building(tmp_path)
    other, used = building(tmp_path)
    try:
        process.send_signal(ending)
        process.wait(LONG_WAIT)
        assert left.exists() == (ending is signal.SIGKILL)
        with workplace(tmp_path) as place:
            assert not left.exists()
            assert (used / "rootfs.tar").exists()
            assert sweep(tmp_path) == 0
            assert place.exists()
    finally:
        process.kill()
        other.kill()
        other.wait(LONG_WAIT)
    assert sweep(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []
