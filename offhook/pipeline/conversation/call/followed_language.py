"""What follows a caller into another language of the agent."""

from collections.abc import Callable

from offhook.media.leg import Leg
from offhook.pipeline.conversation.call.agent import Agent, Engines
from offhook.pipeline.conversation.call.call_language import CallLanguage, detected
from offhook.pipeline.conversation.events import Event, LanguageChanged
from offhook.pipeline.conversation.services_io import OffhookTTS


class FollowedLanguage:
    """The language of one call, in which it is spoken to the caller."""

    def __init__(
        self, leg: Leg, emit: Callable[[Event], None], on_pause: Callable[[str], None]
    ) -> None:
        """`on_pause` is called with "" to have an answer dropped that was begun in the language
        before."""
        self._leg, self._emit, self._on_pause = leg, emit, on_pause
        self.voice: OffhookTTS
        """Set when the call begins."""

    def change(self, agent: Agent, engines: Engines) -> None:
        """Begin in the first language of an agent. A program that directs one sets its language
        itself."""
        self._voices = engines.languages if agent.direction is None else {}
        self._language = CallLanguage(tuple(self._voices), detected)
        self.speaking = engines.speaking
        """How it is spoken now."""

    @property
    def is_first(self) -> bool:
        """Whether it is the one in which the agent began."""
        return self._language.is_first

    def turn(self, text: str, recognized: str = "") -> None:
        """Go on in the language of what the caller has said, if that is another one of the agent's
        now; `recognized` as in `CallLanguage.turn`."""
        before = self._language.current
        if self._language.turn(text, recognized):
            code = self._language.current
            self.speaking = self.voice.options = self._voices[code]
            self._on_pause("")
            self._emit(LanguageChanged(self._leg.heard_ms, code, before))

    def added_to(self, instructions: str | None) -> str | None:
        """Return the instructions for a model, and in which language the caller is now."""
        added = self._language.instruction
        return f"{instructions}\n\n{added}" if added else instructions
