"""The blueprint as a whole."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from controlplane.errors import ValidationFailed

from .contents import Access, Customization, Harness, Sources, Tooling
from .faults import MAX_FAULTS, faults_of, without_lone_surrogates
from .grammar import Line
from .ignored import without_ignored
from .part import Many, Part
from .running import Lifecycle, Runtime, Target


class Credentials(Part):
    """Which connected accounts a new workspace uses; read at creation and not kept."""

    profile_id: Line | None = Field(default=None, description="Profile whose bindings are used.")
    claude: Line | None = Field(default=None, description="Connected account for Claude.")
    codex: Line | None = Field(default=None, description="Connected account for Codex.")
    github: Line | None = Field(default=None, description="Connected account for GitHub.")
    generic: Many[Line] = Field(
        default=(), max_length=100, description="Connected accounts for environment variables."
    )


class Blueprint(Part):
    """The description of a workspace: sources, harness, tools, lifecycle, runtime and target."""

    version: Literal["1"] = Field(default="1", description="Version of the blueprint format.")
    sources: Sources = Field(
        default=Sources(), description="The repositories that the workspace is made from."
    )
    harness: Harness = Field(description="The agent or shell that works in the workspace.")
    access: Access = Field(default=Access(), description="How people reach the workspace.")
    tooling: Tooling = Field(
        default=Tooling(), description="What is installed besides the harness."
    )
    customization: Customization = Field(
        default=Customization(), description="The workspace's user, shell and dotfiles."
    )
    lifecycle: Lifecycle = Field(
        default=Lifecycle(), description="What runs when the workspace starts."
    )
    runtime: Runtime = Field(default=Runtime(), description="How the workspace runs.")
    target: Target = Field(default=Target(), description="What the workspace is built for.")
    credentials: Credentials | None = Field(
        default=None,
        description="Which connected accounts are used; read when the workspace is created, and "
        "not "
        "kept in its blueprint.",
    )

    @field_validator("runtime")
    @classmethod
    def _home_of_root_is_for_root(cls, runtime: Runtime, info: ValidationInfo) -> Runtime:
        customization = info.data.get("customization")
        in_root_home = f"{runtime.workspace_root}/".startswith("/root/")
        if in_root_home and customization is not None and customization.user != "root":
            raise PydanticCustomError(
                "reserved-path",
                "may be in /root only when customization.user is 'root'.",
                {"at": ("workspaceRoot",)},
            )
        return runtime

    @classmethod
    def parse(cls, data: object, *, pointer: str = "/spec") -> Self:
        """Return the blueprint that ``data``, any JSON value, describes.

        Members of other planners are left out; :func:`.ignored.warnings_of` tells of them.

        :param pointer: JSON pointer of ``data`` in the request's body; the pointers of the faults
            begin with it.
        :raises ValidationFailed: naming every fault, and nothing else is ever raised.
        """
        data, faults = without_lone_surrogates(data, pointer)
        try:
            blueprint = cls.model_validate(without_ignored(data))
        except ValidationError as error:
            faults += faults_of(error, model=cls, pointer=pointer, known=faults)
        if faults:
            raise ValidationFailed(faults[:MAX_FAULTS])
        return blueprint

    def to_wire(self) -> dict[str, object]:
        """Return the JSON object with all defaults filled in; ``parse`` gives an equal blueprint.

        Members without a value and without a default are left out.
        """
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
