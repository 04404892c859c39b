"""A reply of any voice, in the words of a lexicon and with the pauses, rates and languages of SSML.

A voice speaks the text between two pauses, or changes of rate or language, as a reply of its own;
the next one begins once it has been spoken.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from loguru import logger

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.speech.script.lexicon import NO_LEXICON, Lexicon
from offhook.pipeline.speech.script.script import Delivery, Part, Pause, Script, Spans, Spoken
from offhook.pipeline.speech.script.ssml import MAX_BREAK_MS
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    MAX_SPEED,
    MIN_SPEED,
    Speech,
    Synthesizer,
    SynthesizerStream,
    TextTooLong,
    VoiceOptions,
)

MAX_WAITING_CHARS = 100_000
"""Maximum characters behind what is being spoken; further text is refused."""
MAX_PAUSES_S = 600
"""Maximum length of the pauses of a reply together; further ones are left out."""
PIECE_MS = 100
"""Length of a piece of silence."""


def open_speech(
    synthesizer: Synthesizer,
    options: VoiceOptions = DEFAULT_VOICE,
    lexicon: Lexicon = NO_LEXICON,
) -> SynthesizerStream:
    """Opens a reply as `Synthesizer.open` does, in which words are said as in `lexicon`, and as
    elements of SSML say."""
    return ScriptedSpeech(synthesizer, options, _script(synthesizer, options, lexicon))


def _script(synthesizer: Synthesizer, options: VoiceOptions, lexicon: Lexicon) -> Script:
    known = synthesizer.languages
    language = options.language or (known[0] if len(known) == 1 else "")
    return Script(
        lexicon.finder(language, options.voice), synthesizer.takes_ipa and options.normalise
    )


class _Section:
    """Text that is spoken at one rate and in one language, behind a pause."""

    def __init__(self, options: VoiceOptions) -> None:
        self.options = options
        self.pause_ms = 0
        self.stream: SynthesizerStream | None = None
        self.spans = Spans()
        self.text = ""
        """What is given to the voice once there is a stream, or to the next one."""
        self.may_fail = False
        """Whether the voice may not have these options."""
        self.has_text = False
        self.ended = False

    def write(self, written: str, given: str) -> None:
        self.spans.add(written, given)
        self.has_text = self.has_text or not (given.isspace() or not given)
        if self.stream is None or self.may_fail:
            self.text += given
        if self.stream is not None and given:
            self.stream.write(given)

    def end(self) -> None:
        self.ended = True
        if self.stream is not None:
            self.stream.end()

    def use(self, stream: SynthesizerStream) -> None:
        self.stream = stream
        if self.text:
            stream.write(self.text)
        if self.ended:
            stream.end()


@dataclass
class Speaker:
    """A synthesizer, and how words of its next replies are said."""

    synthesizer: Synthesizer
    lexicon: Lexicon
    _instead: dict[VoiceOptions, VoiceOptions] = field(default_factory=dict)
    """Options that the engine has refused, and those that it takes."""

    def open(self, options: VoiceOptions) -> SynthesizerStream:
        """See `open_speech`. Somebody listens: in place of a voice or language that the engine does
        not have, it speaks with its own, and the log says so once."""
        taken = self._instead.get(options, options)
        script = _script(self.synthesizer, taken, self.lexicon)
        return ScriptedSpeech(self.synthesizer, taken, script, partial(self._replace, options))

    def _replace(self, refused: VoiceOptions, taken: VoiceOptions, error: ValueError) -> None:
        if refused not in self._instead:
            logger.warning("{}: the engine's own voice speaks instead", error)
        self._instead[refused] = taken


class ScriptedSpeech:
    """One reply; implements `SynthesizerStream`."""

    def __init__(
        self,
        synthesizer: Synthesizer,
        options: VoiceOptions,
        script: Script,
        on_replaced: Callable[[VoiceOptions, ValueError], None] | None = None,
    ) -> None:
        """`on_replaced` is called with the options that are used in place of refused ones, and why;
        None: they are refused."""
        self._synthesizer, self._options, self._script = synthesizer, options, script
        self._on_replaced = on_replaced if options.voice or options.language else None
        first = _Section(options)
        first.may_fail = self._on_replaced is not None
        try:
            first.use(synthesizer.open(options))
        except ValueError:
            if not first.may_fail:
                raise
        self._sections = deque([first])
        """The first is spoken, the last written."""
        self._waiting_chars = 0
        """Characters given to sections that have no stream."""
        self._pauses_ms = MAX_PAUSES_S * 1000
        """What is left for pauses."""
        self._ended = self._cancelled = False
        self._news = asyncio.Event()

    def write(self, text: str) -> None:
        """Adds text. Raises TextTooLong."""
        if self._waiting_chars + len(text) > MAX_WAITING_CHARS:
            raise TextTooLong(f"more than {MAX_WAITING_CHARS} characters are waiting to be spoken")
        self._add(self._script.feed(text))

    def end(self) -> None:
        self._add(self._script.feed("", final=True))
        self._ended = True
        self._sections[-1].end()

    def cancel(self) -> None:
        self._cancelled = True
        for section in self._sections:
            if section.stream is not None:
                section.stream.cancel()
        self._news.set()

    def _add(self, parts: list[Part]) -> None:
        for part in parts:
            section = self._sections[-1]
            match part:
                case Spoken(written, given):
                    section.write(written, given)
                    if section.stream is None:
                        self._waiting_chars += len(given)
                case Pause(written, ms):
                    section = self._section(section.options)
                    most = min(self._pauses_ms, MAX_BREAK_MS - section.pause_ms)
                    section.pause_ms += min(ms, most)
                    self._pauses_ms -= min(ms, most)
                    section.write(written, "")
                case Delivery(written, rate, language):
                    speed = min(max(self._options.speed * rate, MIN_SPEED), MAX_SPEED)
                    language = language or self._options.language
                    section = self._section(
                        replace(self._options, speed=round(speed, 3), language=language)
                    )
                    section.write(written, "")
        self._news.set()

    def _section(self, options: VoiceOptions) -> _Section:
        """Returns a section without text that is spoken with these options, the last one if it has
        none."""
        section = self._sections[-1]
        if section.has_text:
            section.end()
            self._sections.append(_Section(options))
        elif options != section.options:
            if section.stream is not None:
                section.stream.cancel()
                section.stream = None
            section.options = options
        section = self._sections[-1]
        differs = options.language != self._options.language
        section.may_fail = differs or self._on_replaced is not None
        return section

    async def __aiter__(self) -> AsyncIterator[Speech]:
        while not self._cancelled:
            section = self._sections[0]
            while not (section.has_text or section.ended or self._cancelled):
                self._news.clear()
                await self._news.wait()
            for piece in _silence(section.pause_ms):
                if self._cancelled:
                    return
                yield piece
            if section.has_text or section.stream is not None:
                async for speech in self._spoken(section):
                    yield speech
            if not self._cancelled and (rest := section.spans.rest()):
                yield Speech(np.zeros(0, np.int16), rest)
            if len(self._sections) == 1:
                return
            self._sections.popleft()

    async def _spoken(self, section: _Section) -> AsyncIterator[Speech]:
        """Yields the speech of a section; in the reply's own language if the voice has not that of
        the section. Raises EngineError."""
        self._waiting_chars -= len(section.text) * (section.stream is None)
        fault, candidates = None, self._candidates(section)
        for options in candidates:
            heard = False
            try:
                if section.stream is None:
                    section.use(self._synthesizer.open(options))
                assert section.stream is not None
                async for speech in section.stream:
                    if fault is not None and not heard and section.options == self._options:
                        self._report(options, fault)
                    heard = True
                    text = section.spans.pop(len(speech.text))
                    yield Speech(speech.pcm, text, speech.passed_over)
                return
            except ValueError as error:  # a remote voice refuses options with its first speech
                if heard or options == candidates[-1]:
                    raise  # it would have refused the whole reply
                fault, section.stream = fault or error, None

    def _report(self, options: VoiceOptions, fault: ValueError) -> None:
        if self._on_replaced is not None:
            self._on_replaced(options, fault)

    def _candidates(self, section: _Section) -> list[VoiceOptions]:
        """Returns options with which a section may be spoken, the best first."""
        own = replace(section.options, language=self._options.language)
        if not section.may_fail:
            return [own]
        found = [section.options, replace(section.options, voice=""), own]
        if self._on_replaced is not None:
            found += [replace(own, voice=""), replace(own, voice="", language="")]
        return list(dict.fromkeys(found))


def _silence(ms: int) -> Iterator[Speech]:
    for at in range(0, ms, PIECE_MS):
        samples = min(PIECE_MS, ms - at) * RATE_OUT // 1000
        yield Speech(np.zeros(samples, np.int16), "")
