"""What a subclass has to define is missing when an object is made, not when it is called."""

from __future__ import annotations

import ast
import inspect

from controlplane.reference.pages import ReferenceCommand
from controlplane.serving.client_loop import ClientLoop
from controlplane.work.worker import Worker
from tests.architecture.sources import sources


def test_no_method_of_ours_says_only_that_it_is_not_there() -> None:
    found = [
        f"{source.path}:{node.lineno}"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Raise)
        and node.exc is not None
        and ast.unparse(node.exc).startswith("NotImplementedError")
    ]
    assert found == []


def test_a_class_that_lacks_what_it_has_to_define_cannot_be_made() -> None:
    assert all(map(inspect.isabstract, (Worker, ClientLoop, ReferenceCommand)))
