"""`offhook align`: when the words of a known text are spoken in a recording."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.shared.asr_models import Device
from offhook.pipeline.speech.engines import aligner
from offhook.pipeline.speech.errors import UnsupportedRequest
from offhook.pipeline.speech.recognizer import Progress, Word
from offhook.web.speech_api.http.alignments_io import read_whole
from offhook.web.speech_api.http.transcript import Segment, Transcript
from offhook.web.workers.engines.engines_io import check_engine

Align = Callable[[Pcm, str, str], Awaitable[tuple[Word, ...]]]


async def align_file(path: Path, text: str, language: str, align: Align) -> Transcript:
    """Returns the text with the times of its words in the file. Raises FileError, EngineError."""
    pcm = await read_whole(path)
    words = await align(pcm, " ".join(text.split()), language)
    transcript = Transcript()
    transcript.add(Segment(0, len(pcm) / RATE_IN, text.strip(), words, language))
    return transcript


def aligner_here(model: str, device: Device, hub: str, progress: Progress) -> Align:
    """Returns what aligns in this process, with a model that it loads first. Raises EngineError."""
    check_engine("asr", aligner().engine)
    from offhook.pipeline.engines.hub import hub_io
    from offhook.pipeline.engines.qwen3_asr.model.aligner import ForcedAligner
    from offhook.pipeline.engines.qwen3_asr.model.alignment import AlignmentError
    from offhook.pipeline.engines.shared.device_io import choose_device, dtype_of

    def report(done: int, total: int | None) -> None:
        progress(done / total if total else 0.0, f"downloading {model}")

    chosen = choose_device(device)
    folder = hub_io.find(model, report, hub)
    progress(1.0, "")
    forced = ForcedAligner.load(folder, chosen, dtype_of(chosen))

    async def align(pcm: Pcm, text: str, language: str) -> tuple[Word, ...]:
        try:
            return await asyncio.to_thread(forced.align, pcm, text, language)
        except AlignmentError as error:
            raise UnsupportedRequest(str(error)) from error

    return align
