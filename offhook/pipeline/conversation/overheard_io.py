"""One side of a call between others, whose words are recognized turn by turn while nobody here
answers them."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from offhook.media.leg import Leg
from offhook.pipeline.conversation.call.agent import Engines
from offhook.pipeline.conversation.events import CallerTurn, Event
from offhook.pipeline.conversation.turns.turn import TurnState
from offhook.pipeline.conversation.turns.user_turn_io import UserTurnController
from offhook.pipeline.speech.recognizer import RecognizerStream

LAST_WORDS_S = 10.0
"""Time limit in s for the words that were still being spoken or recognized when the call ended;
then they are missing from it."""
_SPOKEN = (TurnState.HEARING, TurnState.ENDING, TurnState.SUSPECTED, TurnState.JUDGING)
"""States in which there may be words that are no turn yet."""


class OverheardSide:
    """Recognizes what is received on one leg. `close` must follow `open`."""

    def __init__(
        self, leg: Leg, engines: Engines, stream: RecognizerStream, on_turn: Callable[[str], None]
    ) -> None:
        self._turned = asyncio.Event()
        """Set by each turn."""
        self._on_turn = on_turn
        name = engines.recognizer.name
        self._controller = UserTurnController(
            leg, engines.turn_detection, stream, self._receive, lambda occasion: None, name
        )
        self._controller.agent.interruptible = False  # there is no agent to wait for

    @classmethod
    async def open(
        cls, leg: Leg, engines: Engines, on_turn: Callable[[str], None]
    ) -> "OverheardSide":
        """Begin to listen; `on_turn` is called with the words of each turn. Raises EngineError."""
        return cls(leg, engines, await engines.recognizer.open(engines.hearing), on_turn)

    def _receive(self, event: Event) -> None:
        if isinstance(event, CallerTurn):
            self._turned.set()
            if event.text:
                self._on_turn(event.text)

    async def close(self) -> None:
        """Have what was spoken last recognized, and stop listening."""
        try:
            if self._controller.state in _SPOKEN:
                self._turned.clear()
                self._controller.commit()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORDS_S):
                        await self._turned.wait()
        finally:
            await self._controller.close()
