"""What is in a workspace: sources, harness, access, tools and customization."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from .grammar import (
    AbsolutePath,
    GitRef,
    InputId,
    Label,
    Line,
    PackageId,
    PackageVersion,
    Script,
    SourceUrl,
)
from .ignored import IGNORED
from .part import Many, Part

MAX_PACKAGES: Final = 200
MAX_INPUTS: Final = 16
MAX_COMMAND_WORDS: Final = 64

WORKSPACE_SOURCE_ID: Final = "workspace"
"""The id of ``sources.workspace`` among a plan's sources; no input may take it."""

Provider: TypeAlias = Literal["github", "gitlab", "generic"]


class Source(Part):
    """A git repository that is checked out into the workspace."""

    kind: Literal["git"] = Field(default="git", description="The only kind of source.")
    provider: Provider = Field(default="generic", description="Who hosts the repository.")
    url: SourceUrl = Field(
        description="Address of the repository: `https`, `http`, `git` or `file`, without user "
        "name, password, query or fragment. `file` addresses and hosts on private networks work "
        "only where the operator allows them."
    )
    ref: GitRef | None = Field(
        default=None,
        description="Branch, tag or commit id. Absent: the default branch of the repository.",
    )


class InputSource(Source):
    """A further git repository, with the purpose it serves."""

    id: InputId = Field(description="Name of this input, unique among the inputs.")
    purpose: Literal["config", "dotfiles", "bootstrap"] = Field(
        description="What the input is for. Builds support one input, with purpose `dotfiles`."
    )
    mount_path: AbsolutePath | None = Field(
        default=None, description="Accepted for compatibility; has no effect."
    )


class Sources(Part):
    """The repositories that a workspace is made from."""

    workspace: Source | None = Field(
        default=None,
        description="Checked out into `runtime.workingDirectory`. Absent: the directory is empty.",
    )
    inputs: Many[InputSource] = Field(
        default=(), max_length=MAX_INPUTS, description="Further repositories, such as dotfiles."
    )

    @field_validator("inputs")
    @classmethod
    def _ids_are_unique(cls, inputs: tuple[InputSource, ...]) -> tuple[InputSource, ...]:
        seen = {WORKSPACE_SOURCE_ID}
        for position, item in enumerate(inputs):
            if item.id in seen:
                raise PydanticCustomError(
                    "duplicate", "is already the id of another source.", {"at": (position, "id")}
                )
            seen.add(item.id)
        return inputs


class ProvidedHarness(Part):
    """A harness that the control plane knows how to install and start."""

    id: Literal["opencode", "codex", "claude-code", "shell"] = Field(
        description="Which harness. `shell` installs nothing: a prompt is a script."
    )
    profile: Label | None = Field(
        default=None, description="Accepted for compatibility; has no effect."
    )
    rights: Literal["full", "read-only"] | None = Field(
        default=None,
        description="What a prompt may do, as there is nobody to confirm. `full`, the default: "
        "change "
        "and execute everything as the workspace's user. `read-only`: the harness gives its model "
        "only tools that read; `codex` needs user namespaces for that, and its run fails with "
        "`harness-refused` where there are none. Not for `shell`. Commands that a client executes "
        "are "
        "not restricted.",
    )

    @field_validator("rights")
    @classmethod
    def _can_be_restricted(cls, rights: str | None, info: ValidationInfo) -> str | None:
        if rights == "read-only" and info.data.get("id") == "shell":
            raise PydanticCustomError(
                "not-allowed", "cannot be 'read-only' for the harness 'shell'."
            )
        return rights


class CustomHarness(Part):
    """A harness that the blueprint describes itself."""

    id: Literal["custom"] = Field(description="A harness that this blueprint describes.")
    profile: Label | None = Field(
        default=None, description="Accepted for compatibility; has no effect."
    )
    install: Script | None = Field(
        default=None,
        description="Bash script of at most 16 KiB that installs the harness. It runs as root "
        "while the image is built, after the packages of `tooling`. Absent: nothing to install.",
    )
    command: Many[Line] = Field(
        min_length=1,
        max_length=MAX_COMMAND_WORDS,
        description="The program that starts the harness and its arguments, without a shell. "
        "One-shot runs append their prompt as the last argument.",
    )


Harness = Annotated[ProvidedHarness | CustomHarness, Field(discriminator="id")]


class Ssh(Part):
    """Access over the SSH gateway."""

    enabled: bool = Field(
        default=False,
        description="Accepted for compatibility; has no effect: whoever has a key that is "
        "registered for the workspace's owner can enter.",
    )
    listen_port: int = Field(
        default=2222, ge=1, le=65535, description="Accepted for compatibility; has no effect."
    )
    authorized_keys_ref: Line | None = Field(
        default=None, description="Accepted for compatibility; has no effect."
    )


class Access(Part):
    """How people reach the workspace."""

    ssh: Ssh = Field(default=Ssh(), description="Access over the SSH gateway.")


class PackageRequest(Part):
    """One package to install."""

    id: PackageId = Field(
        description="Name of the package: the usual name of the tool (`node`, `rg`) or the "
        "name in the distribution."
    )
    version: PackageVersion | None = Field(
        default=None,
        description="Exact version in the distribution's own notation. Absent: the version that "
        "the distribution offers. Arch Linux offers one version only and refuses pins.",
    )


class Tooling(Part):
    """What is installed besides the harness."""

    packages: Many[PackageRequest] = Field(
        default=(),
        max_length=MAX_PACKAGES,
        description=f"Packages of the operating system, at most {MAX_PACKAGES}.",
    )


class Customization(Part):
    """The workspace's user, shell and dotfiles."""

    model_config = ConfigDict(
        json_schema_extra={
            "patternProperties": {
                IGNORED: {"description": "A member of another planner: ignored, with a warning."}
            }
        }
    )

    default_shell: Literal["bash", "zsh", "fish"] = Field(
        default="bash", description="The login shell."
    )
    dotfiles_manager: Literal["auto", "chezmoi", "stow", "copy"] = Field(
        default="auto",
        description="How dotfiles are applied. `auto` decides by the repository's content.",
    )
    dotfiles_target: Literal["home", "config"] = Field(
        default="home", description="Where dotfiles go: the home directory, or `~/.config`."
    )
    apply_dotfiles: bool = Field(
        default=True, description="Whether the input with purpose `dotfiles` is applied."
    )
    dotfiles_bootstrap: bool = Field(
        default=True,
        description="Whether the dotfiles' bootstrap command runs after they are applied.",
    )
    dotfiles_bootstrap_command: Line | None = Field(
        default=None, description="The bootstrap command. Absent: `./install.sh` where it exists."
    )
    user: Literal["workspace", "root"] = Field(
        default="workspace",
        description="The user that everything in the workspace runs as: `workspace` (uid 1000) "
        "or `root`.",
    )
    sudo: bool = Field(
        default=True,
        description="Whether the user may become root without a password, through sudo.",
    )
