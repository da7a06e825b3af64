"""Commands in workspaces as if they ran here: output, input, ctrl-C, exit code."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import click

from controlplane_cli.interrupts import LEFT, first_for
from controlplane_cli.session import Session
from controlplane_cli.showing import as_json
from controlplane_client import Conflict, ControlPlaneError, Run, RunInfo, StreamEvent
from controlplane_client.errors import INPUT_IS_OVER


def exit_code(info: RunInfo) -> int:
    """Return what a shell would say: the exit code, or 128 and the signal's number."""
    if info.exit_code is not None:
        return info.exit_code
    if info.exit_signal is not None:
        with suppress(KeyError):
            return 128 + int(signal.Signals[info.exit_signal])
    return LEFT if info.status == "cancelled" else 125


def follow(session: Session, run: Run, *, with_input: bool = False) -> int:
    """Show what a run writes until it ends, and return its exit code.

    The first ctrl-C interrupts the command, the second leaves it to itself.
    """

    def interrupt() -> None:
        with suppress(ControlPlaneError):
            run.signal("INT")

    outputs = {"stdout": sys.stdout.buffer, "pty": sys.stdout.buffer, "stderr": sys.stderr.buffer}
    kept = {"stdout": bytearray(), "stderr": bytearray()}
    try:
        with first_for(interrupt):
            for event in _with_input(session, run) if with_input else run.follow():
                stream = event.stream or ""
                if session.json:
                    if stream in kept:
                        kept[stream] += event.content
                elif stream in outputs:
                    outputs[stream].write(event.content)
                    outputs[stream].flush()
    except KeyboardInterrupt:
        click.echo(
            f"\ndetached; the command keeps running: svc logs -f {run.id}, svc cancel {run.id}",
            err=True,
        )
        return LEFT
    info = run.info if run.info is not None and run.info.ended else run.refresh()
    if session.json:
        as_json(_told(info, kept))
    else:
        tell_failure(info)
    return exit_code(info)


def tell_failure(info: RunInfo) -> None:
    """Say why a run failed, unless that was its command, which has said so itself."""
    if info.error and info.error_code not in ("run-exited", "run-signaled"):
        click.echo(f"svc: {info.error} ({info.error_code})", err=True)


def _told(info: RunInfo, kept: dict[str, bytearray]) -> dict[str, Any]:
    return info.raw | {name: each.decode("utf-8", "replace") for name, each in kept.items()}


def _with_input(session: Session, run: Run) -> Iterator[StreamEvent]:
    """Follow a run while it is given standard input; raise what either of both fails of."""
    # Two threads, as neither the service nor standard input can be told to stop waiting.
    told: queue.Queue[StreamEvent | Exception | None] = queue.Queue(maxsize=100)

    def follow() -> None:
        try:
            for event in run.follow():
                told.put(event)
        except Exception as error:
            told.put(error)
        told.put(None)

    def give() -> None:
        try:
            _give_input(run)
        except Exception as error:
            if not session.json:
                how = f"svc logs -f {run.id}, svc cancel {run.id}"
                text = f"svc: its input ended early; the command keeps running: {how}"
                click.echo(text, err=True)
            told.put(error)

    for each in (follow, give):
        threading.Thread(target=each, daemon=True).start()
    while (item := told.get()) is not None:
        if isinstance(item, Exception):
            raise item
        yield item


def _give_input(run: Run) -> None:
    try:
        while part := os.read(sys.stdin.fileno(), 65536):
            run.write(part)
        run.close_stdin()
    except Conflict as problem:
        if problem.code not in INPUT_IS_OVER:
            raise


def plain(value: Any) -> dict[str, Any]:
    """Return a value of the client as JSON has it."""
    return {name: each for name, each in asdict(value).items() if name != "raw"}
