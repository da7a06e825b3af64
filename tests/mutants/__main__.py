"""``make mutants``: change the modules that keep promises, and say what no test noticed.

Exit code 0, whatever survived; 1 when a group could not be measured: its tests fail unchanged.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.mutants.changes import Change, changes_of, is_quick
from tests.mutants.groups import GROUPS, Group

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")


def main(arguments: list[str]) -> int:
    """Measure the groups that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="group", help=", ".join(GROUPS))
    parser.add_argument("--limit", type=int, default=40, help="changes of a group; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="which changes, where not all")
    parser.add_argument("--quick", action="store_true", help="none that imports a module anew")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and so end what was started
    if unknown := sorted(set(chosen.groups) - set(GROUPS)):
        parser.error(f"There is no group {', '.join(unknown)}. The groups: {', '.join(GROUPS)}.")
    total = [0, 0]
    failed = False
    for name in chosen.groups or GROUPS:
        counted = _measure(
            name, sample(GROUPS[name], chosen.limit, seed=chosen.seed, quick=chosen.quick)
        )
        failed |= counted is None
        total = [sum(pair) for pair in zip(total, counted or (0, 0), strict=True)]
    _write(f"all: {_share(*total)}")
    return int(failed)


def equivalent() -> list[dict[str, Any]]:
    """Return the changes that need no test, each with the reason.

    An entry has the ``module`` and as much of ``function``, ``before`` and ``after`` as it takes;
    each may also be a list.
    """
    entries: list[dict[str, Any]] = tomllib.loads(EQUIVALENT.read_text()).get("change", [])
    return entries


def is_equivalent(change: Change, entries: list[dict[str, Any]]) -> bool:
    """Whether a change is among those that need no test."""
    return any(
        all(
            getattr(change, name) in ([given] if isinstance(given, str) else given)
            for name, given in entry.items()
            if name != "reason"
        )
        for entry in entries
    )


def sample(group: Group, limit: int, *, seed: int, quick: bool) -> list[Change]:
    """Choose up to ``limit`` changes of a group that need a test, in the order of the modules.

    With ``quick`` only of those that a process is given which has imported the module already.
    """
    entries = equivalent()
    changes = [
        change
        for module in group.modules
        for source in [(ROOT / module).read_bytes()]
        for change in changes_of(module, source)
        if not is_equivalent(change, entries) and (is_quick(change, source) or not quick)
    ]
    if not 0 < limit < len(changes):
        return changes
    picked = sorted(random.Random(seed).sample(range(len(changes)), limit))
    return [changes[place] for place in picked]


def measure(root: Path, changes: list[Change], tests: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Run the tests for each change in a copy of the tree; yield the results as they come."""
    with tempfile.TemporaryDirectory(prefix="svc-mutants-") as folder:
        copy = Path(folder) / "tree"
        copy_tree(root, copy)
        plan, results, log = (Path(folder) / name for name in ("plan", "results", "log"))
        plan.write_text(json.dumps([asdict(change) for change in changes]))
        results.touch()
        options = ["-s", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.session"]
        files = ["--rootdir=.", f"--mutants={plan}", f"--mutants-results={results}"]
        # Made anew by the first run, and used again by all others.
        options += ["--create-db", "--reuse-db"]
        command = [sys.executable, "-m", "pytest", *options, *files, *tests]
        with log.open("wb") as output, results.open() as lines:
            # Options that are meant for the tests' own run say nothing here.
            env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
            process = subprocess.Popen(command, cwd=copy, env=env, stdout=output, stderr=output)
            try:
                seen = 0
                while process.poll() is None or seen < 1:
                    for line in iter(lines.readline, ""):
                        seen += 1
                        yield json.loads(line)
                    if process.poll() is not None:
                        break
                    _pause(process)
                for line in iter(lines.readline, ""):
                    yield json.loads(line)
            finally:
                process.terminate()
                process.wait()
        if process.returncode:
            raise ChildProcessError(log.read_text()[-3000:])


def copy_tree(root: Path, copy: Path) -> None:
    """Copy what belongs to the checkout, as it is now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (root / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)


def _pause(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        return


def _measure(name: str, changes: list[Change]) -> tuple[int, int] | None:
    """Measure a group; return how many changes were caught, and how many made."""
    caught = 0
    try:
        results = measure(ROOT, changes, GROUPS[name].tests)
        unchanged = next(results)
        if unchanged["failed"] or not unchanged["tests"]:
            _write(f"{name}: its tests fail unchanged: {', '.join(unchanged['failed'])}")
            return None
        _write(f"{name}: {unchanged['tests']} tests, {unchanged['unchanged']:.1f} s unchanged")
        for change, result in zip(changes, results, strict=True):
            caught += result["verdict"] != "survived"
            _write(_line(change, result))
    except (ChildProcessError, StopIteration) as error:
        _write(f"{name}: could not be measured: {error}")
        return None
    _write(f"{name}: {_share(caught, len(changes))}\n")
    return caught, len(changes)


def _line(change: Change, result: dict[str, Any]) -> str:
    place = f"{change.module}:{change.line} {change.function}".rstrip()
    line = f"  {result['verdict']:8} {result['seconds']:5.1f} s  {place}"
    if result["verdict"] == "survived":
        source = (ROOT / change.module).read_bytes()
        return line + "\n" + change.diff(source).replace("\n", "\n    ").join(["    ", ""])
    return line + "  " + " ".join(result["by"])


def _share(caught: int, made: int) -> str:
    return f"{caught} of {made} caught ({100 * caught // made if made else 100} %)"


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
