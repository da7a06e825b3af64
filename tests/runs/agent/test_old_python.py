"""The agent runs on the Python of whatever image it is baked into, from 3.8 on."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from pathlib import Path

import pytest

AGENT = Path(__file__).parents[3] / "runs" / "agent"
_ROUND_TRIP = """
import sys
from runs.agent.record.frames import Kind, decode, frames
from runs.agent.record.segments import Reader, open_folder
from runs.agent.record.spool import SpoolLimits, SpoolWriter
root, run = sys.argv[1:]
writer = SpoolWriter.create(root, run, SpoolLimits(1 << 20, 1 << 12), "one-shot")
for number in range(200):
    assert writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"%d" % number * 20)
    if number % 50 == 0:
        writer.flush()
writer.close()
writer = SpoolWriter.reopen(root, run)
writer.seal({"by": "agent", "reason": "ended", "exit": None})
reader, bodies = Reader(open_folder(root + "/" + run), 1), []
while True:
    batch = reader.read()
    if batch is None:
        break
    bodies += [decode(content).body for content in frames(bytes(batch.data))]
assert bodies == [b"%d" % number * 20 for number in range(200)] + [b""]
"""


def _interpreters() -> list[str]:
    named = [shutil.which(f"python3.{minor}") for minor in (8, 9)]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [str(path) for path in versions.glob("3.[89].*/bin/python3")]
    candidates += [name for name in named if name]
    found: dict[bytes, str] = {}
    for candidate in candidates:
        asked = [candidate, "-c", "import sys; print(sys.version_info[:2])"]
        told = subprocess.run(asked, capture_output=True, check=False)
        if told.returncode == 0:
            found.setdefault(told.stdout, candidate)
    return list(found.values())


@pytest.mark.parametrize(
    "path", sorted(AGENT.rglob("*.py")), ids=lambda path: str(path.relative_to(AGENT))
)
def test_every_file_is_in_the_language_of_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


def test_old_interpreters_know_every_subcommand_and_write_and_read_a_spool(tmp_path: Path) -> None:
    interpreters = _interpreters()
    if not interpreters:
        pytest.skip("no Python 3.8 or 3.9 is here")
    for number, interpreter in enumerate(interpreters):
        run = str(number)

        def call(*arguments: str, python: str = interpreter) -> str:
            told = subprocess.run(
                [python, *arguments], cwd=AGENT.parents[1], capture_output=True, check=False
            )
            assert told.returncode == 0, told.stderr.decode()
            return told.stdout.decode()

        assert "tail" in call("-m", "runs.agent", "--help")
        modules = [
            ".".join(("runs", "agent", *path.relative_to(AGENT).with_suffix("").parts))
            for path in AGENT.rglob("*.py")
            if not path.name.startswith("__")
        ]
        call("-c", "import importlib, sys; [*map(importlib.import_module, sys.argv[1:])]", *modules)
        call("-c", _ROUND_TRIP, str(tmp_path / "runs"), run)
        assert "sealed" in call("-m", "runs.agent", "verify", run, "--state-dir", str(tmp_path))
