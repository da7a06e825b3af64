"""Every code that the code can send, found by reading it: of problems, of faults and of failures.

A code is looked for where one is given (:data:`GIVEN_FIRST`, :data:`GIVEN_BY_NAME` and variables
that are called so). Constants and tables of constants are followed by their name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

from rest_framework import exceptions as drf
from rest_framework import serializers

from controlplane.errors import ControlPlaneError, JobError
from controlplane.http.serializers import OutputSerializer

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
APPS = ("accounts", "builds", "controlplane", "registries", "runs", "scm", "workspaces")
NOT_SENT = ("runs/agent/", "runs/gateway/", "runs/preview/", "/migrations/", "/management/")
"""The agent's own words, those of the gateways, and what nobody is answered."""

CODE = re.compile(r"[a-z][a-z0-9]+(-[a-z0-9]+)*\Z")
GIVEN_FIRST = {
    *("Fault", "_fault", "fail", "PydanticCustomError", "PublicKeyRefused"),
    *("lost", "not_started"),
}
"""Calls whose first argument is a code, besides those of ``JobError`` and what derives from it."""
GIVEN_BY_NAME = {"code", "error_code", "otherwise"}
TABLES = {"_MEANINGS"}
"""Tables of programs' words with the code for each."""
COMPOSED = {
    *("build-timed-out", "push-timed-out"),  # builds/images/compiler.py: what was done
    *("name-refused", "secret-refused"),  # accounts/connected.py: the member
}
"""Codes that are put together where they are given."""
FRAMEWORK = {
    code.replace("_", "-"): error.status_code
    for error in (
        drf.MethodNotAllowed,
        drf.NotAcceptable,
        drf.UnsupportedMediaType,
        drf.Throttled,
    )
    if (code := error.default_code)
}
"""Problems that DRF finds, with their statuses."""


@cache
def sources() -> dict[str, ast.Module]:
    """Return the parsed modules that answer somebody, by their path."""
    paths = (path for app in APPS for path in sorted((ROOT / app).rglob("*.py")))
    named = ((str(path.relative_to(ROOT)), path) for path in paths)
    return {
        name: ast.parse(path.read_text())
        for name, path in named
        if not any(place in f"/{name}" or name.startswith(place) for place in NOT_SENT)
    }


def literals() -> set[str]:
    """Return every text in the code that could be a code."""
    return {
        node.value
        for module in sources().values()
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.match(node.value)
    }


class Codes:
    """The codes that are given somewhere in the modules."""

    def __init__(self) -> None:
        self._modules = sources()
        self._constants: dict[str, set[str]] = {}
        self._own: dict[tuple[str, str], set[str]] = {}
        self._module = ""
        self._job_errors = {JobError.__name__}
        nodes = [
            (name, node)
            for name, module in self._modules.items()
            for node in ast.walk(module)
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.ClassDef)
        ]
        for _ in range(3):  # a class may be read before the one that it derives from
            for name, node in nodes:
                self._remember(name, node)

    def given(self) -> set[str]:
        """Return all of them."""
        found = {code for name in self._modules for code in self._of(name)}
        tables = {code for name in TABLES for code in self._constants[name]}
        return {code for code in found | tables if CODE.match(code)} | COMPOSED

    def problems(self) -> dict[str, set[int]]:
        """Return the codes of problem bodies with their statuses."""
        tree = {cls.__name__: cls for cls in tree_of(ControlPlaneError)}
        found = {code: {status} for code, status in FRAMEWORK.items()}
        for cls in tree.values():
            found.setdefault(cls.code, set()).add(cls.status)
        for name, module in self._modules.items():
            self._module = name
            for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
                cls_of_call = tree.get(_name(call.func))
                for keyword in call.keywords:
                    if keyword.arg == "code" and cls_of_call is not None:
                        for code in self._values(keyword.value):
                            found.setdefault(code, set()).add(cls_of_call.status)
        return found

    def _remember(self, module: str, node: ast.AST) -> None:
        """Keep what a constant or a table of constants may be, and which errors are a job's."""
        if (
            isinstance(node, ast.ClassDef)
            and {_name(base) for base in node.bases} & self._job_errors
        ):
            self._job_errors.add(node.name)
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            return
        name = _name(target)
        if name.strip("_").isupper():
            parts = value.values if isinstance(value, ast.Dict) else [value]
            texts = {text for part in parts for text in _texts(part)}
            self._constants.setdefault(name, set()).update(texts)
            self._own.setdefault((module, name), set()).update(texts)

    def _of(self, module: str) -> Iterator[str]:
        self._module = module
        first = GIVEN_FIRST | self._job_errors
        for node in ast.walk(self._modules[module]):
            if isinstance(node, ast.Call):
                given = [word.value for word in node.keywords if word.arg in GIVEN_BY_NAME]
                if _name(node.func) in first:
                    given += node.args[:1]
                for value in given:
                    yield from self._values(value)
            elif isinstance(node, ast.Return):
                values = [self._values(part) for part in getattr(node.value, "elts", ())[:1]]
                yield from (code for each in values for code in each if "-" in code)
            elif isinstance(node, ast.Assign):
                target = node.targets[0]
                if _name(target) == "code":
                    yield from self._values(node.value)
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    for one, value in zip(target.elts, node.value.elts, strict=True):
                        if _name(one) == "code":
                            yield from self._values(value)

    def _values(self, node: ast.expr) -> set[str]:
        """Return what an expression may be, as far as it is made of constants."""
        if isinstance(node, ast.IfExp):
            return self._values(node.body) | self._values(node.orelse)
        if isinstance(node, ast.BoolOp):
            return {text for value in node.values for text in self._values(value)}
        if isinstance(node, ast.Subscript):
            return self._values(node.value)
        if isinstance(node, ast.Call) and _name(node.func) in {"get", "Reason"}:
            inner = node.func.value if isinstance(node.func, ast.Attribute) else node.args[0]
            return self._values(inner).union(*(self._values(each) for each in node.args[1:]))
        if isinstance(node, ast.Name | ast.Attribute):
            name = _name(node)
            own = self._own.get((self._module, name)) if isinstance(node, ast.Name) else None
            return own or self._constants.get(name, set())
        return set(_texts(node))


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Tuple):
        for element in node.elts:
            yield from _texts(element)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def tree_of(cls: type[T]) -> Iterator[type[T]]:
    """Return a class and all that derive from it."""
    yield cls
    for child in cls.__subclasses__():
        yield from tree_of(child)


def field_codes() -> set[str]:
    """Return the codes of what DRF's fields find wrong with a request's members."""
    found: set[str] = set()
    for cls in tree_of(serializers.Serializer):
        ours = cls.__module__.partition(".")[0] in APPS
        if ours and not issubclass(cls, OutputSerializer):
            for field in cls().fields.values():
                found |= set(field.error_messages)
                found |= {str(getattr(each, "code", "")) for each in field.validators}
    return {code.replace("_", "-") for code in found if code}
