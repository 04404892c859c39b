"""`offhook transcribe`: transcribes audio and video files in segments while they are decoded."""

import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.speech.recognizer import Recognizer, RecognizerStream, StreamOptions
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.web.speech_api.http.file_transcription_io import (
    CAPTION_S,
    PIECE_S,
    FileError,
    FileTranscription,
    Pieces,
)
from offhook.web.speech_api.http.transcript import Segment, Transcript
from offhook.web.workers.engines.engines_io import check_engine
from offhook.web.workers.engines.remote_engine_io import RemoteEngine
from offhook.web.workers.local_worker_io import on_demand
from offhook.web.workers.worker_child_io import ChildSettings

BAR_WIDTH = 24
CAPTIONS = ("srt", "vtt")
"""Formats with short segments."""
WORKER_STREAMS = 4
"""Streams of a worker for files that come one by one: one that is over may still hold its own."""
STANDARD_INPUT = "-"
"""The file name of standard input."""


@dataclass
class Transcription:
    """The transcript of one file."""

    file: str
    engine: str
    transcript: Transcript = field(default_factory=Transcript)

    def as_dict(self) -> dict[str, Any]:
        heard = self.transcript
        return {
            "file": self.file,
            "engine": self.engine,
            "language": heard.language,
            "duration": heard.duration,
            "segments": [asdict(segment) for segment in heard.segments],
            "text": heard.text,
        }


class Bar:
    """A progress bar on one line of standard error; invisible unless that is a terminal."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._shown = sys.stderr.isatty()

    def show(self, done: float | None, where: str) -> None:
        if self._shown:
            filled = round((done or 0) * BAR_WIDTH)
            bar = "█" * filled + "·" * (BAR_WIDTH - filled)
            part = "" if done is None else f" {done:4.0%}"
            sys.stderr.write(f"\r\x1b[K{bar}{part} {self._name} {where}")
            sys.stderr.flush()

    def loading(self, fraction: float, doing: str) -> None:
        """Implements `Progress` for a recognizer."""
        if fraction < 1:
            self.show(fraction, doing)
        else:
            self.clear()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@contextmanager
def _readable(path: Path) -> Iterator[Path]:
    """Yields the file itself; standard input is copied to a file first, since some formats must be
    read from the end."""
    if str(path) != STANDARD_INPUT:
        yield path
        return
    with NamedTemporaryFile(prefix="offhook-") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        try:
            yield Path(file.name)
        except FileError as error:
            raise FileError(str(error).replace(file.name, "standard input", 1)) from error


@asynccontextmanager
async def in_worker(engine: str, models: AsrModels) -> AsyncIterator[RemoteRecognizer]:
    """A recognizer in a process of its own, loaded. Raises EngineError."""
    check_engine("asr", engine)
    async with on_demand(ChildSettings(engine, models, WORKER_STREAMS, 0, "ERROR")) as url:
        recognizer = RemoteRecognizer(url, name=engine)
        remote = RemoteEngine(recognizer, recognizer.start, recognizer.workers)
        try:
            await remote.get()
            yield recognizer
        finally:
            await remote.close()
            await recognizer.close()


async def _transcribe(
    path: Path,
    stream: RecognizerStream,
    result: Transcription,
    say: Callable[[Segment], None],
    piece_s: float,
) -> None:
    """Transcribes one file. Raises FileError, EngineError."""
    bar = Bar(result.file)
    file = FileTranscription(stream, Pieces(path, (piece_s,)))
    try:
        async for progress in file.segments():
            segment = progress.segment
            result.transcript.add(segment)
            bar.clear()
            if segment.text:
                say(segment)
            bar.show(progress.done, f"{int(segment.end) // 60}:{int(segment.end) % 60:02}")
    finally:
        bar.clear()
        await file.close()


async def transcribe_all(
    files: Sequence[Path],
    recognizer: Recognizer,
    options: StreamOptions,
    say: Callable[[Segment], None],
    show: Callable[[Transcription], None],
    *,
    captions: bool = False,
) -> list[str]:
    """Transcribes the files, passing segments to `say` and each file's result to `show`; returns
    messages for unreadable files. `captions` makes short segments. Raises EngineError."""
    faults = []
    if isinstance(recognizer, RemoteRecognizer):
        await recognizer.start(options)
    else:
        await recognizer.start()
    try:
        for path in files:
            result = Transcription(str(path), recognizer.name)
            stream = await recognizer.open(options)
            try:
                with _readable(path) as file:
                    await _transcribe(file, stream, result, say, CAPTION_S if captions else PIECE_S)
                show(result)
            except FileError as error:
                faults.append(str(error))
            finally:
                await stream.close()
    finally:
        await recognizer.close()
    return faults
