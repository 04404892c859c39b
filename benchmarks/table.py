"""Percentiles of what is measured, and rows printed as they are, as a table or JSON lines."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np


class Table:
    """`columns` names each column with its unit ("voices first_p50_ms")."""

    def __init__(self, part: str, note: str, columns: str, as_json: bool) -> None:
        self._part = part
        self._columns = columns.split()
        self._json = as_json
        if not as_json:
            print(f"\n{part}: {note}")
            heads = (f"{name.replace('_', ' '):>{_width(name)}}" for name in self._columns)
            print(" ".join(heads), flush=True)

    def row(self, **fields: Any) -> None:
        plain = {name: _plain(value) for name, value in fields.items()}
        if self._json:
            print(json.dumps({"part": self._part, **plain}), flush=True)
            return
        cells = ("-" if plain.get(name) is None else plain[name] for name in self._columns)
        widths = map(_width, self._columns)
        print(" ".join(f"{cell!s:>{w}}" for cell, w in zip(cells, widths, strict=True)), flush=True)


def _width(name: str) -> int:
    return max(9, len(name))


def _plain(value: Any) -> Any:
    """Rounds numbers and replaces nan, which JSON lacks."""
    if not isinstance(value, float):
        return value
    return None if value != value else float(f"{value:.4g}")


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns nan for an empty sequence."""
    return float(np.percentile(np.asarray(values), percent)) if len(values) else float("nan")


def percentiles(values: Sequence[float] | Any, digits: int = 1) -> dict[str, float]:
    """Returns p50, p95, p99 and max of a list or array, rounded; nothing of none."""
    if not len(values):
        return {}
    found = np.round(np.percentile(values, (50, 95, 99, 100)), digits)
    return dict(zip(("p50", "p95", "p99", "max"), found.tolist(), strict=True))


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
