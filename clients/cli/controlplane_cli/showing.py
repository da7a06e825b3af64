"""What people see: tables, a progress line, moments, and JSON for programs."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from controlplane_client import WorkspaceInfo

COLOURS = {
    "ready": "green",
    "completed": "green",
    "failed": "red",
    "queued": "yellow",
    "running": "yellow",
}


def printable(text: str) -> str:
    """Return a text that others wrote, without what a terminal would carry out."""
    return "".join(each if each.isprintable() or each == "\n" else "�" for each in text)


def as_json(value: Any) -> None:
    """Print JSON."""
    click.echo(json.dumps(value, indent=2))


def table(rows: list[list[str]], *titles: str, flexible: str) -> None:
    """Print rows, of each cell its first line, and nothing that a terminal would carry out.

    Of what does not fit, ``flexible`` is cut, as ids are there to be copied.
    """
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for title, *cells in zip(titles, *rows, strict=True):
        least = None if title == flexible else max(map(len, [title, *cells]))
        shown.add_column(title, no_wrap=True, overflow="ellipsis", min_width=least)
    for row in rows:
        shown.add_row(*(_coloured(cell) for cell in row))
    console = Console()
    if console.is_terminal:
        console.print(shown)
        return
    console.width = 1000  # programs that read it get all of it
    with console.capture() as captured:
        console.print(shown)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def _coloured(cell: str) -> Text:
    first, _, _ = cell.partition("\n")
    return Text(printable(first), style=COLOURS.get(cell, ""))


def ago(moment: datetime | None) -> str:
    """Return how long ago something was, in the largest unit that fits."""
    if moment is None:
        return ""
    seconds = max(0, int((datetime.now(timezone.utc) - moment).total_seconds()))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


class Progress:
    """A line at the bottom of a terminal that says what is waited for; nothing elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status = self._console.status("") if self._console.is_terminal else None
        self._rest = ""
        self._since = time.monotonic()

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def of(self, info: WorkspaceInfo) -> None:
        """Show how a workspace stands."""
        told = info.reason.message if info.reason else info.status
        self.says(told)

    def says(self, text: str) -> None:
        """Show a sentence."""
        if self._status is not None:
            room = max(20, self._console.width - 12)
            seconds = int(time.monotonic() - self._since)
            short = text if len(text) <= room else text[: room - 1] + "…"
            self._status.update(f"{seconds}s " + short.replace("[", r"\["))

    def output(self, text: str) -> None:
        """Print above the line what a build prints, in whole lines."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if self._status is not None:
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                click.echo(line, err=True)
