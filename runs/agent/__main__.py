"""The command line: `boot` (the container's entry), `status`, and `dotfiles` (for `boot`).

Exit codes are part of the contract and are listed in the package's README.
"""

from __future__ import annotations

import argparse
import sys
from typing import List, Optional

CONFIG_PATH = "/etc/svc/boot.json"
STATE_DIRECTORY = "/var/lib/svc"


def main(arguments: Optional[List[str]] = None) -> int:
    """Run one subcommand and return the exit code of the process."""
    options = _parser().parse_args(arguments)
    if options.subcommand == "boot":
        from .boot import boot

        return boot(options.config, options.state_dir)
    if options.subcommand == "status":
        from .status_command import show

        return show(options.state_dir, options.wait)
    from .dotfiles import apply

    return apply(options.source, options.manager, options.home, options.target)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agent", description=__doc__, allow_abbrev=False)
    subcommands = parser.add_subparsers(dest="subcommand", required=True)

    boot = subcommands.add_parser("boot", help="start the workspace; the container's entry")
    boot.add_argument("--config", default=CONFIG_PATH, help="what to start (default: %(default)s)")
    boot.add_argument("--state-dir", default=STATE_DIRECTORY, help="default: %(default)s")

    status = subcommands.add_parser("status", help="print the status of the boot as JSON")
    status.add_argument("--wait", type=float, default=0.0, metavar="SECONDS")
    status.add_argument("--state-dir", default=STATE_DIRECTORY, help="default: %(default)s")

    dotfiles = subcommands.add_parser("dotfiles", help="apply a dotfiles checkout as this user")
    dotfiles.add_argument("--source", required=True)
    dotfiles.add_argument("--manager", required=True, choices=["auto", "copy", "stow", "chezmoi"])
    dotfiles.add_argument("--home", required=True)
    dotfiles.add_argument("--target", required=True, choices=["home", "config"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
