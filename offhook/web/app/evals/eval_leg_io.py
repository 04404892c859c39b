"""The line of an eval: RTVI messages on a WebSocket, and with them sound in both directions.

Source: pipecat.evals.serializer and pipecat.serializers.rtvi_client, the harness's side.
"""

import asyncio
import base64
import binascii
import json
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

import numpy as np
from aiohttp import web
from pipecat.evals.serializer import (
    EVAL_BOT_AUDIO_TYPE,
    EVAL_CANCEL_MESSAGE_TYPE,
    EvalSerializer,
    parse_eval_connect,
)
from pipecat.frames.frames import Frame

from offhook.media.leg import CallInfo, Leg
from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, SAMPLES_IN, Pcm, dbfs
from offhook.media.untrusted_json import read_json
from offhook.web.app.callers.caller_leg import AUDIBLE_DBFS
from offhook.web.app.evals.sounds import Sounds
from offhook.web.speech_api.sockets.input_resampler import InputResampler

AUDIO_PACKETS = 5
"""Packets of 20 ms in a message with the agent's sound."""
MAX_UNSENT = 2000
"""Messages waiting to be sent; beyond it the oldest are dropped."""
MAX_BACKLOG_S = 120
"""Sound in s that the harness may send ahead; more is dropped."""
STOCK_PACKETS = 20
"""Packets of 20 ms of the harness's sound that are kept in stock: it does not catch up on a busy
machine, and a gap of 0.3 s within words might end the caller's turn."""
MIN_RATE, MAX_RATE = 8_000, 48_000
"""Lowest and highest rate in Hz of its sound; at another it is ignored."""

_SILENCE = np.zeros(SAMPLES_IN, np.int16)


def leaves(text: str) -> bool:
    """Whether a message of the harness says that it leaves."""
    return f'"{EVAL_CANCEL_MESSAGE_TYPE}"' in text


class EvalLeg(Leg):
    """Hears and is told what the harness sends."""

    def __init__(self, call_id: str, info: CallInfo, *, sends_audio: bool) -> None:
        """`sends_audio`: whether the harness listens to the agent's sound."""
        super().__init__(call_id)
        self.info = info
        self._sends_audio = sends_audio
        self._unsent: asyncio.Queue[str] = asyncio.Queue(MAX_UNSENT)
        self._incoming: deque[Pcm] = deque()
        self._incomplete = _SILENCE[:0]
        self._resampler, self._rate = InputResampler(RATE_IN), RATE_IN
        self._outgoing: list[Pcm] = []
        self._serializer = EvalSerializer()
        self.sounds = Sounds()
        self.has_answers_spoken = False
        """Whether answers are spoken even if the harness only reads them."""
        self.microphone: Callable[[Pcm], Pcm] = lambda sound: sound
        """What becomes of the caller's sound before it is sent."""
        self.has_answered = False
        """Whether the harness knows all of the agent's last answer."""
        self.reports_words = False
        """Whether the harness learns what was heard by `report`, not what the model writes."""
        self.model_writes = False
        """Whether the model has written something since this was set to False."""
        self._is_ready, self._readiness = True, ""

    async def receive(self, text: str) -> Frame | None:
        """Takes a message of the harness. Returns the frame that it stands for, if it is the
        harness's own way of asking for something, such as the messages to begin with."""
        try:
            message = read_json(text)
        except ValueError:
            return None
        data = message.get("data") if isinstance(message, dict) else None
        if not isinstance(data, dict) or parse_eval_connect(message) is not None:
            return None
        match message.get("type"):
            case "raw-audio":
                self._feed(data)
            case "dtmf":
                self.sounds.messages.append(monotonic())
                for key in data.get("buttons") or ():
                    self.listener.on_dtmf(str(key))
            case "client-message" if str(data.get("t")).startswith("eval-"):
                return await self._serializer.deserialize(text)
            case kind:
                if kind == "send-text":
                    now = monotonic()
                    self.sounds.messages.append(now)
                    self.sounds.give(now)
                    if self.has_answers_spoken:
                        data["options"] = {**(data.get("options") or {}), "audio_response": True}
                        text = json.dumps(message)
                self.listener.on_message(text)
        return None

    def _feed(self, data: Mapping[str, Any]) -> None:
        rate = data.get("sampleRate")
        if not isinstance(rate, int) or not MIN_RATE <= rate <= MAX_RATE:
            return
        if rate != self._rate:
            self._resampler, self._rate = InputResampler(rate), rate
        try:
            sound = np.frombuffer(base64.b64decode(str(data.get("base64Audio"))), np.int16)
        except (binascii.Error, ValueError):
            return
        heard = np.concatenate((self._incomplete, self._resampler.process(sound)))
        whole = len(heard) // SAMPLES_IN * SAMPLES_IN
        self._incomplete = heard[whole:]
        if len(self._incoming) * SAMPLES_IN < MAX_BACKLOG_S * RATE_IN:
            self._incoming.extend(heard[:whole].reshape(-1, SAMPLES_IN))

    async def send_to(self, socket: web.WebSocketResponse) -> None:
        """Sends the messages to the harness until cancelled, or it is gone."""
        with suppress(ConnectionError):
            while True:
                await socket.send_str(await self._unsent.get())

    @property
    def carries_messages(self) -> bool:
        return True

    def send_message(self, text: str) -> bool:
        if not self._is_ready and '"bot-ready"' in text:
            self._readiness = text
            return True
        if '"bot-llm-' in text:
            self.model_writes = self.model_writes or '"bot-llm-text"' in text
            if self.reports_words or not self._is_ready:
                return True
        return self._send_message(text)

    def _send_message(self, text: str) -> bool:
        if '"bot-llm-st' in text:  # started, or stopped
            self.has_answered = '"bot-llm-stopped"' in text
        if self._unsent.full():
            self._unsent.get_nowait()
        self._unsent.put_nowait(text)
        return True

    def report(self, words: str) -> None:
        """Tells the harness of something that the agent has said, as if a model had written it. A
        caller who begins behind the greeting has no use for that."""
        if not self._is_ready:
            return
        for kind, data in (("started", None), ("text", {"text": words}), ("stopped", None)):
            message = {"label": "rtvi-ai", "type": f"bot-llm-{kind}", "data": data}
            self._send_message(json.dumps(message))

    def hold_back(self) -> None:
        """Keeps from the harness that the agent is ready, until `release`."""
        self._is_ready = False

    def release(self) -> None:
        """Has the harness begin."""
        self._is_ready = True
        if self._readiness:
            self._send_message(self._readiness)

    def _receive(self, now: float) -> Pcm:
        sound = self._next_sound()
        if dbfs(sound) > AUDIBLE_DBFS:
            self.sounds.caller.note(now, now + PACKET_MS / 1000)
        return self.microphone(sound)

    def _next_sound(self) -> Pcm:
        """Returns what the caller says next. The stock grows in pauses, which get longer by it."""
        if not self._incoming or (
            len(self._incoming) < STOCK_PACKETS and not self._incoming[0].any()
        ):
            return _SILENCE
        return self._incoming.popleft()

    def _send(self, said: Pcm | None, now: float) -> None:
        if said is not None and dbfs(said) > AUDIBLE_DBFS:
            self.sounds.agent.note(now, now + PACKET_MS / 1000)
        if said is not None and self._sends_audio:
            self._outgoing.append(said)
        if self._outgoing and (said is None or len(self._outgoing) >= AUDIO_PACKETS):
            sound, self._outgoing = np.concatenate(self._outgoing), []
            audio = base64.b64encode(sound.tobytes()).decode()
            data = {"audio": audio, "sampleRate": RATE_OUT}
            message = {"label": "rtvi-ai", "type": EVAL_BOT_AUDIO_TYPE, "data": data}
            self.send_message(json.dumps(message))
