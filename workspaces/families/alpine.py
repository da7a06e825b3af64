"""Alpine Linux: musl instead of glibc, and BusyBox where no GNU tool is asked for."""

from __future__ import annotations

import re

from .family import OsFamily

ALPINE = OsFamily(
    name="alpine",
    title="Alpine Linux",
    package_manager="apk",
    libc="musl",
    base_packages=(
        "bash",
        "ca-certificates",
        "coreutils",
        "curl",
        "git",
        "less",
        "openssh-client",
        "openssh-sftp-server",
        "procps-ng",
        "python3",
        "rsync",
        "shadow",
        "sudo",
        "tar",
        "unzip",
        "util-linux",
        "xz",
    ),
    anchors="/usr/local/share/ca-certificates",
    certificates="/etc/ssl/certs/ca-certificates.crt",
    shells={"bash": "/bin/bash", "zsh": "/bin/zsh", "fish": "/usr/bin/fish"},
    # Without "name@repository", "!name" and version comparisons.
    package_name=re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*"),
    lower_case_names=False,
    pin="{name}={version}",
    dotfiles_packages={"stow": ("stow",), "chezmoi": ("chezmoi",)},
)
