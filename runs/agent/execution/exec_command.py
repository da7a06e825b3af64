"""`agent exec`: a one-shot run under a supervisor that outlives whoever started it.

The supervisor answers over a pipe once the run's spool exists durably and the program has been
started, or when there will be no run. Its caller passes the answer on; that the caller dies
changes nothing.
With `--then tail` the caller then is the run's `tail`, so that one call does for the whole run.
"""

from __future__ import annotations

import json
import os
import signal
import struct
from typing import Any, Callable, Dict, List, NoReturn

from ..config import Config, ConfigError, load
from ..credentials.child_environment import account_of
from ..record.spool import SpoolExists, SpoolFailed, SpoolLimits, SpoolWriter
from ..record.spool_folder import refuse_existing
from .execution import Execution
from .runspec import MAX_BYTES, RecordSpec, RunSpec, parse_one_shot

EXIT_REFUSED = 2
EXIT_NOT_RECORDED = 3


_LENGTH = struct.Struct("!I")


def execute(config_path: str, state_directory: str, *, follow: bool = False) -> int:
    """Read the spec from stdin, start the run, print one line of JSON; returns the exit code.

    `follow`: the spec's length comes before it, as the acknowledgements of a `tail` come behind it.
    """
    try:
        content = _read_counted(0) if follow else read_spec(0)
        config = load(config_path)
        spec = parse_one_shot(content)
        account_of(config)
    except ConfigError as error:
        return _print({"state": "refused", "message": str(error)})
    answer_read, answer_write = os.pipe()
    # Nobody waits for the supervisor here: the kernel reaps it, or PID 1 does when we are gone.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(answer_read)
        _detach(lambda: _supervise(spec, config, state_directory, answer_write))
    os.close(answer_write)
    with os.fdopen(answer_read, "rb") as pipe:
        line = pipe.readline()
    answer = json.loads(line) if line else _left_by_dead(spec.run_id, state_directory)
    code = _print(answer, EXIT_NOT_RECORDED if answer["state"] == "refused" else 0)
    if not follow or code:
        return code
    from ..record.follow import tail

    return tail(runs_root(state_directory), spec.run_id, 1)


def _left_by_dead(run_id: str, state_directory: str) -> Dict[str, str]:
    """What to answer for a supervisor that died without a word: its program may have begun.

    Once there is a spool the run is recorded, and whoever reads it seals it.
    """
    try:
        refuse_existing(runs_root(state_directory), run_id)
    except SpoolExists as error:
        return {"state": "exists", "spoolId": error.spool_id}
    except NotADirectoryError:
        pass  # there is no folder for spools
    except OSError:
        # There is something that cannot be read; its reader says what.
        return {"state": "exists", "spoolId": ""}
    message = "the recorder ended before it could start the run"
    return {"state": "refused", "message": message}


def open_spool(spec: RunSpec, record: RecordSpec, state_directory: str) -> SpoolWriter:
    """Create the run's spool.

    Raises SpoolExists when the run has one already, and SpoolFailed or OSError when it cannot be
    recorded.
    """
    root = runs_root(state_directory)
    os.makedirs(root, mode=0o700, exist_ok=True)
    limits = SpoolLimits(record.spool_bytes, record.segment_bytes)
    return SpoolWriter.create(root, spec.run_id, limits, spec.mode)


def runs_root(state_directory: str) -> str:
    """Where the spools of all runs lie."""
    return os.path.join(os.path.abspath(state_directory), "runs")


def read_spec(fd: int) -> bytes:
    """Everything from a descriptor up to its end; raises ConfigError when that is too much."""
    parts: List[bytes] = []
    size = 0
    while size <= MAX_BYTES:
        part = os.read(fd, 65536)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    raise ConfigError(f"the spec is longer than {MAX_BYTES} bytes")


def _read_counted(fd: int) -> bytes:
    (size,) = _LENGTH.unpack(_read_exactly(fd, _LENGTH.size))
    if size > MAX_BYTES:
        raise ConfigError(f"the spec is longer than {MAX_BYTES} bytes")
    return _read_exactly(fd, size)


def _read_exactly(fd: int, size: int) -> bytes:
    parts: List[bytes] = []
    while size:
        part = os.read(fd, min(size, 65536))
        if not part:
            raise ConfigError("the spec is cut off")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _print(answer: Dict[str, Any], code: int = EXIT_REFUSED) -> int:
    print(json.dumps(answer), flush=True)
    return code


def _detach(work: Callable[[], None]) -> NoReturn:
    """Do the work in a forked process: without the caller's session, terminal and descriptors."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)
        os.chdir("/")
        os.umask(0o022)
        work()
    finally:
        os._exit(0)


def _supervise(spec: RunSpec, config: Config, state_directory: str, answer_fd: int) -> None:
    def answer(**members: str) -> None:
        try:
            os.write(answer_fd, json.dumps(members).encode() + b"\n")
        except BrokenPipeError:
            pass
        os.close(answer_fd)

    assert spec.record is not None
    try:
        writer = open_spool(spec, spec.record, state_directory)
    except SpoolExists as error:
        answer(state="exists", spoolId=getattr(error, "spool_id", ""))
        return
    except (SpoolFailed, OSError) as error:
        answer(state="refused", message=f"the run cannot be recorded: {error}")
        return
    try:
        execution = Execution(spec, config, writer, runs_root(state_directory))
        execution.begin()
    except Exception as error:
        # The program dies with this process; the record is sealed by whoever reads it.
        answer(state="refused", message=f"the run cannot be recorded: {error!r}")
        raise
    answer(state="started", spoolId=writer.spool_id)
    execution.finish()
