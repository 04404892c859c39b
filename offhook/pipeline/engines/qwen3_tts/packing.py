"""Packs steps, pieces and prompts into the integers of a launch; numpy only.

Two 32-bit numbers share a 64-bit integer, so that the device converts nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offhook.pipeline.engines.shared.pages import PAGE_SIZE
from offhook.pipeline.engines.shared.synthesis.messages import (
    MAX_TOKENS,
    PIECE_FRAMES,
    Piece,
    Prompt,
)

Ints = NDArray[np.int64]

TABLE_WIDTH = MAX_TOKENS // PAGE_SIZE
FLOATS = ("temperature", "penalty", "predictor_temperature")
"""Per-slot sampling parameters passed as floats."""
COUNTS = ("seeds", "top_k", "predictor_top_k")
"""Per-slot sampling parameters passed as integers."""


def halves(count: int) -> int:
    """Returns the 64-bit integers that hold `count` 32-bit numbers."""
    return (count + 1) // 2


def step_layout(streams: int) -> dict[str, int]:
    rows = ("slots", "text", "frames", "positions", "before", "after", "places", "segment")
    whole = dict.fromkeys((*rows, *COUNTS), streams)
    return {
        **whole,
        **dict.fromkeys((*FLOATS, "lengths"), halves(streams)),
        "pages": streams * halves(TABLE_WIDTH),
    }


def prefill_layout(tokens: int, prompts: int) -> dict[str, int]:
    whole = dict.fromkeys(("text", "codec", "vector", "positions", "places"), tokens)
    pages = {"pages": prompts * halves(TABLE_WIDTH)}
    return {**whole, **pages, "lengths": halves(prompts), "starts": halves(prompts + 1)}


def codec_layout(streams: int, frames: int) -> dict[str, int]:
    return {"slots": streams, "first": streams, "rows": streams * frames}


def table(pages: Ints) -> NDArray[np.int32]:
    """Views the field `pages` as int32 [sequences, TABLE_WIDTH]."""
    return pages.view(np.int32).reshape(-1, TABLE_WIDTH)


def places(pages: NDArray[np.int32], positions: Ints) -> Ints:
    """Maps positions [n] to slots of the flat cache; `pages` [n, TABLE_WIDTH] are their streams'
    pages."""
    page = pages[np.arange(len(positions)), positions // PAGE_SIZE]
    found: Ints = page.astype(np.int64) * PAGE_SIZE + positions % PAGE_SIZE
    return found


def prompt_batches(prompts: Sequence[Prompt], tokens: int, most: int) -> Iterator[Sequence[Prompt]]:
    """Splits prompts, in order, into batches of at most `tokens` rows and `most` prompts."""
    batch: list[Prompt] = []
    rows = 0
    for prompt in prompts:
        rows += len(prompt.rows)
        if batch and (rows > tokens or len(batch) == most):
            yield batch
            batch, rows = [], len(prompt.rows)
        batch.append(prompt)
    if batch:
        yield batch


class Run(NamedTuple):
    """Rows of a launch whose vectors are consecutive in the buffer that they come from."""

    row: int
    vector: int
    length: int


def runs(vectors: Sequence[int]) -> list[Run]:
    """Groups rows by consecutive vectors; `vectors` holds each row's vector, or -1 for none."""
    found: list[Run] = []
    for row, vector in enumerate(vectors):
        if vector < 0:
            continue
        last = found[-1] if found else None
        if last and last.row + last.length == row and last.vector + last.length == vector:
            found[-1] = last._replace(length=last.length + 1)
        else:
            found.append(Run(row, vector, 1))
    return found


def codec_batches(
    pieces: Sequence[Piece], most: Callable[[int], int]
) -> Iterator[tuple[int, list[int]]]:
    """Yields codec launches as (frames per stream, indices of pieces), with at most `most(frames)`
    pieces each. The shortest pieces come first, since they are the most urgent."""
    for count in PIECE_FRAMES:
        same = [i for i, piece in enumerate(pieces) if piece.count == count]
        at_once = most(count)
        for first in range(0, len(same), at_once):
            yield count, same[first : first + at_once]


def cuts(frames: int) -> Iterator[tuple[int, int]]:
    """Yields (first, count) of the pieces that make up `frames` frames."""
    first = 0
    for count in reversed(PIECE_FRAMES):
        while frames - first >= count:
            yield first, count
            first += count
