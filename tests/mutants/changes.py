"""The small changes that a test has to notice, made from the syntax tree of a module."""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from tests.mutants.statements import changes_of_statement

_BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATOR: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_LOGGERS = frozenset({"log", "logger", "_log", "_logger"})
_UNIMPORTANT = frozenset({"slots", "frozen"})
"""Keywords of data classes that say nothing about what a module does."""

Node = ast.expr | ast.stmt


@dataclass(frozen=True, slots=True)
class Change:
    """One small change of a module: the bytes from ``start`` to ``end`` are replaced.

    ``function`` is the qualified name of the function whose body is changed; empty outside of one.
    """

    module: str
    line: int
    function: str
    start: int
    end: int
    before: str
    after: str

    def apply(self, source: bytes) -> bytes:
        """Return the source of the module with this change."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        """Return the changed lines as a diff."""
        old, new = (text.decode().splitlines() for text in (source, self.apply(source)))
        lines = difflib.unified_diff(old, new, n=0, lineterm="")
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def changes_of(module: str, source: bytes) -> list[Change]:
    """Return every change of a module, in the order of its lines."""
    made = sorted(_Changes(module, source).made, key=lambda change: (change.start, change.after))
    return [change for change in made if _compiles(change.apply(source))]


class _Changes(ast.NodeVisitor):
    """Collects the changes of one module."""

    def __init__(self, module: str, source: bytes) -> None:
        self.made: set[Change] = set()
        self._module = module
        self._source = source
        self._functions: list[str] = []
        self._in_function = False
        lengths = [len(line) for line in source.splitlines(keepends=True)]
        self._line_starts = [sum(lengths[:number]) for number in range(len(lengths))]
        tree = ast.parse(source)
        self._at_import = _called_at_import(tree)
        self.visit(tree)

    def _place(self, node: Node) -> tuple[int, int]:
        """Return where the source of a node begins and ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._line_starts[node.lineno - 1] + node.col_offset,
            self._line_starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _replace(self, node: Node, new: Node | str) -> None:
        start, end = self._place(node)
        after = new if isinstance(new, str) else ast.unparse(ast.fix_missing_locations(new))
        if isinstance(node, ast.expr):
            after = f"({after})"
        else:
            after = after.replace("\n", "\n" + " " * node.col_offset)
        self._add(start, end, after)

    def _add(self, start: int, end: int, after: str) -> None:
        line = self._source.count(b"\n", 0, start) + 1
        before = self._source[start:end].decode()
        at_import = not self._in_function or self._at_import & {
            name for function in self._functions for name in function.split(".")
        }
        function = "" if at_import else self._functions[-1]
        self.made.add(Change(self._module, line, function, start, end, before, after))

    # Where nothing is changed.

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Messages are not changed, and what stands in them has no position of its own."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """An error that is not raised; what it says is left alone."""
        self._replace(node, "pass")

    def visit_Assert(self, node: ast.Assert) -> None:
        """Assertions narrow types."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Only the value: an annotation does nothing."""
        if node.value is not None:
            self._elements(node.value)
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        """A condition the other way round; what is for types only is left alone."""
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self._condition(node.test)
            self.generic_visit(node)

    # Definitions.

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Remember the class; decorators are not changed."""
        self._functions.append(".".join([*self._functions[-1:], node.name]))
        inside, self._in_function = self._in_function, False
        self._body(node.body)
        self._in_function = inside
        self._functions.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Remember the function; its defaults are values, its annotations nothing."""
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        self._functions.append(".".join([*self._functions[-1:], node.name]))
        inside, self._in_function = self._in_function, True
        self._body(node.body)
        self._in_function = inside
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 # the name that ast asks for

    def _body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.visit(statement)

    # Statements.

    def visit_Expr(self, node: ast.Expr) -> None:
        """A call that is left out; not one of a logger, and no docstring."""
        if isinstance(node.value, ast.Constant) or _is_logging(node.value):
            return
        self._replace(node, "pass")
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        """An attribute or an item that is not set; an element that lacks."""
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
            return
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._replace(node, "pass")
        self._elements(node.value)
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """``+=`` for ``-=``, or nothing."""
        self._replace(node, "pass")
        if other := _OPERATOR.get(type(node.op)):
            self._replace(node, ast.AugAssign(node.target, other(), node.value))
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        """Nothing is returned."""
        if node.value is not None:
            if not (isinstance(node.value, ast.Constant) and node.value.value is None):
                self._replace(node, "return None")
            self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        """Nothing is deleted."""
        self._replace(node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        """The loop goes on."""
        self._replace(node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        """The rest of the loop is done as well."""
        self._replace(node, "pass")

    def visit_While(self, node: ast.While) -> None:
        """The loop's condition the other way round."""
        if not isinstance(node.test, ast.Constant):
            self._condition(node.test)
            self.visit(node.test)
        self._body([*node.body, *node.orelse])

    def visit_With(self, node: ast.With) -> None:
        """Without the lock, the transaction, whatever is held."""
        if all(item.optional_vars is None for item in node.items):
            self._replace(node, ast.If(ast.Constant(True), node.body, []))
        self.generic_visit(node)

    # Expressions.

    def visit_Compare(self, node: ast.Compare) -> None:
        """Each comparison off by one, and the other way round."""
        for place, operator in enumerate(node.ops):
            for table in (_BOUNDARY, _NEGATED):
                if other := table.get(type(operator)):
                    ops = [*node.ops[:place], other(), *node.ops[place + 1 :]]
                    self._replace(node, ast.Compare(node.left, ops, node.comparators))
        for value in [node.left, *node.comparators]:
            self._elements(value)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """``and`` for ``or``, and each part left out."""
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._replace(node, ast.BoolOp(other, node.values))
        for place in range(len(node.values)):
            rest = [*node.values[:place], *node.values[place + 1 :]]
            self._replace(node, rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Without ``not`` or the sign."""
        if isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            self._replace(node, node.operand)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Another operator; texts are put together in one way only."""
        if (other := _OPERATOR.get(type(node.op))) and not _is_text(node.left, node.right):
            self._replace(node, ast.BinOp(node.left, other(), node.right))
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """The condition the other way round."""
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """A filter the other way round."""
        for condition in node.ifs:
            self._condition(condition)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Each keyword left out. Texts that are arguments are left alone where they are logged."""
        if _is_logging(node) or (not self._in_function and _is_declaration(node)):
            return
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in _UNIMPORTANT:
                new = copy.deepcopy(node)
                del new.keywords[node.keywords.index(keyword)]
                self._replace(node, new)
        self.visit(node.func)
        for value in [*node.args, *(kept.value for kept in node.keywords)]:
            self._elements(value)
            self.visit(value)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Another value: ``True`` for ``False``, one more, a text with something behind it.

        Of the texts with spaces only statements of the database are changed.
        """
        value = node.value
        if isinstance(value, bool):
            self._replace(node, ast.Constant(not value))
        elif isinstance(value, int | float):
            self._replace(node, ast.Constant(value + 1))
        elif isinstance(value, str) and value and " " not in value:
            self._replace(node, ast.Constant(value + "_"))
        elif isinstance(value, str):
            self._statement(node, value)
        elif isinstance(value, bytes) and value:
            self._replace(node, ast.Constant(value + b"_"))

    def _statement(self, node: ast.Constant, text: str) -> None:
        """Change a statement where it stands in one piece in the source."""
        start, end = self._place(node)
        begin = self._source.find(text.encode(), start, end)
        if begin >= 0:
            for first, last, other in changes_of_statement(text):
                ahead, piece = text[:first].encode(), text[first:last].encode()
                place = begin + len(ahead)
                self._add(place, place + len(piece), other)

    def _condition(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare) or len(test.ops) > 1:
            self._replace(test, ast.UnaryOp(ast.Not(), test))

    def _elements(self, value: ast.expr) -> None:
        """Leave out each constant of a list, a tuple or a set, and each entry of a mapping."""
        if isinstance(value, ast.Tuple | ast.List | ast.Set) and len(value.elts) > 1:
            for place, element in enumerate(value.elts):
                if isinstance(element, ast.Constant):
                    new = copy.deepcopy(value)
                    del new.elts[place]
                    self._replace(value, new)
        elif isinstance(value, ast.Dict) and len(value.keys) > 1:
            for place, key in enumerate(value.keys):
                if key is not None:
                    mapping = copy.deepcopy(value)
                    del mapping.keys[place], mapping.values[place]
                    self._replace(value, mapping)


def _compiles(source: bytes) -> bool:
    try:
        compile(source, "changed", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _is_logging(node: ast.expr) -> bool:
    """Whether a call writes to the log."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return isinstance(node.func.value, ast.Name) and node.func.value.id in _LOGGERS


def _is_declaration(node: ast.Call) -> bool:
    """Whether it declares a column or an index, as ``makemigrations --check`` sees, or a type."""
    text = ast.unparse(node.func)
    return text.startswith("models.") or text in ("HashIndex", "TypeVar")


def _is_text(*operands: ast.expr) -> bool:
    return any(
        isinstance(operand, ast.JoinedStr)
        or (isinstance(operand, ast.Constant) and isinstance(operand.value, str | bytes))
        for operand in operands
    )


def _called_at_import(tree: ast.Module) -> set[str]:
    """Return the names of functions and classes that are called while the module is imported.

    A change in one of these is seen only by whoever imports the module anew.
    """
    defined = {
        node.name: node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    found: set[str] = set()
    waiting = list(_outside_of_functions(tree))
    while waiting:
        name = _called_name(waiting.pop())
        if name in defined and name not in found:
            found.add(name)
            waiting.extend(ast.walk(defined[name]))
    return found


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what is carried out at import: not the bodies of functions, but their decorators."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in child.decorator_list:
                yield from ast.walk(decorator)
                if isinstance(decorator, ast.Name):
                    yield ast.Call(decorator, [], [])
        elif not isinstance(child, ast.Lambda) and not _is_for_programs(child):
            yield from _outside_of_functions(child)


def _is_for_programs(node: ast.AST) -> bool:
    """Whether something is ``if __name__ == "__main__":``."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _called_name(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "id", "") or getattr(node.func, "attr", "")


def is_quick(change: Change, source: bytes) -> bool:
    """Whether a process that has imported the module can be changed; else it starts anew."""
    return bool(change.function or changed_texts(change, source))


def changed_texts(change: Change, source: bytes) -> dict[str, str]:
    """Return the text, by its name, that a change makes another and that only functions read."""
    old, new = (_texts_of_functions(text) for text in (source, change.apply(source)))
    return {name: text for name, text in new.items() if old.get(name, text) != text}


def _texts_of_functions(source: bytes) -> dict[str, str]:
    """Return the private texts of a module that nothing asks for while it is imported."""
    tree = ast.parse(source)
    if _called_at_import(tree):
        return {}
    asked = {
        node.id
        for node in _outside_of_functions(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.startswith("_") and target.id not in asked
        if isinstance(node.value.value, str)
    }
