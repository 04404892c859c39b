"""The line of a conversation by text: messages instead of sound."""

import json
from collections.abc import Callable
from time import monotonic

import numpy as np

from offhook.media.leg import CallInfo, Leg
from offhook.media.pcm import SAMPLES_IN, Pcm

_SILENCE = np.zeros(SAMPLES_IN, np.int16)


class TextLeg(Leg):
    """Hears what is typed, as a page's caller types; what the agent does with the line is told to
    `show`."""

    def __init__(self, call_id: str, info: CallInfo, show: Callable[[str], None]) -> None:
        super().__init__(call_id)
        self.info = info
        self.first_word_at: float | None = None
        """The time when the agent began to speak after what was typed last."""
        self.show = show
        self._texts = 0

    def type(self, text: str) -> None:
        """The caller types a text."""
        self._texts += 1
        self.first_word_at = None
        data = {"content": text}
        message = {"label": "rtvi-ai", "type": "send-text", "id": str(self._texts), "data": data}
        self.listener.on_message(json.dumps(message))

    @property
    def carries_messages(self) -> bool:
        return True

    def send_message(self, text: str) -> bool:
        return True

    def _receive(self, now: float) -> Pcm:
        return _SILENCE

    def _send(self, said: Pcm | None, now: float) -> None:
        if said is not None and self.first_word_at is None:
            self.first_word_at = monotonic()

    def send_dtmf(self, digits: str) -> None:
        self.show(f"presses {digits}")

    async def transfer(self, target: str) -> None:
        self.show(f"transfers the call to {target}")

    async def hold(self) -> None:
        self.show("puts the caller on hold")

    async def resume(self) -> None:
        self.show("takes the caller back")
