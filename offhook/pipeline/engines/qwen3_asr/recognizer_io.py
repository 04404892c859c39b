"""Qwen3-ASR as a `Recognizer`."""

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.qwen3_asr.loading_io import Loading
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.engines.shared.recognition.streams_io import EngineRecognizer
from offhook.pipeline.engines.shared.recognition.turns_io import turn_judge
from offhook.pipeline.speech.engines import no_aligner
from offhook.pipeline.speech.errors import UnsupportedRequest
from offhook.pipeline.speech.recognizer import Progress, Word
from offhook.pipeline.speech.streams.languages import NAMES


class Qwen3Recognizer(EngineRecognizer):
    """Qwen3-ASR on one device, shared by all streams of the process. Raises EngineError if the
    device does not exist."""

    languages = tuple(NAMES)
    """BCP 47 tags."""
    loading: type[Loading] = Loading

    def __init__(
        self, models: AsrModels, progress: Progress = lambda fraction, doing: None
    ) -> None:
        self._loading = self.loading(models, progress)
        names = " + ".join(filter(None, (models.model, models.final_model)))
        super().__init__(f"Qwen3-ASR ({names})", self._loading.load)
        self.turns = turn_judge(self._loading.device)

    @property
    def max_streams(self) -> int | None:
        """Live streams that may be in use at once; None until it is loaded."""
        return self._loading.streams

    @property
    def max_open_streams(self) -> int | None:
        """Live streams that may be open; None until it is loaded."""
        return self._loading.open_streams

    async def align(self, pcm: Pcm, text: str, language: str) -> tuple[Word, ...]:
        """Returns the words of a known text with their times; see `AlignsText`."""
        if self._loading.word_times is None:
            raise UnsupportedRequest(no_aligner())
        return await self._loading.word_times.words_of(pcm, text, language)

    async def close(self) -> None:
        await super().close()
        if self._loading.word_times is not None:
            self._loading.word_times.close()
