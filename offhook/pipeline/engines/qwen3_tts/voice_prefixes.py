"""Caches the KV pages of recently used voices, whose prompt before the text is always the same.

A segment starts with a copy of them, so a cached voice costs no prefill. It must be a copy, since
the last page continues with the segment's own frames; whole pages before it are few.

Everything follows launch order: pages of an evicted voice can be rewritten at once, because earlier
copies have completed by then. Only the sources of the launch being prepared must stay.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass
class _Voice:
    pages: list[int]
    launch: int
    """Number of the launch that used it last."""


class VoicePrefixes:
    def __init__(self, pages: Sequence[int]) -> None:
        self._free = list(pages)
        self._voices: dict[Hashable, _Voice] = {}  # least recently used first

    def find(self, key: Hashable, launch: int) -> list[int] | None:
        """Returns the voice's pages for launch number `launch` to copy from; None if it is not
        cached."""
        voice = self._voices.pop(key, None)
        if voice is None:
            return None
        self._voices[key] = voice
        voice.launch = launch
        return voice.pages

    def add(self, key: Hashable, pages: int, launch: int) -> list[int] | None:
        """Returns pages for a new voice, to be written in launch number `launch`, evicting the
        least recently used one; None if this launch uses them all."""
        spare = len(self._free)
        leaving = []
        for other, voice in self._voices.items():
            if spare >= pages:
                break
            if voice.launch != launch:
                leaving.append(other)
                spare += len(voice.pages)
        if spare < pages:
            return None
        for other in leaving:
            self._free += self._voices.pop(other).pages
        taken = [self._free.pop() for _ in range(pages)]
        self._voices[key] = _Voice(taken, launch)
        return taken
