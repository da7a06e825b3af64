"""The archive that images get: the same bytes for the same sources, needing nothing else."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs.agent_archive import agent_archive, agent_digest
from tests.runs.agent import booted
from tests.runs.agent.booted import PYTHON, Workspace

PACKAGE = Path(__file__).parents[3] / "runs" / "agent"
SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    """Its archive is as it was copied into an image: nothing is compiled yet."""
    with booted.workspace(compiled=False) as made:
        yield made


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    # Another folder, another order of creation, other modes and times, another process.
    copied = tmp_path / "runs"
    for path in reversed(SOURCES):
        place = copied / "agent" / path.relative_to(PACKAGE)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
        place.chmod(0o600)
        os.utime(place, (0, 0))
    shutil.copy(PACKAGE.parent / "agent_archive.py", copied)
    (copied / "agent" / "__pycache__").mkdir()
    (copied / "agent" / "__pycache__" / "boot.cpython-311.pyc").write_bytes(b"compiled")
    digest = subprocess.run(
        [sys.executable, "-c", "import agent_archive; print(agent_archive.agent_digest())"],
        cwd=copied,
        env={"PYTHONPATH": str(copied)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert digest == agent_digest()


def test_the_digest_is_the_sha_256_of_the_archive() -> None:
    assert agent_digest() == hashlib.sha256(agent_archive()).hexdigest()


def test_it_starts_isolated_from_the_users_python() -> None:
    assert agent_archive().startswith(b"#!/usr/bin/python3 -IS\n")


def test_entries_are_sorted_and_without_traces_of_this_machine() -> None:
    with zipfile.ZipFile(io.BytesIO(agent_archive())) as archive:
        entries = archive.infolist()
    assert [entry.filename for entry in entries] == sorted(entry.filename for entry in entries)
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    assert {entry.external_attr for entry in entries} == {0o100644 << 16}
    assert all(entry.filename.endswith(".py") for entry in entries)


def test_it_runs_from_anywhere_and_reads_nothing_of_the_project(workspace: Workspace) -> None:
    ended = subprocess.run(
        [PYTHON, "-I", str(workspace.archive), "status", "--state-dir", str(workspace.root)],
        cwd="/",
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 3
    assert '"phase": "starting"' in ended.stdout


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_its_sources_are_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_its_sources_import_themselves_and_the_standard_library_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported = [node.module or ""]
        else:
            continue
        for name in imported:
            assert name.partition(".")[0] in sys.stdlib_module_names, name


def test_compiled_it_gives_the_same_answers_without_compiling_again(workspace: Workspace) -> None:
    started = [PYTHON, "-ISv", str(workspace.archive), "status", "--state-dir", str(workspace.root)]

    def loaders() -> set[str]:
        told = subprocess.run(started, capture_output=True, text=True, check=False)
        assert (told.returncode, '"phase": "starting"' in told.stdout) == (3, True)
        found = re.findall(r"^import 'agent[.a-z_]*' # <(?:class ')?(\S+?)[ >']", told.stderr, re.M)
        return {loader.rpartition(".")[2] for loader in found}

    assert loaders() == {"zipimporter"}
    _compile(workspace.archive)
    assert loaders() == {"SourcelessFileLoader"}


def test_what_was_compiled_of_another_archive_is_not_used(workspace: Workspace) -> None:
    _compile(workspace.archive)
    (compiled,) = workspace.archive.parent.glob(f"{workspace.archive.name}.*")
    for module in compiled.rglob("*.pyc"):
        module.write_bytes(b"not what these sources say")
    other = workspace.archive.read_bytes().replace(compiled.name.split(".")[-2].encode(), b"0" * 16)
    workspace.archive.write_bytes(other)
    assert _told(workspace.archive, "status", "--state-dir", str(workspace.root)).returncode == 3


def test_compiling_leaves_byte_code_that_everybody_can_read_and_nothing_else(
    workspace: Workspace,
) -> None:
    before = set(workspace.archive.parent.iterdir())
    for _ in range(2):
        _compile(workspace.archive)
    (compiled,) = set(workspace.archive.parent.iterdir()) - before
    made = {path.relative_to(compiled).as_posix() for path in compiled.rglob("*.pyc")}
    assert made == {f"agent/{path.relative_to(PACKAGE).as_posix()}c" for path in SOURCES}
    modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in compiled.rglob("*")}
    assert (modes, compiled.stat().st_mode & 0o777) == ({True: 0o755, False: 0o644}, 0o755)


def test_a_package_that_is_no_archive_is_not_compiled() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "runs.agent", "compile"],
        cwd=PACKAGE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, told.stderr) == (1, "agent: only an archive is compiled\n")


def _told(archive: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    started = [PYTHON, "-IS", str(archive), *arguments]
    return subprocess.run(started, capture_output=True, text=True, check=False)


def _compile(archive: Path) -> None:
    told = _told(archive, "compile")
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")
