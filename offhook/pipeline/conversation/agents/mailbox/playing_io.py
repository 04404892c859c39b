"""Plays a sound, or says a text, whatever the caller says and presses meanwhile: it is no part of
the conversation."""

import asyncio
from collections import deque
from collections.abc import Iterator

import numpy as np
from loguru import logger

from offhook.media.leg import Leg
from offhook.media.pcm import SAMPLES_OUT, Pcm
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.speech.errors import EngineError

SPEAK_S = 60.0
"""Time limit in s for a text to be synthesized; the rest of it is left out then."""

_SILENCE = np.zeros(SAMPLES_OUT, np.int16)


class _Sound:
    """A sound that may still grow, and silence after it; see `Leg.playing`."""

    def __init__(self) -> None:
        self.played = asyncio.Event()
        """Set once it has ended and was played."""
        self._ticks: deque[Pcm] = deque()
        self._rest: Pcm = _SILENCE[:0]
        self._ended = False

    def add(self, pcm: Pcm) -> None:
        sound = np.concatenate((self._rest, pcm))
        whole = len(sound) // SAMPLES_OUT * SAMPLES_OUT
        self._ticks.extend(sound[:whole].reshape(-1, SAMPLES_OUT))
        self._rest = sound[whole:]

    def end(self) -> None:
        self.add(_SILENCE[len(self._rest) :])
        self._ended = True

    def __iter__(self) -> Iterator[Pcm]:
        return self

    def __next__(self) -> Pcm:
        if self._ticks:
            return self._ticks.popleft()
        if self._ended:
            self.played.set()
        return _SILENCE


async def play(leg: Leg, pcm: Pcm) -> None:
    """Play a sound at 24 kHz to its end."""
    sound = _Sound()
    sound.add(pcm)
    sound.end()
    with leg.playing(sound):
        await sound.played.wait()


async def speak(call: Call, text: str) -> None:
    """Say a text in the voice of the call; one that fails leaves it out."""
    sound, stream = _Sound(), call.voice.speaker.open(call.language.speaking)
    with call.leg.playing(sound):
        try:
            async with asyncio.timeout(SPEAK_S):
                stream.write(text)
                stream.end()
                async for speech in stream:
                    sound.add(speech.pcm)
        except (EngineError, TimeoutError) as error:
            logger.warning("{}: not said: {}", call.leg.call_id, str(error) or "it takes too long")
        finally:
            stream.cancel()
        sound.end()
        await sound.played.wait()
