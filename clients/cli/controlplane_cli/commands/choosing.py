"""Commands that say which service is asked, and for whom."""

from __future__ import annotations

import click

from controlplane_cli.contexts import config_path, read_config, write_config
from controlplane_cli.executing import plain
from controlplane_cli.session import Session, json_option
from controlplane_cli.showing import as_json


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def config(context: click.Context) -> None:
    """Show or change which service is asked, and for whom."""
    if context.invoked_subcommand is not None:
        return
    session = context.ensure_object(Session)
    told, now = read_config(), session.context
    if session.json:
        as_json({"file": str(config_path()), "used": plain(now), **told})
        return
    click.echo(f"{now.base_url} for {now.owner} (from: {now.name}; file: {config_path()})")
    for name, each in sorted(told["contexts"].items()):
        mark = "*" if name == told.get("current") else " "
        click.echo(f"{mark} {name}  {each['baseUrl']}  {each.get('owner', '')}")


@config.command("set")
@click.argument("name")
@click.option("--url", required=True, help="URL of the API.")
@click.option("--owner", help="The owner to act for.")
def config_set(name: str, url: str, owner: str | None) -> None:
    """Add or change the context NAME, and use it."""
    told = read_config()
    told["contexts"][name] = {"baseUrl": url, **({"owner": owner} if owner else {})}
    write_config({**told, "current": name})


@config.command("use")
@click.argument("name")
def config_use(name: str) -> None:
    """Use the context NAME from now on."""
    told = read_config()
    if name not in told["contexts"]:
        raise click.ClickException(f"there is no context {name}")
    write_config({**told, "current": name})


@config.command("rm")
@click.argument("name")
def config_rm(name: str) -> None:
    """Remove the context NAME."""
    told = read_config()
    told["contexts"].pop(name, None)
    write_config({**told, "current": None if told.get("current") == name else told.get("current")})
