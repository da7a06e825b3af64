"""What a run begins with: the environment of its program, and the first event of its record."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from ..config import Config
from ..credentials.child_environment import environment_of
from ..process.program import Account
from ..record.recording import Recording
from .runspec import Program, RunSpec


def environment_of_run(spec: RunSpec, config: Config) -> Dict[str, str]:
    """What every program of the run sees: as all in the workspace, and what this run adds."""
    env = environment_of(config, os.environ)
    if spec.origin is not None:
        # Programs look at these to know that they are used from afar; ours is the usual port.
        address, port = spec.origin["address"], spec.origin["port"]
        env["SSH_CLIENT"] = f"{address} {port} 22"
        env["SSH_CONNECTION"] = f"{address} {port} 127.0.0.1 22"
    env.update(spec.env)
    env["SVC_RUN_ID"] = spec.run_id
    return env


def environment_of_program(
    run: Dict[str, str], program: Program, terminal: Optional[str]
) -> Dict[str, str]:
    """What one program of the run sees; `terminal` is the name of its terminal's device."""
    env = dict(run)
    if program.terminal is not None:
        env["TERM"] = program.terminal.term
    if terminal is not None and program.kind is not None:
        env["SSH_TTY"] = terminal
    env.update(program.env)
    env["SVC_RUN_ID"] = run["SVC_RUN_ID"]
    return env


def record_started(
    spec: RunSpec,
    config: Config,
    recording: Recording,
    account: Account,
    observed: Dict[str, Dict[str, Any]],
) -> Dict[str, Any]:
    """What is recorded, and how; `observed` is the coverage of the observers."""
    record = spec.record
    assert record is not None
    limits: Dict[str, Any] = {
        "spoolBytes": record.spool_bytes,
        "segmentBytes": record.segment_bytes,
    }
    if spec.time_seconds is not None:
        limits["timeSeconds"] = spec.time_seconds
    # A session's programs come later, each with a terminal or pipes.
    terminal = spec.program is not None and spec.program.terminal is not None
    io_method = "pty" if spec.mode == "interactive" or terminal else "pipe"
    coverage: Dict[str, Any] = {"io": {"state": "on", "method": io_method}}
    coverage.update(observed)
    coverage["input"] = _input_coverage(record.input, io_method)
    meta: Dict[str, Any] = {
        "version": 1,
        "runId": spec.run_id,
        "spoolId": recording.spool_id,
        "mode": spec.mode,
        "workspaceId": config.workspace_id,
        "policy": record.policy,
        "limits": limits,
        "redaction": {"values": recording.masker.values, "shapes": True},
        "input": record.input,
        "isolated": account.uid != 0 and not config.sudo,
        "coverage": coverage,
    }
    if spec.origin is not None:
        meta["origin"] = spec.origin
    return meta


def _input_coverage(policy: str, method: str) -> Dict[str, str]:
    if policy == "off":
        return {"state": "off", "method": "none", "reason": "not recorded by the run's policy"}
    if policy == "masked" and method == "pty":
        reason = "what is typed without echo is counted and not recorded"
        return {"state": "limited", "method": method, "reason": reason}
    return {"state": "on", "method": method}
