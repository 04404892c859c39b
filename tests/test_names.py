"""Names are the field's standard terms (CONTRIBUTING.md, "Words"): these are not."""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "offhook"
BARE = {"State", "Counts", "Line", "Office", "Core", "Turns", "Sources", "Do", "Left"}
"""Class names that say what only together with another word."""
PRIVATE = re.compile(
    r"(?:^|_)(hearing|hear|hears|ears|tell|tells|told|said|asked|served|took|whoever|who|manner"
    r"|patience|beginnings|flights|came|let|take|takes)(?:_|$)"
)
"""Words of names for which the field has others: receive, report, reply, request, handle, apply."""


def names(path: Path) -> set[str]:
    """Of the classes and functions of a file."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}


def test_names_are_standard_terms() -> None:
    for path in PACKAGE.rglob("*.py"):
        snake = {name: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in names(path)}
        found = [name for name in snake if name in BARE or PRIVATE.search(snake[name])]
        assert not found, path
