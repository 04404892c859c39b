"""The text of one transcription, in chunks that never have to be taken back. Sans-io."""

from offhook.pipeline.speech.engine_spec import Trait
from offhook.pipeline.speech.engines import has_trait
from offhook.pipeline.speech.recognizer import Final, Partial
from offhook.web.speech_api.http.transcript import joined

APPENDS: Trait = "appends"
"""Engines with this trait never take back what their partials say; the text of others comes in
whole finals."""


class ChunkedTranscript:
    """Joined, the chunks are the text."""

    def __init__(self, engine: str) -> None:
        self.text = ""
        """Final text so far."""
        self._partials = has_trait(engine, APPENDS)
        self._sent = ""

    def update(self, event: Partial | Final) -> str:
        """Returns the next chunk; empty if nothing is certain yet."""
        if isinstance(event, Final):
            self.text = joined((self.text, event.text))
            return self._new(self.text)
        if not self._partials:
            return ""
        return self._new(joined((self.text, event.text[: event.stable_chars].rstrip())))

    def _new(self, text: str) -> str:
        if not text.startswith(self._sent):
            return ""
        chunk, self._sent = text[len(self._sent) :], text
        return chunk
