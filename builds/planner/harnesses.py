"""The harnesses, as data: what installs each, what starts it, what runs one prompt.

Versions are pinned, so that the same plan gives the same image on every day. All three npm
packages carry native programs for glibc and for musl; Debian's npm 9 does not know the ``libc``
member of a package and installs both, hence :attr:`Harness.superfluous`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Harness:
    """One harness that the control plane knows."""

    id: str
    npm_packages: tuple[str, ...]
    """Installed globally, each as ``name@version``."""
    packages: Mapping[str, tuple[str, ...]]
    """What it needs of the distribution, by family. It cannot be installed on other families."""
    superfluous: Mapping[str, tuple[str, ...]]
    """By libc: folders below npm's global ``node_modules`` that are of no use with it."""
    command: tuple[str, ...]
    """Starts the harness."""
    one_shot: tuple[str, ...]
    """Runs one prompt, which is appended as the last argument."""


_NODE: Final = MappingProxyType(
    {
        "debian": ("nodejs", "npm"),
        "ubuntu": ("nodejs", "npm"),
        "fedora": ("nodejs", "nodejs-npm"),
        "arch": ("nodejs", "npm"),
        # Programs made with Bun link these two on musl; the harnesses' own ripgrep is for glibc.
        "alpine": ("nodejs", "npm", "libgcc", "libstdc++", "ripgrep"),
    }
)


def _other_libc(glibc: tuple[str, ...], musl: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({"glibc": musl, "musl": glibc})


OPENCODE: Final = Harness(
    id="opencode",
    npm_packages=("opencode-ai@1.18.33",),
    packages=_NODE,
    superfluous=MappingProxyType({}),
    command=("opencode",),
    one_shot=("opencode", "run"),
)

CODEX: Final = Harness(
    id="codex",
    npm_packages=("@openai/codex@0.169.0",),
    packages=_NODE,
    superfluous=MappingProxyType({}),
    command=("codex",),
    one_shot=("codex", "exec"),
)

CLAUDE_CODE: Final = Harness(
    id="claude-code",
    npm_packages=("@anthropic-ai/claude-code@2.1.329",),
    packages=_NODE,
    superfluous=_other_libc(
        glibc=(
            "@anthropic-ai/claude-code/node_modules/@anthropic-ai/claude-code-linux-arm64",
            "@anthropic-ai/claude-code/node_modules/@anthropic-ai/claude-code-linux-x64",
        ),
        musl=(
            "@anthropic-ai/claude-code/node_modules/@anthropic-ai/claude-code-linux-arm64-musl",
            "@anthropic-ai/claude-code/node_modules/@anthropic-ai/claude-code-linux-x64-musl",
        ),
    ),
    command=("claude",),
    one_shot=("claude", "-p"),
)

SHELL: Final = Harness(
    id="shell",
    npm_packages=(),
    packages=MappingProxyType(dict.fromkeys(_NODE, ())),
    superfluous=MappingProxyType({}),
    command=(),
    one_shot=("bash", "-lc"),
)

HARNESSES: Final[Mapping[str, Harness]] = MappingProxyType(
    {harness.id: harness for harness in (OPENCODE, CODEX, CLAUDE_CODE, SHELL)}
)
