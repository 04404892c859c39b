"""Names of the files of a recording."""

from pathlib import PurePath
from typing import TypeVar

AnyPath = TypeVar("AnyPath", bound=PurePath)

SUFFIX = ".sealed"
"""Follows the name of a sealed file."""


def timeline_path(sound: AnyPath) -> AnyPath:
    """Returns where the timeline is that belongs to a sound: NAME.jsonl, or NAME.jsonl.sealed."""
    suffix = SUFFIX if sound.name.endswith(SUFFIX) else ""
    return sound.with_name(sound.name.removesuffix(suffix)).with_suffix(f".jsonl{suffix}")
