"""Finds in the source of tests what a busy machine fails: comparisons of measured times, and short
limits of waiting."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

CLOCK = re.compile(r"(?:perf_counter|monotonic|process_time|thread_time|time)(?:_ns)?")
"""Functions that read a clock."""
FIGURE = re.compile(r"(?:.*_)?(?:elapsed|lateness|latency|rtt|took)|.*_(?:ms|us|s|secs|seconds)")
"""Names of what somebody else may have measured."""
GUARD_S = 20
"""s: a limit so long is no assertion, but ends a test that would hang."""
UNITS = {"_ms": 1000, "_us": 1_000_000, "_ns": 1_000_000_000}
"""Of names that end so, in a second."""
COUNTS = {"len", "count", "index"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Kind(IntEnum):
    PLAIN = 0
    CONSTANT = 1
    FIGURE = 2
    """Measured, by its name."""
    INSTANT = 3
    """What a clock said: compared with another, it came before or after it."""
    DURATION = 4
    """What became of instants by arithmetic."""


@dataclass(frozen=True)
class Finding:
    line: int
    function: str
    """As "TestCall.test_it"."""
    text: str


def find(source: str, *, figures: bool = False) -> list[Finding]:
    """In tests and helpers that are not marked slow. `figures`: whether figures are measured in all
    functions, rather than in asynchronous ones."""
    module = ast.parse(source)
    marks = [n.value for n in module.body if isinstance(n, ast.Assign) and _is(n, "pytestmark")]
    if any(map(_is_slow, marks)):
        return []
    return list(_Finder(module).visit(module, "", figures))


def _is(assignment: ast.Assign, name: str) -> bool:
    return any(_name(target) == name for target in assignment.targets)


def _is_slow(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == "slow" for n in ast.walk(node))


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
    return ""


def _mentions(node: ast.AST, end: str) -> bool:
    return any(_name(part).endswith(end) for part in ast.walk(node))


class _Finder:
    def __init__(self, module: ast.Module) -> None:
        self._kinds: dict[tuple[str, str], Kind] = {}
        """By function and name; attributes and functions, of the whole module, by no function."""
        self._numbers: dict[str, float] = {}
        self._waits: dict[str, tuple[int, str]] = {"timeout": (0, ""), "wait_for": (1, "timeout")}
        """Functions that wait: which of their arguments is the limit."""
        self._within = ""
        before = None
        while before != self._kinds:
            before = dict(self._kinds)
            self._learn(module, "")

    # --- what is measured ---

    def _learn(self, node: ast.AST, within: str) -> None:
        if isinstance(node, Function):
            within = within or f"{node.name}:{node.lineno}"
            self._learn_wait(node)
        self._within = within
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind(target, value)
            case ast.AugAssign(target=target, value=value):
                self._bind(target, value)
            case ast.NamedExpr(target=target, value=value):
                self._bind(target, value)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                self._bind(target, value)
            case ast.Call(func=ast.Attribute(attr="append", value=target), args=[value]):
                self._bind(target, value)
        for child in ast.iter_child_nodes(node):
            self._learn(child, within)
        if isinstance(node, Function):
            self._within = within
            for returned in ast.walk(node):
                if isinstance(returned, ast.Return | ast.Yield) and returned.value is not None:
                    self._note(("", node.name), self.kind(returned.value))

    def _learn_wait(self, function: Function) -> None:
        names = [arg.arg for arg in function.args.args if arg.arg not in ("self", "cls")]
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and (limit := self._limit(node)) is not None:
                if (name := _name(limit)) in names:
                    self._waits.setdefault(function.name, (names.index(name), name))

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            each = values if len(values) == len(target.elts) else [value] * len(target.elts)
            for one, its in zip(target.elts, each, strict=True):
                self._bind(one, its)
            return
        within = self._within if isinstance(target, ast.Name) else ""
        self._note((within, _name(target)), self.kind(value))
        if (number := self._number(value)) is not None:
            self._numbers.setdefault(_name(target), number)

    def _note(self, key: tuple[str, str], kind: Kind) -> None:
        if key[1] and kind >= Kind.INSTANT:
            self._kinds[key] = max(kind, self._kinds.get(key, kind))

    def kind(self, node: ast.AST) -> Kind:
        name = _name(node)
        match node:
            case ast.Call(func=called, args=args):
                name = _name(called)
                if CLOCK.fullmatch(name) and not args:
                    return Kind.INSTANT
                if name in COUNTS:
                    return Kind.PLAIN
                known = self._kinds.get(("", name), Kind.PLAIN)
                of = self.kind(called.value) if isinstance(called, ast.Attribute) else Kind.PLAIN
                return max([known, of, *map(self.kind, args)])
            case ast.BinOp(left=left, right=right):
                kind = max(self.kind(left), self.kind(right))
                return Kind.DURATION if kind is Kind.INSTANT else kind
            case ast.Constant(value=int() | float()):
                return Kind.CONSTANT
            case ast.Name() | ast.Attribute():
                within = self._within if isinstance(node, ast.Name) else ""
                known = self._kinds.get((within, name), self._kinds.get(("", name), Kind.PLAIN))
                if name.isupper() or (name in self._numbers and known is Kind.PLAIN):
                    return Kind.CONSTANT
                return max(known, Kind.FIGURE if FIGURE.fullmatch(name) else Kind.PLAIN)
            case ast.Subscript(value=value):
                return max(self.kind(value), Kind.FIGURE if FIGURE.fullmatch(name) else Kind.PLAIN)
            case ast.Compare() | ast.Lambda() | ast.Dict() | ast.JoinedStr():
                return Kind.PLAIN
        return max(map(self.kind, ast.iter_child_nodes(node)), default=Kind.PLAIN)

    def _number(self, node: ast.AST | None) -> float | None:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name() | ast.Attribute():
                return self._numbers.get(_name(node))
            case ast.BinOp(left=left, right=right, op=ast.Add()):  # of an instant and a number
                return self._number(right) if self._number(left) is None else self._number(left)
        return None

    def _limit(self, call: ast.Call) -> ast.expr | None:
        """How long a function waits."""
        place, name = self._waits.get(_name(call.func), (None, "timeout"))
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        return call.args[place] if place is not None and len(call.args) > place else None

    # --- what is found ---

    def visit(self, node: ast.AST, function: str, figures: bool) -> Iterator[Finding]:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if any(map(_is_slow, node.decorator_list)):
                    return
                if not self._within or not function or isinstance(node, ast.ClassDef):
                    self._within = ""
                function = f"{function}.{node.name}".lstrip(".")
                figures |= isinstance(node, ast.AsyncFunctionDef)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                if any("TimeoutError" in ast.unparse(item) for item in items):
                    return  # that nothing comes so soon
            case ast.Assert(test=test):
                for compared in ast.walk(test):
                    if isinstance(compared, ast.Compare) and self._is_timed(compared, figures):
                        yield Finding(node.lineno, function, ast.unparse(compared))
            case ast.Call():
                number = self._number(self._limit(node))
                if number is not None and 0 < number < GUARD_S:
                    yield Finding(node.lineno, function, ast.unparse(node))
        outermost = isinstance(node, Function) and not self._within
        if outermost:
            self._within = f"{node.name}:{node.lineno}"
        for child in ast.iter_child_nodes(node):
            yield from self.visit(child, function, figures)
        if outermost:
            self._within = ""

    def _is_timed(self, node: ast.Compare, figures: bool) -> bool:
        sides = [node.left, *node.comparators]
        for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
            less, more = (right, left) if isinstance(op, ast.Gt | ast.GtE) else (left, right)
            about = isinstance(op, ast.Eq) and "approx" in ast.unparse(node)
            if about or isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                if self._are_timed(less, more, figures):
                    return True
        return False

    def _are_timed(self, less: ast.expr, more: ast.expr, figures: bool) -> bool:
        unit = next((u for end, u in UNITS.items() if _mentions(less, end)), 1)
        if self._number(less) == 0 or (self._number(more) or 0) >= GUARD_S * unit:
            return False
        kinds = sorted((self.kind(less), self.kind(more)))
        return kinds[1] is Kind.DURATION or (figures and kinds == [Kind.CONSTANT, Kind.FIGURE])
