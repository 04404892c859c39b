"""The text of one transcription, in chunks that never have to be taken back. Sans-io."""

from offhook.pipeline.speech.engines import specs
from offhook.pipeline.speech.recognizer import Final, Partial
from offhook.web.speech_api.http.transcript import joined


def appends(engine: str) -> bool:
    """Returns whether an engine's final text always begins with the stable text of its partials.
    Others may revise it, so their text comes in whole finals."""
    return any(spec.appends for spec in specs("asr") if spec.name == engine)


class ChunkedTranscript:
    """Joined, the chunks are the text."""

    def __init__(self, engine: str) -> None:
        self.text = ""
        """Final text so far."""
        self._partials = appends(engine)
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
