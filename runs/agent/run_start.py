"""What a run begins with: the environment of its program, and the first event of its record."""

from __future__ import annotations

import os
from typing import Any, Dict

from .config import Config
from .environment import environment_of
from .process import Account
from .recording import Recording
from .runspec import RunSpec


def environment_of_run(spec: RunSpec, config: Config) -> Dict[str, str]:
    """What the program sees: as everything in the workspace, and what this run adds."""
    env = environment_of(config, os.environ)
    if spec.terminal is not None:
        env["TERM"] = spec.terminal.term
    env.update(spec.env)
    env["SVC_RUN_ID"] = spec.run_id
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
    limits: Dict[str, Any] = {
        "spoolBytes": record.spool_bytes,
        "segmentBytes": record.segment_bytes,
    }
    if spec.time_seconds is not None:
        limits["timeSeconds"] = spec.time_seconds
    io_method = "pty" if spec.terminal else "pipe"
    coverage: Dict[str, Any] = {"io": {"state": "on", "method": io_method}}
    coverage.update(observed)
    coverage["input"] = _input_coverage(record.input, io_method)
    return {
        "version": 1,
        "runId": spec.run_id,
        "spoolId": recording.writer.spool_id,
        "mode": spec.mode,
        "workspaceId": config.workspace_id,
        "policy": record.policy,
        "limits": limits,
        "redaction": {"values": recording.masker.values, "shapes": True},
        "input": record.input,
        "isolated": account.uid != 0 and not config.sudo,
        "coverage": coverage,
    }


def _input_coverage(policy: str, method: str) -> Dict[str, str]:
    if policy == "off":
        return {"state": "off", "method": "none", "reason": "not recorded by the run's policy"}
    if policy == "masked" and method == "pty":
        reason = "what is typed without echo is counted and not recorded"
        return {"state": "limited", "method": method, "reason": reason}
    return {"state": "on", "method": method}
