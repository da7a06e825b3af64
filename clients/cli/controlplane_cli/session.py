"""What every command has: the client, and how workspaces and runs are named."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from controlplane_cli.contexts import Context, chosen
from controlplane_cli.naming import NotNamed, is_id, meant
from controlplane_client import Client, NotFound, Run, Workspace

F = TypeVar("F", bound=Callable[..., Any])


class Session:
    """One call of ``svc``."""

    def __init__(self) -> None:
        self._context_name: str | None = None
        self.json = False
        """Whether a program reads what is printed."""
        self.failure_code = 1
        """What to end with when it is not the command in the workspace that failed."""

    def use(self, context_name: str | None) -> None:
        """Ask the service of another context than the current one."""
        self._context_name = context_name

    @functools.cached_property
    def context(self) -> Context:
        """Which installation, and for whom."""
        return chosen(self._context_name)

    @functools.cached_property
    def client(self) -> Client:
        """The client of it."""
        address = self.context.base_url
        if not address.lower().startswith(("http://", "https://")):
            advice = "" if "://" in address else f": write http://{address}"
            raise click.ClickException(f"{address} is no URL of HTTP{advice}")
        return Client(address, self.context.owner)

    def workspace(self, name: str) -> Workspace:
        """Return a workspace by its id, its name, or the beginning or end of its id."""
        if is_id(name):
            return self.client.connect(name)
        try:
            return self.client.workspace(meant(name, list(self.client.workspaces())).id)
        except NotNamed as error:
            raise click.ClickException(f"{error}: svc ls lists your workspaces") from error

    def run(self, name: str) -> Run:
        """Return a run by its id, or the latest one of a workspace."""
        if is_id(name):
            try:
                return self.client.run(name)
            except NotFound:
                pass
        latest = next(self.workspace(name).runs(), None)
        if latest is None:
            raise click.ClickException(f"nothing has run in {name} yet")
        return self.client.run(latest.id)


pass_session = click.make_pass_decorator(Session, ensure=True)


def json_option(function: F) -> F:
    """Give a command ``--json``."""

    def told(context: click.Context, _: click.Parameter, value: bool) -> None:
        context.ensure_object(Session).json = value

    decorated: F = click.option(
        "--json", is_flag=True, expose_value=False, callback=told, help="Print JSON for programs."
    )(function)
    return decorated


def complete_workspace(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the workspaces whose names begin so, for the shell."""
    session = context.find_object(Session) or Session()
    try:
        found = list(session.client.workspaces())
    except Exception:
        return []
    return [
        CompletionItem(each.name.replace(" ", "\\ "), help=each.status)
        for each in found
        if each.name.startswith(incomplete)
    ]


def workspace_argument(function: F) -> F:
    """Give a command the argument ``WORKSPACE``."""
    decorated: F = click.argument("workspace", shell_complete=complete_workspace)(function)
    return decorated
