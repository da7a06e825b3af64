"""Folders of work in progress are private, and swept only when nobody works in them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from builds.images.work_folders import sweep_leftovers, workplace


def test_a_workplace_is_private_names_its_job_and_is_gone_afterwards(tmp_path: Path) -> None:
    job = uuid4()
    with workplace(tmp_path / "new" / "root", "build", job, 3) as place:
        assert place.stat().st_mode & 0o777 == 0o700
        assert f"{job}-3" in place.name
        (place / "file").write_text("x")
    assert list((tmp_path / "new" / "root").iterdir()) == []


def test_a_workplace_is_gone_after_a_failure(tmp_path: Path) -> None:
    try:
        with workplace(tmp_path, "build", uuid4(), 1) as place:
            raise KeyError
    except KeyError:
        assert not place.exists()


def test_a_workplace_in_use_is_never_swept(tmp_path: Path) -> None:
    with workplace(tmp_path, "build", uuid4(), 1) as place:
        os.utime(place, (1, 1))
        assert sweep_leftovers(tmp_path, older_than=0) == 0
        assert place.exists()


def test_what_a_killed_worker_left_is_swept_once_it_is_old_enough(tmp_path: Path) -> None:
    script = (
        "import sys, time, uuid, pathlib\nfrom builds.images.work_folders import workplace\n"
        "with workplace(pathlib.Path(sys.argv[1]), 'build', uuid.uuid4(), 1) as place:\n"
        "    (place / 'file').write_text('x')\n    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"ready\n"
    assert sweep_leftovers(tmp_path, older_than=-1) == 0
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    assert sweep_leftovers(tmp_path, older_than=60) == 0
    assert sweep_leftovers(tmp_path, older_than=-1) == 1
    assert list(tmp_path.iterdir()) == []


def test_only_our_folders_are_swept(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "svc-file").write_text("x")
    (tmp_path / "svc-link").symlink_to(tmp_path / "mine")
    (tmp_path / "svc-old").mkdir()
    assert sweep_leftovers(tmp_path, older_than=-1) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "svc-file", "svc-link"}
    assert sweep_leftovers(tmp_path / "none", older_than=0) == 0


def test_a_folder_nested_a_thousand_levels_deep_is_removed_as_well(tmp_path: Path) -> None:
    here = Path.cwd()
    with workplace(tmp_path, "sources", uuid4(), 1) as place:
        try:
            os.chdir(place)
            for _ in range(1500):
                Path("d").mkdir()
                os.chdir("d")
        finally:
            os.chdir(here)
    assert not place.exists()
