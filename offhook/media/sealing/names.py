"""Names of the files of a recording."""

from pathlib import Path

SUFFIX = ".sealed"
"""Follows the name of a sealed file."""


def timeline_path(sound: Path) -> Path:
    """Returns where the timeline is that belongs to a sound: NAME.jsonl, or NAME.jsonl.sealed."""
    suffix = SUFFIX if sound.name.endswith(SUFFIX) else ""
    return sound.with_name(sound.name.removesuffix(suffix)).with_suffix(f".jsonl{suffix}")
