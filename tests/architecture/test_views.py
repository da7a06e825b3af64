"""Views parse, call and present: short methods, no queries, and nothing but ViewSets."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.views.generic import View

from tests.architecture.sources import Source, sources

LONGEST_BODY = 15
VIEW_BASES = ("APIView", "ViewSet")
HTTP_METHODS = {*View.http_method_names}

Method = ast.FunctionDef | ast.AsyncFunctionDef


def classes(source: Source) -> Iterator[ast.ClassDef]:
    """Give the classes of a file."""
    return (node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef))


def bases(node: ast.ClassDef) -> list[str]:
    """Return the last part of the name of each base: ``APIView`` of ``views.APIView``."""
    return [ast.unparse(base).rpartition(".")[2] for base in node.bases]


def methods(node: ast.ClassDef) -> Iterator[Method]:
    """Give the methods of a class."""
    return (each for each in node.body if isinstance(each, Method))


def body_length(method: Method) -> int:
    """Return how many lines a method's body has, without its docstring."""
    body = method.body[1:] if ast.get_docstring(method, clean=False) is not None else method.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def holds_views(source: Source) -> bool:
    """Tell whether a file is a module of views: by its name, its package, or what it defines."""
    path = source.path
    named = path.stem == "views" or path.stem.endswith("_views") or "views" in path.parts[:-1]
    return named or any(
        base.endswith(VIEW_BASES) for node in classes(source) for base in bases(node)
    )


def long_methods(source: Source) -> list[str]:
    """Return the methods of a file's classes that are too long, with their lengths."""
    return [
        f"{source.path}:{method.lineno} {node.name}.{method.name}: {length} lines"
        for node in classes(source)
        for method in methods(node)
        if (length := body_length(method)) > LONGEST_BODY
    ]


def queries(source: Source) -> list[str]:
    """Return where a file reaches for a model's manager."""
    return [
        f"{source.path}:{node.lineno} {ast.unparse(node)}"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and node.attr == "objects"
    ]


def plain_views(source: Source) -> list[str]:
    """Return the views of a file that are no ViewSets."""
    return [
        f"{source.path}:{node.lineno} {node.name}"
        for node in ast.walk(source.tree)
        if (
            isinstance(node, ast.ClassDef) and any(base.endswith("APIView") for base in bases(node))
        )
        or (isinstance(node, Method) and "api_view" in map(_decorator, node.decorator_list))
    ]


def _decorator(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2]


def http_names(source: Source) -> list[str]:
    """Return the actions named like an HTTP method: every route of the ViewSet would answer it."""
    return [
        f"{source.path}:{method.lineno} {node.name}.{method.name}"
        for node in classes(source)
        if any(base.endswith("ViewSet") for base in bases(node))
        for method in methods(node)
        if method.name in HTTP_METHODS
    ]


Finder = Callable[[Source], list[str]]


@pytest.mark.parametrize("find", [long_methods, queries, http_names])
def test_no_module_of_views_holds_what_it_must_not(find: Finder) -> None:
    assert [found for source in sources() if holds_views(source) for found in find(source)] == []


def test_every_view_is_an_action_of_a_view_set() -> None:
    assert [found for source in sources() for found in plain_views(source)] == []


def test_the_modules_of_views_are_found() -> None:
    found = {str(source.path) for source in sources() if holds_views(source)}
    wanted = {"accounts/credential_views.py", "controlplane/health.py", "runs/views/runs.py"}
    assert found >= wanted
    assert len(found) > 10


LINES = "\n        ".join(f"line_{number}()" for number in range(LONGEST_BODY))
MADE_UP: dict[Finder, str] = {
    long_methods: f'''
class Things(ViewSet):
    async def long(self):
        {LINES}
        one_more()
    def short(self):
        """Say
        it."""
        {LINES}
''',
    queries: "def list(self):\n    return Thing.objects.all()\nnot_one = objects\n",
    http_names: """
class Things(viewsets.ViewSet):
    def destroy(self): ...
    def delete(self): ...
""",
    plain_views: """
class Thing(APIView): ...
class Other(views.APIView): ...
class Generic(Mixin, generics.ListAPIView): ...
class Things(viewsets.ViewSet): ...
@api_view(["GET"])
def thing(request): ...
""",
}
FOUND: dict[Finder, list[str]] = {
    long_methods: ["3 Things.long: 16 lines"],
    queries: ["2 Thing.objects"],
    http_names: ["4 Things.delete"],
    plain_views: ["2 Thing", "3 Other", "4 Generic", "7 thing"],
}


@pytest.mark.parametrize("find", MADE_UP)
def test_what_a_module_must_not_hold_is_found(find: Finder) -> None:
    made_up = Source(Path("made_up/views.py"), ast.parse(MADE_UP[find]))
    assert find(made_up) == [f"made_up/views.py:{found}" for found in FOUND[find]]


@pytest.mark.parametrize(
    ("path", "code", "expected"),
    [
        ("app/views.py", "", True),
        ("app/thing_views.py", "", True),
        ("app/views/things.py", "", True),
        ("app/things.py", "class Things(viewsets.ViewSet): ...", True),
        ("app/things.py", "class Things(Serializer): ...", False),
        ("app/reviews.py", "", False),
    ],
)
def test_a_module_of_views_is_known_by_name_package_and_content(
    path: str, code: str, expected: bool
) -> None:
    assert holds_views(Source(Path(path), ast.parse(code))) is expected
