"""The ORM's strings point downwards too: no app follows a relation that a higher one defines.

A foreign key gives the model it points to a name for the way back, and a string that has this name
(``Workspace.objects.filter(runs__status=…)``) depends on the higher app without an import.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db.models import ForeignObjectRel, Model

from tests.architecture.sources import floors, sources

BY_KEYWORD = {
    "filter", "exclude", "get", "aget", "get_or_create", "aget_or_create", "update_or_create",
    "aupdate_or_create", "Q", "When",
}  # fmt: skip
"""Calls whose keywords are lookups, so that a single name may be a relation."""

BY_STRING = {
    "values", "values_list", "order_by", "select_related", "prefetch_related", "only", "defer",
    "distinct", "dates", "datetimes", "latest", "earliest", "select_for_update", "in_bulk",
    "prefetch_related_objects", "F", "OuterRef", "Prefetch", "FilteredRelation", "Count", "Sum",
    "Avg", "Min", "Max", "ArrayAgg", "JSONBAgg", "StringAgg", "Coalesce", "Exists",
}  # fmt: skip
"""Calls whose strings name fields."""

LOOKUP = re.compile(r"[-+]?\w+")


def reverse_names() -> dict[str, set[str]]:
    """Return the names of ways back into a higher app, each with the apps that define it."""
    heights = floors()
    names: dict[str, set[str]] = {}
    for model in apps.get_models():
        for relation in model._meta.get_fields():
            if not isinstance(relation, ForeignObjectRel):
                continue
            below, above = _app(model), _app(relation.related_model)
            if below in heights and heights.get(above, -1) > heights[below]:
                for name in (relation.name, relation.get_accessor_name()):
                    names.setdefault(str(name), set()).add(above)
    return names


def _app(model: type[Model] | Any) -> str:
    return str(model.__module__).partition(".")[0]


def forbidden_names(app: str, names: dict[str, set[str]]) -> set[str]:
    """Return the names that ``app`` may not know: those of apps that are not below it."""
    heights = floors()
    if app not in heights:
        return set(names)
    return {
        name
        for name, owners in names.items()
        if any(owner != app and heights[owner] >= heights[app] for owner in owners)
    }


def upward_strings(tree: ast.Module, names: set[str]) -> list[str]:
    """Return the lookups and field names of a file that use one of ``names``, with their lines."""
    found = set()
    values = _module_values(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Whoever uses it: a lookup may stand in a dictionary, or wait in a variable.
            if "__" in node.value and _uses(node.value, names):
                found.add((node.lineno, node.value))
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            for line, text in _named(node, called, values):
                if _uses(text, names):
                    found.add((line, text))
    return [f"{line} {text}" for line, text in sorted(found)]


def _uses(text: str, names: set[str]) -> bool:
    """Tell whether a text is a lookup that follows one of ``names``."""
    return bool(LOOKUP.fullmatch(text)) and not names.isdisjoint(text.lstrip("-+").split("__"))


def _named(call: ast.Call, called: str, values: dict[str, ast.expr]) -> Iterator[tuple[int, str]]:
    """Give what a call may name: its keywords, and the strings among its arguments."""
    for keyword in call.keywords:
        if keyword.arg is not None and ("__" in keyword.arg or called in BY_KEYWORD):
            yield keyword.value.lineno, keyword.arg
    if called in BY_STRING:
        for given in (*call.args, *(each.value for each in call.keywords)):
            yield from _strings(given, values)


def _strings(node: ast.expr, values: dict[str, ast.expr]) -> Iterator[tuple[int, str]]:
    """Give the strings of an argument, through lists, stars and the module's constants."""
    if isinstance(node, ast.Starred):
        yield from _strings(node.value, values)
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        for element in node.elts:
            yield from _strings(element, values)
    elif isinstance(node, ast.Name) and node.id in values:
        yield from _strings(values[node.id], {})
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value


def _module_values(tree: ast.Module) -> dict[str, ast.expr]:
    return {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def test_no_app_follows_a_relation_of_a_higher_one() -> None:
    names = reverse_names()
    assert "runs" in names  # of a workspace and an attempt
    assert [
        f"{source.path}:{found}"
        for source in sources()
        for found in upward_strings(source.tree, forbidden_names(source.app, names))
    ] == []


def test_the_names_are_forbidden_below_their_app_and_nowhere_else() -> None:
    names = {"runs": {"runs"}, "jobs": {"workspaces"}, "installation": {"scm"}}
    assert forbidden_names("builds", names) == set()
    assert forbidden_names("runs", names) == set()
    assert forbidden_names("workspaces", names) == {"runs"}
    assert forbidden_names("scm", names) == {"runs", "jobs"}
    assert forbidden_names("accounts", names) == {"runs", "jobs", "installation"}
    assert forbidden_names("controlplane", names) == {"runs", "jobs", "installation"}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("rows.filter(runs=run)", "runs"),
        ("rows.exclude(runs__status='x')", "runs__status"),
        ("rows.filter(workspace__runs__isnull=True)", "workspace__runs__isnull"),
        ("rows.filter(Q(a=1) | Q(runs=run))", "runs"),
        ("rows.values('id', 'runs')", "runs"),
        ("rows.values_list(*['id', 'runs__pk'])", "runs__pk"),
        ("rows.order_by('-runs')", "-runs"),
        ("rows.order_by(F('runs').desc())", "runs"),
        ("rows.select_related('attempt__runs')", "attempt__runs"),
        ("rows.prefetch_related(Prefetch('runs', queryset=q))", "runs"),
        ("rows.filter(pk=models.OuterRef('runs'))", "runs"),
        ("rows.annotate(number=Count('runs'))", "runs"),
        ("rows.select_for_update(of=('self', 'runs'))", "runs"),
        ("rows.filter(**{'runs__status': 'x'})", "runs__status"),
        ("rows.filter(**{f'{prefix}__runs__status': 'x'})", "__runs__status"),
        ("WITH = ('sandbox', 'runs')\nrows.prefetch_related(*WITH)", "runs"),
    ],
)
def test_an_upward_string_is_found(code: str, expected: str) -> None:
    assert upward_strings(ast.parse(code), {"runs"}) == [f"1 {expected}"]


@pytest.mark.parametrize(
    "code",
    [
        "rows.filter(overruns__gt=3, id='runs')",
        "rows.annotate(runs=Value(1))",
        "members.get('runs')",
        "path('v1/runs', view, name='runs')",
        "'A text that says runs__status in passing.'",
        "import runs",
        "rows.values()",
    ],
)
def test_what_is_no_upward_string_is_let_be(code: str) -> None:
    assert upward_strings(ast.parse(code), {"runs"}) == []
