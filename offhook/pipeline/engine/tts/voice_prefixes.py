"""KV pages of voices that were heard lately: what comes before a text is the same every time.

A segment begins with a copy of them, so a hot voice costs no prefill. It is a copy and not the
pages themselves because the last page goes on with the segment's own frames; whole pages before it
are few.

All is in the order of the launches: pages of a voice that gives way may be written again at once,
for whatever was copied from them has been copied by then. Only what the launch that is being
prepared copies from must stay.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass
class _Voice:
    pages: list[int]
    launch: int
    """That used it last."""


class VoicePrefixes:
    def __init__(self, pages: Sequence[int]) -> None:
        self._free = list(pages)
        self._voices: dict[Hashable, _Voice] = {}  # the one used longest ago comes first

    def find(self, key: Hashable, launch: int) -> list[int] | None:
        """The voice's pages, for the launch of this number to copy from; None: it is not here."""
        voice = self._voices.pop(key, None)
        if voice is None:
            return None
        self._voices[key] = voice
        voice.launch = launch
        return voice.pages

    def add(self, key: Hashable, pages: int, launch: int) -> list[int] | None:
        """Pages for a voice that is not here, to be written in the launch of this number; whoever
        was used longest ago gives way. None: they are all used by this launch."""
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
