"""The harnesses, as data: what installs each, what starts it, what runs one prompt.

Versions are pinned, so that the same plan gives the same image on every day. The npm packages
choose a native program for the machine: codex brings one that needs no libc; claude-code brings
one for glibc and one for musl; opencode has published none for musl at the pinned version, so it
is not offered on Alpine Linux. Debian's npm 9 does not heed the ``libc`` of a package and
installs both programs of claude-code, hence :attr:`Harness.superfluous`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """Runs one prompt, which is appended as the last argument.

    Nobody is there to answer questions, and the workspace is the sandbox: the harness works with
    full rights inside of it, as the user of the workspace.
    """
    read_only: tuple[str, ...] = ()
    """Runs one prompt that may only read; empty: it cannot be restricted.

    It ends with ``REFUSED`` where the harness cannot hold itself to that.
    """
    shown: str = ""
    """``one_shot`` for people, where it is not just that."""
    read_only_shown: str = ""
    """``read_only`` for people."""

    def may_refuse(self, argv: Sequence[str]) -> bool:
        """Whether this command runs a prompt that may only read."""
        count = len(self.read_only)
        return count > 0 and tuple(argv[:count]) == self.read_only


REFUSED: Final = 77
"""Exit code of a harness that does not work as it is asked to (``EX_NOPERM`` of sysexits.h)."""


_NODE_WITH_GLIBC: Final = MappingProxyType(
    {
        "debian": ("nodejs", "npm"),
        "ubuntu": ("nodejs", "npm"),
        "fedora": ("nodejs", "nodejs-npm"),
        "arch": ("nodejs", "npm"),
    }
)

# The program for musl links libgcc and libstdc++, and the ripgrep it brings is for glibc.
_NODE: Final = MappingProxyType(
    {**_NODE_WITH_GLIBC, "alpine": ("nodejs", "npm", "libgcc", "libstdc++", "ripgrep")}
)


_OPENCODE_READS: Final = (
    '{"*": "deny", "read": "allow", "glob": "allow", "grep": "allow", "list": "allow"}'
)

OPENCODE: Final = Harness(
    id="opencode",
    npm_packages=("opencode-ai@1.18.33",),
    packages=_NODE_WITH_GLIBC,
    superfluous=MappingProxyType({}),
    command=("opencode",),
    one_shot=("opencode", "run", "--auto"),
    read_only=("env", f"OPENCODE_PERMISSION={_OPENCODE_READS}", "opencode", "run"),
    read_only_shown=f"OPENCODE_PERMISSION='{_OPENCODE_READS}' opencode run",
)

_CODEX_FREELY: Final = "codex exec --dangerously-bypass-approvals-and-sandbox --skip-git-repo-check"
_CODEX_READS: Final = "codex exec --sandbox read-only --skip-git-repo-check"
_CODEX_ARGUMENTS: Final = (
    r"""${OPENAI_BASE_URL:+-c "openai_base_url=\"$OPENAI_BASE_URL\""} """
    '"$@"'
)
# Without its sandbox each of its commands would fail, and it would say that it had finished.
_CODEX_NEEDS_SANDBOX: Final = (
    "! command -v codex >/dev/null || said=$(codex sandbox -- true 2>&1) || { "
    "printf '%s\\n' \"$said\" 'codex cannot be restricted to reading here: its sandbox does not "
    f"work.' >&2; exit {REFUSED}; }}; "
)

CODEX: Final = Harness(
    id="codex",
    npm_packages=("@openai/codex@0.169.0",),
    packages=_NODE,
    superfluous=MappingProxyType({}),
    command=("codex",),
    # It reads the address of its API from its configuration only.
    one_shot=("sh", "-c", f"exec {_CODEX_FREELY} {_CODEX_ARGUMENTS}", "codex"),
    read_only=(
        "sh",
        "-c",
        f"{_CODEX_NEEDS_SANDBOX}exec {_CODEX_READS} {_CODEX_ARGUMENTS}",
        "codex",
    ),
    shown=_CODEX_FREELY,
    read_only_shown=_CODEX_READS,
)

# ``--tools`` takes all words up to the next option.
_CLAUDE_READS: Final = (
    *("claude", "-p", "--tools", "Read,Glob,Grep"),
    *("--strict-mcp-config", "--permission-mode", "dontAsk"),
)

CLAUDE_CODE: Final = Harness(
    id="claude-code",
    npm_packages=("@anthropic-ai/claude-code@2.1.329",),
    packages=_NODE,
    superfluous=MappingProxyType(
        {
            "glibc": (
                "@anthropic-ai/claude-code/node_modules/@anthropic-ai/claude-code-linux-arm64-musl",
                "@anthropic-ai/claude-code/node_modules/@anthropic-ai/claude-code-linux-x64-musl",
            ),
            "musl": (
                "@anthropic-ai/claude-code/node_modules/@anthropic-ai/claude-code-linux-arm64",
                "@anthropic-ai/claude-code/node_modules/@anthropic-ai/claude-code-linux-x64",
            ),
        }
    ),
    command=("claude",),
    # It refuses to do this as root unless it is told that it is in a sandbox.
    one_shot=("env", "IS_SANDBOX=1", "claude", "-p", "--dangerously-skip-permissions"),
    read_only=_CLAUDE_READS,
    shown="claude -p --dangerously-skip-permissions",
    read_only_shown=" ".join(_CLAUDE_READS),
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
