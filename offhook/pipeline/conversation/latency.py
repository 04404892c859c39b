"""The latency of one turn, span by span."""

from offhook.pipeline.conversation.events import TurnLatency

VOICE_GAP_MS = 100
"""ms of silence at which the turn's clock starts; the VAD waits longer before it ends speech."""
STAMPS = (
    "packet_in",
    "speech_end",
    "asr_final",
    "turn_decided",
    "llm_first_token",
    "tts_first_audio",
    "first_packet",
)
"""`packet_in`: arrival of the packet with the last voiced sound; `speech_end`: the voice detector
noticed the silence; the others as named."""


class TurnStopwatch:
    """The timestamps of one turn, in seconds of one monotonic clock."""

    def __init__(self, turn: int, silence_ms: int) -> None:
        self.turn = turn
        self.silence_ms = silence_ms
        """The silence required by policy before this turn could end."""
        self._stamps: dict[str, float] = {}

    @classmethod
    def after_words(
        cls, turn: int, required_ms: int, silence_ms: int, buffer_ms: float, now: float
    ) -> "TurnStopwatch":
        """Return a stopwatch of a turn whose speech ended `silence_ms` ago, `buffer_ms` after its
        last packet had arrived."""
        watch = cls(turn, required_ms)
        watch.stamp("packet_in", now - silence_ms / 1000 - buffer_ms / 1000)
        watch.stamp("speech_end", now - max(0, silence_ms - VOICE_GAP_MS) / 1000)
        return watch

    @classmethod
    def after_keys(cls, turn: int, waited_ms: int, now: float) -> "TurnStopwatch":
        """Return a stopwatch that excludes the wait after the last key, which is intended."""
        watch = cls(turn, waited_ms)
        watch.stamp("packet_in", now - waited_ms / 1000)
        return watch

    def stamp(self, name: str, now: float) -> None:
        """Records a stamp; only the first of each name counts."""
        self._stamps.setdefault(name, now)

    @property
    def complete(self) -> bool:
        return "packet_in" in self._stamps and "first_packet" in self._stamps

    def latency(self, at_ms: int) -> TurnLatency:
        """Returns the spans between the stamps in order of time, each named by the stamp that ends
        it."""
        stamped = sorted(self._stamps.items(), key=lambda item: (item[1], STAMPS.index(item[0])))
        start = self._stamps["packet_in"]
        spans = []
        before = start
        for name, at in stamped:
            if at >= start and name != "packet_in":
                spans.append((name, round((at - before) * 1000)))
                before = at
        total = round((self._stamps["first_packet"] - start) * 1000)
        return TurnLatency(at_ms, self.turn, tuple(spans), total, min(self.silence_ms, total))
