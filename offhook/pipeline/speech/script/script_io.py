"""A reply of any voice in the words of a lexicon."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from offhook.pipeline.speech.script.lexicon import NO_LEXICON, Lexicon
from offhook.pipeline.speech.script.script import Script, Spans, Spoken
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    Speech,
    Synthesizer,
    SynthesizerStream,
    VoiceOptions,
)


def open_speech(
    synthesizer: Synthesizer,
    options: VoiceOptions = DEFAULT_VOICE,
    lexicon: Lexicon = NO_LEXICON,
) -> SynthesizerStream:
    """Opens a reply as `Synthesizer.open` does, in which words are said as in `lexicon`."""
    known = synthesizer.languages
    language = options.language or (known[0] if len(known) == 1 else "")
    script = Script(
        lexicon.finder(language, options.voice), synthesizer.takes_ipa and options.normalise
    )
    return ScriptedSpeech(synthesizer.open(options), script)


@dataclass
class Speaker:
    """A synthesizer, and how words of its next replies are said."""

    synthesizer: Synthesizer
    lexicon: Lexicon

    def open(self, options: VoiceOptions) -> SynthesizerStream:
        """See `open_speech`."""
        return open_speech(self.synthesizer, options, self.lexicon)


class ScriptedSpeech:
    """One reply; implements `SynthesizerStream`."""

    def __init__(self, stream: SynthesizerStream, script: Script) -> None:
        self._stream, self._script = stream, script
        self._spans = Spans()

    def write(self, text: str) -> None:
        self._give(self._script.feed(text))

    def end(self) -> None:
        self._give(self._script.feed("", final=True))
        self._stream.end()

    def cancel(self) -> None:
        self._stream.cancel()

    def _give(self, pieces: list[Spoken]) -> None:
        for piece in pieces:
            self._spans.add(piece.written, piece.given)
            self._stream.write(piece.given)

    async def __aiter__(self) -> AsyncIterator[Speech]:
        async for speech in self._stream:
            text = self._spans.take(len(speech.text))
            yield Speech(speech.pcm, text, speech.passed_over)
