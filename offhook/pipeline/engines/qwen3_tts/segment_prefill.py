"""Starts segments: allocates their pages and prefills the voice's prefix into them.

Prefixes are computed when a voice is first requested, before there is any text, several per launch
(see `VoicePrefixes`), through slots of their own.

Streams that find too few pages wait here in deadline order; later streams never overtake them,
however few pages they need.
"""

from collections.abc import Hashable
from enum import Enum, auto
from heapq import heappop, heappush

from offhook.pipeline.engines.qwen3_tts.prompts import VoicePrompt
from offhook.pipeline.engines.qwen3_tts.streams import (
    Stream,
    StreamState,
    pages_needed,
    token_limit,
)
from offhook.pipeline.engines.qwen3_tts.voice_prefixes import VoicePrefixes
from offhook.pipeline.engines.shared.pages import PAGE_SIZE, Pages
from offhook.pipeline.engines.shared.synthesis.messages import (
    MAX_TOKENS,
    Prompt,
    PromptPosition,
    RunnerProtocol,
)

PREFIX_SLOTS = 4
"""Slots of the runner reserved for prefixes; as many are computed in one launch."""
PROMPT_ROWS = 512
"""Maximum prompt rows of one launch, since all frames wait for it."""
SPARE_PART = 8
"""One page in this many is reserved for segments that could not start without it."""
SEED_STEP = 0x9E3779B97F4A7C15
"""Offset between the seeds of a stream's segments: 2^64 divided by the golden ratio."""
SEED_BITS = (1 << 63) - 1


class PrefillResult(Enum):
    """Whether a segment's next step can be launched."""

    YES = auto()
    LATER = auto()
    """It can start in one of the next launches."""
    NO_PAGES = auto()
    """It waits for pages; see `resumed`."""


class SegmentPrefill:
    """Allocates pages and computes prompts for new segments."""

    def __init__(self, runner: RunnerProtocol, prefix_pages: int) -> None:
        self.slots = runner.slots - PREFIX_SLOTS
        """Slots available to streams: 1..slots."""
        self._runner = runner
        self._pages = Pages(runner.pages)
        self._prefixes = VoicePrefixes(self._pages.allocate(prefix_pages))
        self._cold: dict[Hashable, VoicePrompt] = {}
        self._queue: list[tuple[float, int, Stream]] = []
        self._launch = 1
        self._rows = 0
        self._copies: tuple[list[int], list[int]] = ([], [])
        self._prompts: list[Prompt] = []

    @property
    def pages_left(self) -> int:
        return self._pages.left

    @property
    def cold(self) -> bool:
        """Whether prefixes are waiting to be computed."""
        return bool(self._cold)

    def expect(self, voice: VoicePrompt) -> None:
        """Requests the prefix of a voice that is about to be used."""
        if self._prefixes.find(voice.key, self._launch) is None:
            self._cold[voice.key] = voice

    def release(self, stream: Stream) -> None:
        """Frees the stream's pages."""
        self._pages.free(stream.pages)
        stream.pages = []

    def resumed(self) -> list[Stream]:
        """Returns the streams that waited for pages and now have them."""
        resumed = []
        while self._queue:
            stream = self._queue[0][2]
            if stream.state is StreamState.WAITING:
                if not self._allocate_pages(stream):
                    break
                resumed.append(stream)
            heappop(self._queue)
        return resumed

    # --- one launch ---

    def compute_prefixes(self) -> None:
        """Adds requested prefixes to the launch, as many as fit."""
        prompts: list[Prompt] = []
        for key, voice in list(self._cold.items()):
            if len(prompts) == PREFIX_SLOTS or self._rows + len(voice.rows) > PROMPT_ROWS:
                break
            pages = self._prefixes.add(key, self._pages.needed(len(voice.rows)), self._launch)
            if pages is None:
                break
            slot = self.slots + 1 + len(prompts)
            self._runner.assign(slot, pages)
            prompts.append(Prompt(slot, 0, voice.rows, voice.vectors))
            self._rows += len(voice.rows)
            del self._cold[key]
        if prompts:
            self._runner.prefill(prompts)

    def begin(self, stream: Stream) -> PrefillResult:
        """Prepares the stream's next step as frame 0 of a new segment, whose script has begun."""
        voice = stream.voice
        rows = len(voice.open)
        if voice.whole_text:
            rows = min(stream.script.left, token_limit(MAX_TOKENS, voice)) + 1
        if self._rows and self._rows + rows > PROMPT_ROWS:
            return PrefillResult.LATER
        prefix = self._prefixes.find(voice.key, self._launch)
        if prefix is None:
            self._cold[voice.key] = voice
            return PrefillResult.LATER
        if (self._queue and not stream.pages) or not self._allocate_pages(stream):
            deadline = stream.ends if stream.live else float("inf")
            heappush(self._queue, (deadline, stream.number, stream))
            return PrefillResult.NO_PAGES
        self._copies[0].extend(prefix)
        self._copies[1].extend(stream.pages[: len(prefix)])
        self._runner.assign(stream.slot, stream.pages)
        limit = token_limit(len(stream.pages) * PAGE_SIZE, voice)
        stream.script.begin(limit, voice.lead, 0 if voice.whole_text else stream.at_once)
        stream.start = voice.start
        if voice.open:
            self._fill_open(stream)
        elif voice.whole_text:
            text = [
                PromptPosition(token, voice.beside_text) for token in stream.script.whole_text()
            ]
            self._prompts.append(Prompt(stream.slot, voice.start, text))
            self._rows += len(text)
            stream.start += len(text)
        seed = (stream.seed + stream.segments * SEED_STEP) & SEED_BITS
        self._runner.begin(stream.slot, seed, stream.sampling, voice.reference)
        return PrefillResult.YES

    def _fill_open(self, stream: Stream) -> None:
        """Puts the first text tokens into the prompt."""
        voice = stream.voice
        text = stream.script.prompt_tokens(len(voice.open))
        rows = [row._replace(text=token) for row, token in zip(voice.open, text, strict=True)]
        self._prompts.append(Prompt(stream.slot, len(voice.rows), rows, voice.vectors))
        self._rows += len(rows)

    def _allocate_pages(self, stream: Stream) -> bool:
        """Allocates pages for the next segment, fewer than it could use if others will need
        some."""
        least, most = pages_needed(stream)
        there = len(stream.pages) + self._pages.left
        if there < least:
            return False
        pages = min(most, max(least, there - self._pages.count // SPARE_PART))
        self._pages.free(stream.pages[pages:])
        stream.pages = stream.pages[:pages]
        stream.pages += self._pages.allocate(pages - len(stream.pages))
        return True

    def launch(self) -> int:
        """Launches the prompts collected by `begin` and returns the rows computed, including
        prefixes."""
        if self._copies[0]:
            self._runner.copy(*self._copies)
            self._copies = ([], [])
        if self._prompts:
            self._runner.prefill(self._prompts)
            self._prompts = []
        rows, self._rows = self._rows, 0
        self._launch += 1
        return rows
