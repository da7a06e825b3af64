"""The gateway's host key."""

from __future__ import annotations

import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runs.gateway.host_key import HostKeyError, load_host_key
from tests.stack.disks import fill, read_only, small_disk


def test_it_is_made_once_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "ssh" / "key"
    first = load_host_key(path)
    assert load_host_key(path).public_data == first.public_data
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sorted(found.name for found in path.parent.iterdir()) == ["key", "key.pub"]


def test_openssh_reads_it_and_sees_the_same_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = load_host_key(path)
    for shown in (path, path.with_name("key.pub")):
        said = subprocess.run(
            ["ssh-keygen", "-lf", shown], check=True, capture_output=True, text=True
        )
        assert key.get_fingerprint("sha256") in said.stdout


def test_gateways_that_start_together_get_the_same_one(tmp_path: Path) -> None:
    paths = [tmp_path / "ssh" / "key"] * 16
    with ThreadPoolExecutor(16) as pool:
        found = {key.public_data for key in pool.map(load_host_key, paths)}
    assert len(found) == 1


def test_one_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    load_host_key(path)
    path.chmod(0o640)
    with pytest.raises(HostKeyError, match=f"can be read by others .mode 0640.*chmod 600 {path}"):
        load_host_key(path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"ssh-ed25519 AAAA", b"\0" * 1000])
def test_garbage_is_told_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(HostKeyError, match="is not a private key"):
        load_host_key(path)
    assert path.read_bytes() == content


def test_one_with_a_passphrase_is_told(tmp_path: Path) -> None:
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", path], check=True)
    with pytest.raises(HostKeyError, match="has a passphrase"):
        load_host_key(path)


def test_a_place_where_nothing_can_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostKeyError, match="cannot be read or created"):
        load_host_key(tmp_path / "file" / "key")


@pytest.mark.docker
def test_a_folder_that_may_only_be_read_is_enough_once_the_key_is_there(tmp_path: Path) -> None:
    path = tmp_path / "ssh" / "key"
    path.parent.mkdir()
    told = "cannot be read or created: Read-only file system"
    with read_only(path.parent), pytest.raises(HostKeyError, match=told):
        load_host_key(path)
    made = load_host_key(path)
    path.with_name("key.pub").unlink()
    with read_only(path.parent):
        assert load_host_key(path).public_data == made.public_data


@pytest.mark.docker
def test_a_full_disk_is_told_and_leaves_no_half_of_a_key(tmp_path: Path) -> None:
    with small_disk(tmp_path / "ssh", "64k") as folder:
        ballast = fill(folder)
        with pytest.raises(
            HostKeyError, match="cannot be read or created: No space left on device"
        ):
            load_host_key(folder / "key")
        assert list(folder.iterdir()) == [ballast]
        ballast.unlink()
        load_host_key(folder / "key")
