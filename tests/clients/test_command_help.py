"""The help pages of ``svc``: one for each command, whichever module it is in."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from controlplane_cli.main import cli

COMMANDS = [
    *("attach", "cancel", "completion", "config", "config rm", "config set", "config use", "cp"),
    *("diff", "exec", "logs", "ls", "mcp", "ports", "replay", "rm", "run", "ssh", "start", "stop"),
    *("up", "verify"),
]


def _below(group: click.Group, *before: str) -> Iterator[str]:
    for name, command in group.commands.items():
        yield " ".join((*before, name))
        if isinstance(command, click.Group):
            yield from _below(command, *before, name)


def test_the_commands_of_svc_are_these() -> None:
    assert sorted(_below(cli)) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_page_that_says_what_it_does(name: str) -> None:
    page = CliRunner().invoke(cli, [*name.split(), "--help"], prog_name="svc")
    assert page.exit_code == 0, page.output
    usage, _, rest = page.output.partition("\n\n")
    assert usage.startswith(f"Usage: svc {name}"), usage
    # Between the usage and the options.
    told, _, options = rest.partition("\n\nOptions:\n")
    assert told.strip().endswith((".", '"')), page.output
    assert "--help" in options


def test_every_command_is_listed_with_a_line_that_is_not_cut_off() -> None:
    page = CliRunner().invoke(cli, ["--help"], prog_name="svc")
    listed = page.output.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == [each for each in COMMANDS if " " not in each]
    for line in listed:
        assert line.endswith("."), line
        assert not line.endswith("..."), line
