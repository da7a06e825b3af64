"""Files over SSH: scp in both its ways, sftp, rsync and git move trees without changing them."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scm.conftest import git
from tests.stack.runs import REPOSITORY
from tests.stack.service import GitServer, Stack
from tests.stack.ssh import HOST, Client, Done
from tests.stack.ssh_access import SshAccess, access_of
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.docker

FILES = 5000
AWAY = "/tmp/away"


@pytest.fixture(scope="module")
def access(
    stack: Stack, git_server: GitServer, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SshAccess]:
    """One workspace for all tests here."""
    with access_of(stack, git_server, run_queue, tmp_path_factory.mktemp("copying")) as made:
        yield made


@pytest.fixture(scope="module")
def client(access: SshAccess) -> Client:
    """A client that may enter it."""
    return access.client()


@pytest.fixture(scope="module", autouse=True)
def _clients_are_installed() -> None:
    missing = [name for name in ("scp", "sftp", "rsync", "git") if shutil.which(name) is None]
    assert not missing, f"install {missing}: packages openssh-client, rsync and git"


@pytest.fixture(autouse=True)
def _nothing_is_left(access: SshAccess) -> Iterator[None]:
    """Remove what was copied."""
    access.place.inside(f"mkdir {AWAY}")
    yield
    access.place.inside(f"rm -rf {AWAY}")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A few files of several sizes, modes and names."""
    root = tmp_path / "tree"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").touch()
    (root / "big").write_bytes(random.Random(1).randbytes(3_000_001))
    (root / "deep" / "er" / "näme with 'quotes' \"and\" $it").write_text("odd\n")
    script = root / "deep" / "run.sh"
    script.write_text("#!/bin/sh\necho run\n")
    script.chmod(0o750)
    for path in root.rglob("*"):
        os.utime(path, (1_500_000_000, 1_500_000_000))
    return root


def described(root: Path) -> dict[str, tuple[str, int, str]]:
    """Return everything below a folder: kind, permissions, and what it holds."""
    found = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        content = (
            str(path.readlink())
            if path.is_symlink()
            else hashlib.sha256(path.read_bytes()).hexdigest()
            if path.is_file()
            else ""
        )
        kind = stat.filemode(mode)[0]
        found[str(path.relative_to(root))] = (kind, stat.S_IMODE(mode), content)
    return found


def sums(root: Path) -> list[str]:
    """Return what ``sha256sum`` says of every file below a folder, in order."""
    return sorted(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  ./{path.relative_to(root)}"
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


def sums_inside(access: SshAccess, folder: str) -> list[str]:
    """Return the same of a folder of the workspace."""
    said = access.place.inside(f"cd {folder} && find . -type f -print0 | xargs -0 sha256sum -z")
    return sorted(line for line in said.split("\0") if line)


def copied(client: Client, *argv: str, **how: object) -> Done:
    """Run a program that copies, which has to succeed."""
    done = client.run(*argv, timeout=LONG_WAIT, **how)  # type: ignore[arg-type]
    assert done.code == 0, done
    return done


# ---------------------------------------------------------------- scp


@pytest.mark.parametrize("way", ["-s", "-O"])
def test_scp_copies_a_tree_there_and_back(
    access: SshAccess, client: Client, tree: Path, tmp_path: Path, way: str
) -> None:
    scp = ("scp", "-F", str(client.config), way, "-rp")
    with access.run() as run:
        copied(client, *scp, str(tree), f"{HOST}:{AWAY}")
    assert sums_inside(access, f"{AWAY}/tree") == sums(tree)
    copied(client, *scp, f"{HOST}:{AWAY}/tree", str(tmp_path / "back"))
    assert described(tmp_path / "back") == described(tree)
    assert (tmp_path / "back" / "big").stat().st_mtime == 1_500_000_000
    access.place.completed(run.id)
    (started,) = access.place.timeline(run.id, "processStarted")[:1]
    assert started["ref"]["kind"] == ("subsystem" if way == "-s" else "exec")


@pytest.mark.parametrize("way", ["-s", "-O"])
def test_scp_says_what_it_cannot_copy(client: Client, tmp_path: Path, way: str) -> None:
    scp = ("scp", "-F", str(client.config), way)
    done = client.run(*scp, f"{HOST}:/no/such/file", str(tmp_path))
    assert done.code == 1
    assert "No such file or directory" in done.err
    (tmp_path / "mine").write_text("mine\n")
    done = client.run(*scp, str(tmp_path / "mine"), f"{HOST}:/etc/mine")
    assert done.code == 1
    assert "ermission denied" in done.err


# ---------------------------------------------------------------- sftp


def test_sftp_does_what_its_batch_says(
    access: SshAccess, client: Client, tree: Path, tmp_path: Path
) -> None:
    batch = tmp_path / "batch"
    batch.write_text(
        "pwd\n"
        f"cd {AWAY}\n"
        "mkdir made\n"
        f"put {tree}/big made/one\n"
        "rename made/one made/two\n"
        "chmod 640 made/two\n"
        "ln -s two made/link\n"
        f"put {tree}/empty made/gone\n"
        "rm made/gone\n"
        "ls -l made\n"
        "df\n"
        f"get made/two {tmp_path}/got\n"
        "mkdir away\n"
        "rmdir away\n"
    )
    with access.run() as run:
        done = copied(client, "sftp", "-F", str(client.config), "-b", str(batch), HOST)
    said = done.out.decode()
    assert f"Remote working directory: {REPOSITORY}" in said
    assert "-rw-r-----" in said
    assert (tmp_path / "got").read_bytes() == (tree / "big").read_bytes()
    listed = access.place.inside(f"cd {AWAY} && find . | sort && stat -c %a made/two")
    assert listed.split() == [".", "./made", "./made/link", "./made/two", "640"]
    access.place.completed(run.id)


def test_sftp_goes_on_with_a_file_where_it_was_left(
    access: SshAccess, client: Client, tree: Path, tmp_path: Path
) -> None:
    whole = (tree / "big").read_bytes()
    (tmp_path / "part").write_bytes(whole[:1_000_000])
    batch = tmp_path / "batch"
    batch.write_text(
        f"put {tmp_path}/part {AWAY}/file\n"
        f"reput {tree}/big {AWAY}/file\n"
        f"reget {AWAY}/file {tmp_path}/part\n"
    )
    copied(client, "sftp", "-F", str(client.config), "-b", str(batch), HOST)
    assert (tmp_path / "part").read_bytes() == whole
    assert sums_inside(access, AWAY) == [f"{hashlib.sha256(whole).hexdigest()}  ./file"]


def test_sftp_ends_its_batch_at_the_first_fault(client: Client, tmp_path: Path) -> None:
    batch = tmp_path / "batch"
    batch.write_text("get /no/such/file\nmkdir /tmp/not-made\n")
    done = client.run("sftp", "-F", str(client.config), "-b", str(batch), HOST)
    assert done.code == 1
    assert "not found" in done.err
    assert client.said("ls -d /tmp/not-made 2> /dev/null || echo none") == b"none\n"


# ---------------------------------------------------------------- rsync


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five thousand files in a hundred folders, with links and modes."""
    root = tmp_path_factory.mktemp("many") / "tree"
    chance = random.Random(2)
    for number in range(FILES):
        folder = root / f"folder-{number % 100:02}"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"file-{number:04}"
        file.write_bytes(chance.randbytes(chance.randrange(4096)))
        file.chmod(0o755 if number % 7 == 0 else 0o640)
        if number < 100:
            (folder / "link").symlink_to(file.name)
    return root


@pytest.mark.slow
def test_rsync_takes_5000_files_there_and_back(
    access: SshAccess, client: Client, many: Path, tmp_path: Path
) -> None:
    rsync = ("rsync", "-a", "--stats", "--no-owner", "--no-group")
    with access.run() as run:
        copied(client, *rsync, f"{many}/", f"{HOST}:{AWAY}/many/")
    assert sums_inside(access, f"{AWAY}/many") == sums(many)
    copied(client, *rsync, f"{HOST}:{AWAY}/many/", f"{tmp_path}/back/")
    assert described(tmp_path / "back") == described(many)
    again = copied(client, *rsync, f"{many}/", f"{HOST}:{AWAY}/many/")
    assert b"Number of regular files transferred: 0\n" in again.out
    access.place.completed(run.id)


def test_rsync_that_may_not_write_ends_its_connection_and_the_record_says_why(
    access: SshAccess, client: Client, tree: Path
) -> None:
    # It kills its ssh as soon as it knows, which may be before that has shown the reason.
    for _ in range(5):
        with access.run() as run:
            assert client.run("rsync", "-a", f"{tree}/", f"{HOST}:/etc/no/").code == 11
        assert access.place.ended(run.id)["exitCode"] == 11
        assert b"ermission denied" in access.place.output(run.id, "stderr")


# ---------------------------------------------------------------- git


def test_git_clones_from_the_workspace_and_pushes_to_it(
    access: SshAccess, client: Client, tmp_path: Path
) -> None:
    access.place.inside(f"git init -q --bare -b trunk {AWAY}/shared.git")
    first = tmp_path / "first"
    first.mkdir()
    git(first, "init", "-q", "-b", "trunk")
    for number in range(50):
        (first / f"file-{number}").write_bytes(random.Random(number).randbytes(20_000))
    git(first, "add", ".")
    git(first, "commit", "-q", "-m", "first")
    with access.run() as run:
        copied(client, "git", "-C", str(first), "push", "-q", f"{HOST}:{AWAY}/shared.git", "trunk")
    copied(client, "git", "clone", "-q", f"{HOST}:{AWAY}/shared.git", str(tmp_path / "second"))
    assert git(tmp_path / "second", "rev-parse", "HEAD") == git(first, "rev-parse", "HEAD")
    (tmp_path / "second" / "new").write_text("new\n")
    git(tmp_path / "second", "add", ".")
    git(tmp_path / "second", "commit", "-q", "-m", "second")
    copied(client, "git", "-C", str(tmp_path / "second"), "push", "-q")
    copied(client, "git", "-C", str(first), "pull", "-q", f"{HOST}:{AWAY}/shared.git", "trunk")
    assert (first / "new").read_text() == "new\n"
    assert access.place.inside(f"git -C {AWAY}/shared.git log --format=%s trunk") == "second\nfirst"
    access.place.completed(run.id)


def test_git_clones_the_workspaces_own_repository(
    access: SshAccess, client: Client, tmp_path: Path
) -> None:
    url = f"ssh://{HOST}{REPOSITORY}"
    copied(client, "git", "clone", "-q", url, str(tmp_path / "clone"))
    head = access.place.inside(f"git -C {REPOSITORY} rev-parse HEAD")
    assert git(tmp_path / "clone", "rev-parse", "HEAD") == head


def test_git_says_that_there_is_no_such_repository(client: Client, tmp_path: Path) -> None:
    done = client.run("git", "clone", "-q", f"{HOST}:/no/such.git", str(tmp_path / "clone"))
    assert done.code == 128
    assert "does not appear to be a git repository" in done.err
