"""The decisions: which family, which harness, which packages, and what cannot be built.

The Dockerfile is the same for all that share a family; the decisions are in files beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from workspaces.blueprint import (
    WORKSPACE_SOURCE_ID,
    Blueprint,
    CustomHarness,
    InputSource,
    PackageRequest,
)
from workspaces.families import FAMILIES, OsFamily
from workspaces.harnesses import Harness

from .catalogue import Catalogue
from .plan import CUSTOM_SCRIPT, ImagePlan, PlanFile, PlannedSource, UnsupportedError

DOTFILES_DESTINATION: Final = "/usr/share/svc/dotfiles"

INSTALL = "/usr/share/svc/install"
"""Where the files of the context's folder ``install`` are in the image."""

AGENT = "/usr/lib/svc/agent"

_DOCKERFILE = """\
FROM {base_image}
USER root
WORKDIR /
ENV LANG=C.UTF-8

COPY extra-ca.crt install/trust.sh install/packages.sh install/base.list install/user.sh {install}/
RUN ["/bin/sh", "{install}/trust.sh", "{anchors}", "{certificates}"]
RUN ["/bin/sh", "{install}/packages.sh", "{install}/base.list"]
RUN ["/bin/sh", "{install}/user.sh"]
ENV NODE_EXTRA_CA_CERTS={certificates}
ENV REQUESTS_CA_BUNDLE={certificates}
ENV SSL_CERT_FILE={certificates}

COPY install/harness.list install/npm.list install/superfluous.list install/harness.sh {install}/
RUN ["/bin/sh", "{install}/packages.sh", "{install}/harness.list"]
RUN ["/bin/sh", "{install}/harness.sh"]

COPY install/packages.list {install}/
RUN ["/bin/sh", "{install}/packages.sh", "{install}/packages.list"]

COPY install/custom.sh install/custom-harness.bash {install}/
RUN ["/bin/sh", "{install}/custom.sh"]

COPY install/workspace.py install/workspace.json {install}/
RUN ["/usr/bin/python3", "-I", "{install}/workspace.py"]

ADD sources.tar /
COPY svc-agent {agent}
RUN ["{agent}", "compile"]
ENTRYPOINT ["{agent}", "boot"]
"""
"""Constant for a family, but for the operator's base image.

What a blueprint says travels in the copied files. The order is by how much blueprints share: the
base is the same for all, a harness for many, the rest belongs to one. The agent comes last, so that
another release of it replaces nothing else, and is compiled with the Python of the finished image.
Builders of engines read it, too, for who wants to make an image by hand. It has no other
instructions than :meth:`ImagePlan.steps` knows, and its programs are in the form with brackets.
"""

_USERS: Final = {"workspace": (1000, 1000, "/home/workspace"), "root": (0, 0, "/root")}


def reach_of(
    image_plan: ImagePlan, *, outbound: bool, policy: Mapping[str, object] | None
) -> Mapping[str, object] | None:
    """Return what the author's own steps may reach, if that can make a difference to the image.

    Otherwise somebody with a policy would get what a build without one has fetched.
    """
    if not image_plan.has_custom_installation or (outbound and policy is None):
        return None
    return {"outbound": outbound, "egress": policy}


def plan(blueprint: Blueprint, os_family: str, catalogue: Catalogue) -> ImagePlan:
    """Return how to build the image of ``blueprint``.

    :param os_family: ``auto`` for the catalogue's default family, or a family's name.
    :raises UnsupportedError: this installation cannot build the blueprint, and why.
    """
    family = _family(os_family, catalogue)
    harness = _harness(blueprint, family, catalogue)
    packages = _packages(blueprint, family)
    words = [_word(package, family) for package in packages]
    _refuse_unsupported_runtime(blueprint, catalogue)
    dotfiles = _dotfiles(blueprint)

    customization = blueprint.customization
    uid, gid, home = _USERS[customization.user]
    shell = family.shells[customization.default_shell]
    harness_packages = harness.packages[family.name] if harness else ()
    present = {*family.base_packages, *harness_packages}
    named = {package.id for package in packages}
    words += [name for name in _implied_packages(blueprint, family, dotfiles) if name not in named]
    return ImagePlan(
        os_family=family.name,
        base_image=catalogue.base_images[family.name],
        dockerfile=_dockerfile(family, catalogue.base_images[family.name]),
        files=(
            _script("trust.sh"),
            _script("packages.sh", folder=family.package_manager),
            _script("user.sh"),
            _script("harness.sh"),
            _script("custom.sh"),
            _script("workspace.py"),
            _list("base.list", family.base_packages),
            _list("harness.list", harness_packages),
            _list("npm.list", harness.npm_packages if harness else ()),
            _list("superfluous.list", harness.superfluous.get(family.libc, ()) if harness else ()),
            _list("packages.list", (word for word in words if word not in present)),
            PlanFile(CUSTOM_SCRIPT, _custom_installation(blueprint).encode()),
            _text(
                "workspace.json",
                json.dumps(
                    {
                        "user": customization.user,
                        "uid": uid,
                        "gid": gid,
                        "shell": shell,
                        "sudo": customization.sudo and customization.user != "root",
                        "workspaceRoot": blueprint.runtime.workspace_root,
                        "workingDirectory": blueprint.runtime.working_directory,
                    },
                    indent=2,
                )
                + "\n",
            ),
        ),
        sources=_sources(blueprint, dotfiles),
        working_directory=blueprint.runtime.working_directory,
        harness_command=_command(blueprint, harness),
        user=customization.user,
        uid=uid,
        gid=gid,
        home=home,
        shell=shell,
    )


def _dockerfile(family: OsFamily, base_image: str) -> str:
    """Return the Dockerfile of a family on the operator's base image."""
    return _DOCKERFILE.format(
        base_image=base_image,
        install=INSTALL,
        agent=AGENT,
        anchors=family.anchors,
        certificates=family.certificates,
    )


def _family(os_family: str, catalogue: Catalogue) -> OsFamily:
    name = catalogue.default_family if os_family == "auto" else os_family
    if name not in FAMILIES:
        raise UnsupportedError("unsupported-os", f"There is no operating system family '{name}'.")
    if name not in catalogue.base_images:
        raise UnsupportedError(
            "unsupported-os",
            f"{FAMILIES[name].title} is not available here: the operator has not configured a base "
            "image for it.",
        )
    return FAMILIES[name]


def _harness(blueprint: Blueprint, family: OsFamily, catalogue: Catalogue) -> Harness | None:
    """Return the harness, or None when the blueprint describes its own."""
    if isinstance(blueprint.harness, CustomHarness):
        return None
    harness = catalogue.harnesses.get(blueprint.harness.id)
    if harness is None:
        raise UnsupportedError(
            "unsupported-harness", f"The harness '{blueprint.harness.id}' is not available here."
        )
    if family.name not in harness.packages:
        raise UnsupportedError(
            "unsupported-harness",
            f"The harness '{harness.id}' cannot be installed on {family.title}.",
        )
    return harness


def _packages(blueprint: Blueprint, family: OsFamily) -> tuple[PackageRequest, ...]:
    """Return the packages of the blueprint, whose names are the family's own by now.

    They were found when the sandbox was created (:mod:`workspaces.packages`). It only counts that
    each is one plain name to the package manager.
    """
    packages = blueprint.tooling.packages
    wrong = [package.id for package in packages if not family.package_name.fullmatch(package.id)]
    if wrong:
        raise UnsupportedError(
            "unsupported-package",
            " ".join(f"'{name}' is not a valid package name on {family.title}." for name in wrong),
        )
    pinned = [package.id for package in packages if package.version is not None]
    if pinned and family.pin is None:
        raise UnsupportedError(
            "unsupported-package",
            f"{family.title} offers one version of each package only; remove the version of "
            f"{', '.join(pinned)}.",
        )
    return packages


def _word(package: PackageRequest, family: OsFamily) -> str:
    if package.version is None or family.pin is None:
        return package.id
    return family.pin.format(name=package.id, version=package.version)


def _implied_packages(
    blueprint: Blueprint, family: OsFamily, dotfiles: InputSource | None
) -> list[str]:
    """Return the packages that other members of the blueprint call for."""
    implied: list[str] = []
    if blueprint.customization.default_shell != "bash":
        implied.append(blueprint.customization.default_shell)
    if dotfiles is not None:
        manager = blueprint.customization.dotfiles_manager
        for name in ("stow", "chezmoi") if manager == "auto" else (manager,):
            implied.extend(family.dotfiles_packages.get(name, ()))
    return implied


def _refuse_unsupported_runtime(blueprint: Blueprint, catalogue: Catalogue) -> None:
    def refuse(message: str) -> None:
        raise UnsupportedError("unsupported-runtime-requirement", message)

    engine = blueprint.target.runtime.family
    if engine != "auto" and engine not in catalogue.runtime_families:
        refuse(f"Workspaces cannot run on '{engine}' here.")
    if blueprint.runtime.oci_runtime not in catalogue.oci_runtimes:
        refuse(f"The OCI runtime '{blueprint.runtime.oci_runtime}' is not available here.")
    others = sorted({item.purpose for item in blueprint.sources.inputs} - {"dotfiles"})
    if others:
        refuse(f"Inputs with purpose {' or '.join(others)} are not supported; only dotfiles are.")
    if len(blueprint.sources.inputs) > 1:
        refuse("More than one input with purpose dotfiles is not supported.")


def _dotfiles(blueprint: Blueprint) -> InputSource | None:
    inputs = blueprint.sources.inputs
    return inputs[0] if inputs and blueprint.customization.apply_dotfiles else None


def _sources(blueprint: Blueprint, dotfiles: InputSource | None) -> tuple[PlannedSource, ...]:
    sources = []
    workspace = blueprint.sources.workspace
    if workspace is not None:
        sources.append(
            PlannedSource(
                id=WORKSPACE_SOURCE_ID,
                purpose="workspace",
                url=workspace.url,
                ref=workspace.ref,
                destination=blueprint.runtime.working_directory,
            )
        )
    if dotfiles is not None:
        sources.append(
            PlannedSource(
                id=dotfiles.id,
                purpose="dotfiles",
                url=dotfiles.url,
                ref=dotfiles.ref,
                destination=DOTFILES_DESTINATION,
            )
        )
    return tuple(sources)


def _command(blueprint: Blueprint, harness: Harness | None) -> tuple[str, ...]:
    if isinstance(blueprint.harness, CustomHarness):
        return blueprint.harness.command
    return harness.command if harness else ()


def _custom_installation(blueprint: Blueprint) -> str:
    harness = blueprint.harness
    if isinstance(harness, CustomHarness) and harness.install is not None:
        return f"{harness.install}\n"
    return ""


@cache
def _script(name: str, *, folder: str = "") -> PlanFile:
    """Return one of the fixed scripts that stand beside this module."""
    place = files(__package__).joinpath("install", folder, name)
    return PlanFile(f"install/{name}", place.read_bytes())


def _list(name: str, words: Iterable[str]) -> PlanFile:
    return _text(name, "".join(f"{word}\n" for word in words))


def _text(name: str, text: str) -> PlanFile:
    return PlanFile(f"install/{name}", text.encode())
