"""Tables of the command line: names, reasons and processes are what others wrote."""

from __future__ import annotations

import pytest

from controlplane_cli.showing import table


def test_a_cell_is_its_first_line_without_what_a_terminal_would_carry_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    why = "It ended with \x1b]0;owned\x07[red]code\\[/] 3.\nThe end of its output: more"
    table([["one", why], ["two", ""]], "NAME", "WHY", flexible="WHY")
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        ["NAME", "WHY"],
        ["one", "It ended with �]0;owned�[red]code\\[/] 3."],
        ["two"],
    ]
