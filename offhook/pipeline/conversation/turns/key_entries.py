"""The keys of a turn: entries that are complete and belong to it. Sans-io."""

from offhook.pipeline.conversation.digits import Digits, GatherOptions, as_text
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.transcript import join


class KeyEntries:
    """The key entries of one caller; times are positions on the line in ms."""

    def __init__(self) -> None:
        self.pressed_ms = 0
        """When a key was last pressed."""
        self.text = ""
        """Complete entries not yet handed over, as written by `digits.as_text`."""
        self._digits = Digits()

    def expect(self, options: GatherOptions) -> None:
        """Set how the next keys form an entry."""
        self._digits.expect(options)

    def press(self, key: str, now_ms: int) -> None:
        if self._digits.press(key, now_ms):
            self.pressed_ms = now_ms

    def gather(self, now_ms: int) -> None:
        """Take what is complete by now."""
        self._digits.handle_timer(now_ms)
        while (keys := self._digits.next_entry()) is not None:
            self.text = join(self.text, as_text(keys))

    def pop(self) -> str:
        """Return the complete entries, which are handed over."""
        text, self.text = self.text, ""
        return text

    def update_facts(self, facts: Facts) -> None:
        """State what is known of the keys."""
        facts.keying, facts.keyed = self._digits.collecting, bool(self.text)
