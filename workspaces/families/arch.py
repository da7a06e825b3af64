"""Arch Linux: a rolling release, so there is only one version of a package: the newest."""

from __future__ import annotations

import re

from .family import OsFamily

ARCH = OsFamily(
    name="arch",
    title="Arch Linux",
    package_manager="pacman",
    libc="glibc",
    base_packages=(
        "bash",
        "ca-certificates",
        "coreutils",
        "curl",
        "git",
        "gzip",
        "less",
        "openssh",
        "procps-ng",
        "python",
        "rsync",
        "shadow",
        "sudo",
        "tar",
        "unzip",
        "util-linux",
        "xz",
    ),
    anchors="/etc/ca-certificates/trust-source/anchors",
    certificates="/etc/ssl/certs/ca-certificates.crt",
    shells={"bash": "/bin/bash", "zsh": "/usr/bin/zsh", "fish": "/usr/bin/fish"},
    # Without "repository/name" and without version comparisons.
    package_name=re.compile(r"[a-z0-9][a-z0-9@._+-]*"),
    lower_case_names=True,
    pin=None,
    dotfiles_packages={"stow": ("stow",), "chezmoi": ("chezmoi",)},
)
