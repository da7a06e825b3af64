"""Debian: the default family, and the one whose images the tests really build."""

from __future__ import annotations

import re

from .family import OsFamily

DEBIAN = OsFamily(
    name="debian",
    title="Debian",
    package_manager="apt",
    libc="glibc",
    base_packages=(
        "bash",
        "ca-certificates",
        "curl",
        "git",
        "less",
        "openssh-client",
        "openssh-sftp-server",
        "procps",
        "python3",
        "rsync",
        "sudo",
        "unzip",
        "xz-utils",
    ),
    anchors="/usr/local/share/ca-certificates",
    certificates="/etc/ssl/certs/ca-certificates.crt",
    shells={"bash": "/bin/bash", "zsh": "/usr/bin/zsh", "fish": "/usr/bin/fish"},
    # Debian Policy 5.6.1, and no "-" at the end: to apt-get that means "remove".
    package_name=re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]"),
    lower_case_names=True,
    pin="{name}={version}",
    dotfiles_packages={"stow": ("stow",)},
)
