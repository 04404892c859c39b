"""One progress bar for several models: all are loaded first, then all are warmed up."""

from collections.abc import Callable

from offhook.pipeline.speech.recognizer import Progress

DOWNLOADING = "downloading"
"""First word of the description while weights come from a hub."""
LOAD_SHARE = 0.7
"""Share of the bar for loading weights; the rest is for warm-up."""


class Bar:
    def __init__(self, progress: Progress, models: int) -> None:
        self._progress = progress
        self._begin = 0.0
        self._read_share = LOAD_SHARE / models

    def reading(self, model: str) -> Callable[[int, int], None]:
        """Returns the callback for loading the next model; it is called with (bytes done, total
        bytes), and until all have come the model is being downloaded."""
        begin, self._begin = self._begin, self._begin + self._read_share
        self._progress(begin, f"reading {model}")

        def read(done: int, total: int) -> None:
            part = done / total if total else 0.0
            doing = DOWNLOADING if part < 1 else "reading"
            self._progress(begin + self._read_share * min(1.0, part), f"{doing} {model}")

        return read

    def warming(self, share: float = 1.0) -> Progress:
        """Returns the callback for warming up the next model, which takes this share of the
        warm-up."""
        begin, width = self._begin, (1 - LOAD_SHARE) * share
        self._begin += width
        return lambda fraction, what: self._progress(
            min(1.0, begin + width * fraction), f"warming up: {what}"
        )
