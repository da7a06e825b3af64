"""Other programs run by the set-up: their output goes to a log, its end into the error."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.services.errors import SetupError
from deploy.services.process import tail


def run_logged(
    argv: Sequence[str | Path],
    *,
    log: Path,
    seconds: float,
    env: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> None:
    """Run a program to its end. Raises SetupError, with the end of its output, when it fails."""
    command = [str(argument) for argument in argv]
    with log.open("ab") as file:
        file.write(f"\n=== {time.strftime('%F %T')} {shlex.join(command)}\n".encode())
        file.flush()
        start = file.tell()
        try:
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=dict(os.environ if env is None else env),
                cwd=directory,
                timeout=seconds,
                check=False,
            ).returncode
            ending = f"exit code {code}" if code >= 0 else f"signal {-code}"
        except subprocess.TimeoutExpired:
            code, ending = 1, f"not done after {seconds:.0f} s"
        except OSError as error:
            code, ending = 1, str(error)
    if code != 0:
        printed = tail(log) if log.stat().st_size > start else ""
        raise SetupError(f"`{shlex.join(command[:4])}` failed: {ending}.\n{printed}\nLog: {log}")
