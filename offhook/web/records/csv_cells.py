"""Lines of CSV files that no spreadsheet takes for formulas."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any


def harmless(value: Any) -> Any:
    """Returns a cell that no spreadsheet takes for a formula."""
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if is_formula else value


def csv_line(cells: Sequence[Any]) -> str:
    """Returns a line with its end; lists and objects are written as JSON."""
    line = io.StringIO()
    texts = (
        json.dumps(cell, ensure_ascii=False) if isinstance(cell, (dict, list)) else cell
        for cell in cells
    )
    csv.writer(line).writerow(map(harmless, texts))
    return line.getvalue()
