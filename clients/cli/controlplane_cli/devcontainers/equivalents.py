"""What images and features of development containers are called among the service's packages.

The names are those of ``GET /v1/packages/resolve``, which knows them in every OS family.
"""

from __future__ import annotations

import re

PYTHON = ("python", "pip", "venv")
BASE = ("git", "curl")
"""What people expect of any development container."""

IMAGES: dict[str, tuple[str, ...]] = {
    "base": BASE,
    "cpp": (*BASE, "build-essential", "cmake", "gdb"),
    "go": (*BASE, "go"),
    "golang": ("go", "git"),
    "java": (*BASE, "java"),
    "javascript-node": (*BASE, "nodejs"),
    "node": ("nodejs", "git"),
    "openjdk": ("java",),
    "eclipse-temurin": ("java",),
    "php": (*BASE, "php", "composer"),
    "python": (*PYTHON, "git"),
    "ruby": (*BASE, "ruby"),
    "rust": (*BASE, "rust"),
    "typescript-node": (*BASE, "nodejs", "typescript"),
    "universal": (*BASE, *PYTHON, "nodejs", "go", "java"),
    "alpine": (),
    "archlinux": (),
    "buildpack-deps": (*BASE, "build-essential"),
    "debian": (),
    "fedora": (),
    "ubuntu": (),
}
"""Packages for images, by the last part of their names."""

FAMILIES: dict[str, str] = {
    **dict.fromkeys(("alpine",), "alpine"),
    **dict.fromkeys(("archlinux", "arch"), "arch"),
    **dict.fromkeys(("buster", "bullseye", "bookworm", "trixie", "debian"), "debian"),
    **dict.fromkeys(("fedora",), "fedora"),
    **dict.fromkeys(("bionic", "focal", "jammy", "noble", "ubuntu"), "ubuntu"),
}
"""Words of an image's name or tag that tell its OS family."""

FEATURES: dict[str, tuple[str, ...]] = {
    "aws-cli": ("awscli",),
    "common-utils": (*BASE, "wget", "zip", "unzip", "jq", "less", "procps", "lsof", "rsync"),
    "fish": ("fish",),
    "git": ("git",),
    "git-lfs": ("git-lfs",),
    "github-cli": ("gh",),
    "go": ("go",),
    "java": ("java",),
    "node": ("nodejs",),
    "php": ("php", "composer"),
    "python": PYTHON,
    "ruby": ("ruby",),
    "rust": ("rust",),
    **{
        name: (name,)
        for name in (
            *("ansible", "bat", "cmake", "deno", "direnv", "ffmpeg", "fzf", "gradle", "httpie"),
            *("hyperfine", "jq", "maven", "neovim", "pandoc", "pipx", "pnpm", "ripgrep"),
            *("shellcheck", "shfmt", "starship", "tmux", "tree", "typescript", "uv", "vim"),
            *("yarn", "yq", "zig", "zoxide", "zsh"),
        )
    },
}
"""Packages for features, by the last part of their names."""

LISTS_OF_PACKAGES = {"apt", "apt-get-packages", "apt-packages"}
"""Features whose option ``packages`` names what to install."""

UNPINNED = {"", "latest", "lts", "os-provided", "system", "current", "stable", "none"}
"""Values of ``version`` that ask for no version in particular."""

ADDED_BY_OPTION: dict[tuple[str, str], str] = {
    ("common-utils", "installZsh"): "zsh",
    ("java", "installMaven"): "maven",
    ("java", "installGradle"): "gradle",
    ("python", "installJupyterlab"): "",
}
"""Packages that a true option of a feature asks for; empty where there is none."""


def last_part(name: str) -> tuple[str, str]:
    """Return the last part of the name of an image or a feature, and its tag."""
    rest = name.partition("@")[0].rpartition("/")[2]
    short, _, tag = rest.partition(":")
    return short.lower(), tag.lower()


def family_of(image: str) -> str | None:
    """Return the OS family that the name of an image tells."""
    short, tag = last_part(image)
    words = re.findall(r"[a-z]+", f"{short} {tag}")
    return next((FAMILIES[word] for word in words if word in FAMILIES), None)
