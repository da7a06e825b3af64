"""Fedora."""

from __future__ import annotations

import re

from .family import OsFamily

FEDORA = OsFamily(
    name="fedora",
    title="Fedora",
    package_manager="dnf",
    libc="glibc",
    base_packages=(
        "bash",
        "ca-certificates",
        "coreutils",
        "curl",
        "findutils",
        "git-core",
        "gzip",
        "less",
        "openssh-clients",
        # The SFTP server has no package of its own; nothing starts the daemon.
        "openssh-server",
        "procps-ng",
        "python3",
        "rsync",
        "shadow-utils",
        "sudo",
        "tar",
        "unzip",
        "util-linux",
        "xz",
    ),
    anchors="/etc/pki/ca-trust/source/anchors",
    certificates="/etc/pki/tls/certs/ca-bundle.crt",
    shells={"bash": "/bin/bash", "zsh": "/usr/bin/zsh", "fish": "/usr/bin/fish"},
    # No globs, groups ("@name"), capabilities ("perl(X)") or paths, all of which dnf would take.
    package_name=re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*"),
    lower_case_names=False,
    pin="{name}-{version}",
    dotfiles_packages={"stow": ("stow",)},
)
