"""Finds in the source of tests what a busy machine fails: comparisons of measured times, and short
limits of waiting."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from tests.support.waiting import HANGS_S

CLOCK = re.compile(r"(?:perf_counter|monotonic|process_time|thread_time|time)(?:_ns)?")
"""Functions that read a clock."""
FIGURE = re.compile(
    r"(?:.*_)?(?:elapsed|lateness|latency|rtt|took)|.*_(?:ms|us|s|secs|seconds)|[a-z]+(?:After|Ms)"
)
"""Names of what somebody else may have measured."""
GUARD_S = 20
"""s: a limit so long is no assertion, but ends a test that would hang."""
UNITS = {"_ms": 1e3, "Ms": 1e3, "After": 1e3, "_us": 1e6, "_ns": 1e9}
"""Of names that end so, in a second."""
WAITS = {"timeout": (0, ""), "wait_for": (1, "timeout"), "until": (1, "seconds")}
"""Functions that wait, with place and name of the argument that says how long; others are those
that give them theirs."""
COUNTS = {"len", "count", "index"}
SOUND = re.compile(
    r"(?:audio|concealed|end|heard|hole|played|start|suppressed|uttered)_(?:ms|s)|drain_seconds"
)
"""Figures that are no time of a clock: of sound, counted in samples, and of the configuration."""

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
    return list(_Finder(module).visit(module, _Place(figures)))


def _is(assignment: ast.Assign, name: str) -> bool:
    return any(_name(target) == name for target in assignment.targets)


def _is_slow(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == "slow" for n in ast.walk(node))


def _fails(node: ast.AST) -> bool:
    """Whether a statement may fail a test."""
    if isinstance(node, ast.If):
        return any(map(_fails, node.body))
    parts = list(ast.walk(node))
    raises = any(isinstance(part, ast.Assert | ast.Raise) for part in parts)
    return raises or any(isinstance(p, ast.Call) and _name(p.func) == "fail" for p in parts)


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
    return ""


def _figure(name: str) -> Kind:
    measured = FIGURE.fullmatch(name) and not SOUND.fullmatch(name)
    return Kind.FIGURE if measured else Kind.PLAIN


class _Finder:
    def __init__(self, module: ast.Module) -> None:
        self._kinds: dict[tuple[str, str], Kind] = {}
        """By function and name; attributes and functions, of the whole module, by no function."""
        self._numbers: dict[str, float] = {"HANGS_S": HANGS_S}
        self._waits = dict(WAITS)
        self._within = ""
        """The outermost function that is looked at."""
        self._bindings: list[tuple[str, ast.expr, ast.expr]] = []
        """Function, target, value."""
        self._returns: list[tuple[str, str, ast.expr]] = []
        """Outermost function, function, value."""
        self._waiting: list[tuple[str, Function, ast.Call | ast.BinOp]] = []
        """What may say how long a function waits: outermost function, function, and that."""
        self._collect(module, ())
        before = None
        while before != self._kinds:
            before = dict(self._kinds)
            for within, target, value in self._bindings:
                self._within = within
                self._bind(target, value)
            for within, name, value in self._returns:
                self._within = within
                self._note(("", name), self.kind(value))
        for within, function, node in self._waiting:
            self._within = within
            self._learn_wait(function, node)

    # --- what is measured ---

    def _collect(self, node: ast.AST, functions: tuple[Function, ...]) -> None:
        """`functions` are those around it, the outermost first."""
        if isinstance(node, Function):
            functions = (*functions, node)
        within = f"{functions[0].name}:{functions[0].lineno}" if functions else ""
        if isinstance(node, ast.Return | ast.Yield) and node.value is not None:
            self._returns += [(within, function.name, node.value) for function in functions]
        elif isinstance(node, ast.Call | ast.BinOp):
            self._waiting += [(within, function, node) for function in functions]
        bound: list[tuple[ast.expr, ast.expr]] = []
        match node:
            case ast.Assign(targets=targets, value=value):
                bound = [(target, value) for target in targets]
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.AugAssign(target=target, value=value)
                | ast.NamedExpr(target=target, value=value)
                | ast.For(target=target, iter=value)
                | ast.comprehension(target=target, iter=value)
                | ast.Call(func=ast.Attribute(attr="append", value=target), args=[value])
            ):
                bound = [(target, value)]
        self._bindings += [(within, *each) for each in bound]
        for child in ast.iter_child_nodes(node):
            self._collect(child, functions)

    def _learn_wait(self, function: Function, node: ast.Call | ast.BinOp) -> None:
        limit = None
        if isinstance(node, ast.Call):
            limit = self._limit(node)
        elif self.kind(node.left) is Kind.INSTANT:
            limit = node.right
        given = [*function.args.args, *function.args.kwonlyargs]
        names = [arg.arg for arg in given if arg.arg not in ("self", "cls")]
        if limit is not None and (name := _name(limit)) in names:
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
                return max(known, _figure(name))
            case ast.Subscript(value=value):
                return max(self.kind(value), _figure(name))
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

    def visit(self, node: ast.AST, place: "_Place") -> Iterator[Finding]:
        spared: list[ast.stmt] = []
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if any(map(_is_slow, node.decorator_list)):
                    return
                place = place.within(node)
                self._within = place.outermost
            case ast.With(items=items) | ast.AsyncWith(items=items):
                if any("TimeoutError" in ast.unparse(item) for item in items):
                    place = replace(place, may_time_out=True)  # that nothing comes so soon
            case ast.Try(handlers=handlers):
                late = [each for each in handlers if "TimeoutError" in ast.unparse(each)]
                if late and not any(map(_fails, late)):
                    place = replace(place, may_time_out=True)
            case ast.While(body=body):
                spared = [each for each in body if self._ends_a_wait(each)]
            case ast.Assert(test=test) | ast.If(test=test) if _fails(node):
                for compared in ast.walk(test):
                    if isinstance(compared, ast.Compare) and self._is_timed(compared, place):
                        yield Finding(node.lineno, place.name, ast.unparse(compared))
            case ast.Call() if not place.may_time_out:
                number = self._number(self._limit(node))
                if number is not None and 0 < number < GUARD_S:
                    yield Finding(node.lineno, place.name, ast.unparse(node))
        for child in ast.iter_child_nodes(node):
            if child not in spared:
                yield from self.visit(child, place)
                self._within = place.outermost

    def _ends_a_wait(self, statement: ast.stmt) -> bool:
        """Whether it is "assert now < until", of which nobody says here that it is soon."""
        match statement:
            case ast.Assert(
                test=ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()], comparators=[until])
            ):
                number = self._number(until)
                late = number is None or number >= GUARD_S
                return self.kind(left) is Kind.INSTANT and late
        return False

    def _is_timed(self, node: ast.Compare, place: "_Place") -> bool:
        sides = [node.left, *node.comparators]
        for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
            kinds = sorted((self.kind(left), self.kind(right)))
            figure = kinds == [Kind.CONSTANT, Kind.FIGURE] and place.measures
            if isinstance(op, ast.Eq) and "approx" in ast.unparse(node):
                figure = figure and place.asynchronous
            elif not isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                continue
            less, more = (right, left) if isinstance(op, ast.Gt | ast.GtE) else (left, right)
            if (figure or kinds[1] is Kind.DURATION) and not self._is_harmless(less, more):
                return True
        return False

    def _is_harmless(self, less: ast.expr, more: ast.expr) -> bool:
        """Whether it says more than nothing, or less than a guard."""
        unit = 1.0  # in a second
        for part in ast.walk(less):
            unit = max([unit, *(u for end, u in UNITS.items() if _name(part).endswith(end))])
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult):
                unit *= max(self._number(part.left) or 1, self._number(part.right) or 1)
        return self._number(less) == 0 or (self._number(more) or 0) >= GUARD_S * unit


@dataclass(frozen=True)
class _Place:
    """Within which functions a statement is."""

    measures: bool
    """Whether figures are measured there."""
    name: str = ""
    outermost: str = ""
    asynchronous: bool = False
    may_time_out: bool = False

    def within(self, node: ast.ClassDef | Function) -> "_Place":
        outermost = self.outermost
        if isinstance(node, Function):
            outermost = outermost or f"{node.name}:{node.lineno}"
        asynchronous = self.asynchronous or isinstance(node, ast.AsyncFunctionDef)
        name = f"{self.name}.{node.name}".lstrip(".")
        measures = self.measures or asynchronous
        return replace(
            self, measures=measures, name=name, outermost=outermost, asynchronous=asynchronous
        )
