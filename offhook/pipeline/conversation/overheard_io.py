"""Sides of a call whose words are recognized turn by turn while no agent answers them: those of a
call between others, and the members of a room."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from loguru import logger

from offhook.media.leg import Leg
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.call.agent import Engines
from offhook.pipeline.conversation.events import CallerTurn, Event, SpeechStarted
from offhook.pipeline.conversation.turns.turn import TurnState
from offhook.pipeline.conversation.turns.user_turn_io import UserTurnController
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import RecognizerStream

LAST_WORDS_S = 10.0
"""Time limit in s for the words that were still being spoken or recognized when the call ended;
then they are missing from it."""
_SPOKEN = (TurnState.HEARING, TurnState.ENDING, TurnState.SUSPECTED, TurnState.JUDGING)
"""States in which there may be words that are no turn yet."""

OnTurn = Callable[[str, int], None]
"""Is called with the words of a turn, and with how long ago it began, in ms."""


class OverheardSide:
    """Recognizes what is received on one leg. `close` must follow `open`."""

    def __init__(
        self, leg: Leg, engines: Engines, stream: RecognizerStream, on_turn: OnTurn
    ) -> None:
        self._turned = asyncio.Event()
        """Set by each turn."""
        self._on_turn = on_turn
        self._began_ms: int | None = None
        """When the turn in progress began."""
        name = engines.recognizer.name
        self._controller = UserTurnController(
            leg, engines.turn_detection, stream, self._receive, lambda occasion: None, name
        )
        self._controller.agent.interruptible = False  # there is no agent to wait for

    @classmethod
    async def open(cls, leg: Leg, engines: Engines, on_turn: OnTurn) -> "OverheardSide":
        """Begin to listen. Raises EngineError."""
        return cls(leg, engines, await engines.recognizer.open(engines.hearing), on_turn)

    def _receive(self, event: Event) -> None:
        match event:
            case SpeechStarted(at_ms) if self._began_ms is None:
                self._began_ms = at_ms
            case CallerTurn(at_ms, _, text):
                began_ms = at_ms if self._began_ms is None else self._began_ms
                self._began_ms = None
                self._turned.set()
                if text:
                    self._on_turn(text, at_ms - began_ms)

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


class OverheardSides:
    """The words of several sides of a call, each by its name, for as long as it is followed."""

    def __init__(
        self,
        call_id: str,
        engines: Engines,
        on_turn: Callable[[str, str, int], None],
        on_missing: Callable[[str, str], None],
    ) -> None:
        """`on_turn` is called with the name of a side and what `OnTurn` gets, `on_missing` with the
        name of one that cannot be recognized and why."""
        self._call_id, self._engines = call_id, engines
        self._on_turn, self._on_missing = on_turn, on_missing
        self._followed: dict[Leg, asyncio.Event] = {}
        """Each with what is set once it is followed no more."""
        self._missing: set[Leg] = set()
        self._tasks = TaskSet()

    @property
    def complete(self) -> bool:
        """Whether there are sides that are followed, and all of them can be recognized."""
        return bool(self._followed) and not self._missing

    def follow(self, sides: Mapping[Leg, str]) -> None:
        """Listen to these sides from now on, and to no others."""
        for gone in self._followed.keys() - sides.keys():
            self._followed.pop(gone).set()
            self._missing.discard(gone)
        for leg, name in sides.items():
            if leg not in self._followed:
                over = self._followed[leg] = asyncio.Event()
                self._tasks.spawn(self._listen(leg, name, over), f"words {self._call_id}")

    async def _listen(self, leg: Leg, name: str, over: asyncio.Event) -> None:
        def turn(text: str, ago_ms: int) -> None:
            self._on_turn(name, text, ago_ms)

        try:
            side = await OverheardSide.open(leg, self._engines, turn)
        except EngineError as error:
            line = logger.bind(a_minute=f"words {self._call_id}")
            line.warning("{}: {} is not recognized: {}", self._call_id, name, error)
            if leg in self._followed:
                self._missing.add(leg)
            self._on_missing(name, str(error))
            return
        try:
            await over.wait()
        finally:
            await side.close()

    async def close(self) -> None:
        """Wait for the last words."""
        for over in self._followed.values():
            over.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2 * LAST_WORDS_S)
        await self._tasks.close()
