"""`[prices.MODEL]`: what language models cost."""

from pydantic import Field

from offhook.pipeline.conversation.events import TokensUsed
from offhook.web.config.section import Section


class Prices(Section):
    """What a million tokens of a model cost, in whatever currency."""

    input: float = Field(ge=0)
    """Of what is sent to it."""
    output: float = Field(ge=0)
    """Of what it answers, with its reasoning."""
    cached: float | None = Field(None, ge=0)
    """Of input that its server had in a cache; without it, as other input."""
    audio_input: float | None = Field(None, ge=0)
    """Of audio that is sent to it; without it, as other input."""
    audio_output: float | None = Field(None, ge=0)
    """Of audio that it answers; without it, as other output."""

    def cost(self, used: TokensUsed) -> float:
        """Returns what an answer cost."""
        cached = self.input if self.cached is None else self.cached
        audio_input = self.input if self.audio_input is None else self.audio_input
        audio_output = self.output if self.audio_output is None else self.audio_output
        fresh_audio = used.audio_input_tokens - used.cached_audio_tokens
        millionths = (
            max(0, used.input_tokens - used.cached_tokens - fresh_audio) * self.input
            + used.cached_tokens * cached
            + fresh_audio * audio_input
            + (used.output_tokens - used.audio_output_tokens) * self.output
            + used.audio_output_tokens * audio_output
        )
        return millionths / 1_000_000
