"""Stores voices in files and runs the encoders that make clones.

A voice is `name.json` in lower case; a clone's data is `digest.npz` beside it, shared by all voices
made from the same reference. The recording itself is not kept. Files appear atomically by renaming,
the JSON last, so several processes can share a folder.
"""

import asyncio
import hashlib
import io
import os
import re
import tempfile
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from loguru import logger

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.qwen3_tts.recordings_io import read_recording
from offhook.pipeline.engines.qwen3_tts.voices import (
    CODEBOOKS,
    DIGEST,
    MAX_CLONES,
    Clone,
    Reference,
    Voice,
    VoiceStore,
    prepare,
)
from offhook.pipeline.engines.shared.tts_models import VOICES, TtsModels
from offhook.pipeline.speech.voice_cloning import NAME, Sample, TooManyClones, VoiceError

MAX_VOICES = 1000
"""Maximum voices of one model in the folder; the least recently used are removed."""
MAX_BYTES = 256 << 20
"""Size limit of one model's voices in the folder; the least recently used are removed."""
MAX_FILE_BYTES = 1 << 20
"""Maximum size of a voice's file; a larger one is discarded."""
STRAY_S = 3600
"""Age in s after which a data file without its JSON is not part of a save in progress, and is
deleted."""
MAX_CLONING = 8
"""Pending clone requests, which run one after another; further ones are refused with 503 and the
code `too_many_clones`."""
NAMELESS = "nameless"
"""Internal name of a voice that cannot be requested by name."""

NO_CODES = np.zeros((0, CODEBOOKS), np.int16)

Encode = Callable[[Reference], Clone]


# --- files ---


class VoiceFolder:
    """Implements voices.VoiceStorage. Damaged files are removed with a warning."""

    def __init__(
        self, root: Path, model: str, most: int = MAX_VOICES, most_bytes: int = MAX_BYTES
    ) -> None:
        """`root` is the folder of all models' voices; it is created when the first voice is
        saved."""
        readable = re.sub(r"[^A-Za-z0-9]+", "-", model)[-80:].strip("-")
        self.path = root / f"{readable}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
        self._most, self._most_bytes = most, most_bytes

    def voices(self) -> list[Voice]:
        read = (_read(path) for path in sorted(self.path.glob("*.json")))
        return [voice for voice in read if voice is not None]

    def voice(self, name: str) -> Voice | None:
        path = self._voice_path(name)
        voice = _read(path)
        if voice is not None:
            with suppress(OSError):
                os.utime(path)
        return voice

    def clone(self, digest: str) -> Clone | None:
        path = self._clone_path(digest)
        data = _bytes(path)
        if data is None:
            return None
        try:
            return _unpack(data)
        except Exception as error:  # numpy and zipfile know a dozen
            _discard(path, error)
            return None

    def save(self, voice: Voice, clone: Clone | None) -> None:
        """Raises VoiceError if it cannot be written."""
        path = self._voice_path(voice.name.lower())
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # they are people's voices
            before = _read(path)
            if clone is not None:
                self._write(self._clone_path(voice.digest), _pack(clone))
            self._write(path, voice.to_json().encode())
            if before is not None:
                self._drop_clone(before.digest)
            self._make_room(path)
        except OSError as error:
            raise VoiceError(f"the voice {voice.name} cannot be kept: {error}") from error

    def remove(self, name: str) -> bool:
        return self._remove(self._voice_path(name))

    def _remove(self, path: Path) -> bool:
        voice = _read(path)
        path.unlink(missing_ok=True)
        if voice is None:
            return False
        self._drop_clone(voice.digest)
        return True

    def _drop_clone(self, digest: str) -> None:
        """Removes the clone's data unless another voice uses it."""
        if all(voice.digest != digest for voice in self.voices()):
            self._clone_path(digest).unlink(missing_ok=True)

    def _make_room(self, kept: Path) -> None:
        self._sweep()
        others = [path for path in self.path.glob("*.json") if path != kept]
        others.sort(key=_modified)
        while others and (len(others) >= self._most or self._nbytes() > self._most_bytes):
            oldest = others.pop(0)
            logger.warning("{} is full: the voice {} is removed", self.path, oldest.stem)
            self._remove(oldest)

    def _nbytes(self) -> int:
        return sum(path.stat().st_size for path in self.path.iterdir() if path.is_file())

    def _sweep(self) -> None:
        """Removes files left by a process that was killed while saving."""
        digests = {voice.digest for voice in self.voices()}
        for path in (*self.path.glob("*.npz"), *self.path.glob("*.tmp")):
            if path.stem not in digests and _modified(path) < time.time() - STRAY_S:
                path.unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        number, temporary = tempfile.mkstemp(".tmp", dir=self.path)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise

    # Only these form paths, and no name or digest leads out of the folder.

    def _voice_path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no name")
        return self.path / f"{name}.json"

    def _clone_path(self, digest: str) -> Path:
        if not DIGEST.fullmatch(digest):
            raise ValueError(f"{digest[:80]!r} is no SHA-256")
        return self.path / f"{digest}.npz"


def voice_folder(models: TtsModels) -> VoiceFolder:
    """Returns the folder of a model's voices; a model path resolves to the same folder however it
    is written."""
    model = Path(models.model).expanduser()
    name = str(model.resolve()) if model.is_dir() else models.model
    return VoiceFolder(Path(models.voices or VOICES).expanduser(), name)


def _read(path: Path) -> Voice | None:
    data = _bytes(path)
    if data is None:
        return None
    try:
        voice = Voice.from_json(data.decode())
        if voice.name.lower() != path.stem:
            raise ValueError(f"it holds a voice named {voice.name}")
    except ValueError as error:
        _discard(path, error)
        return None
    return voice


def _bytes(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("{} is skipped: {}", path, error)
        return None
    if len(data) > MAX_FILE_BYTES:
        _discard(path, f"over {MAX_FILE_BYTES} bytes")
        return None
    return data


def _discard(path: Path, reason: object) -> None:
    logger.warning("{} is broken and is removed: {}", path, reason)
    with suppress(OSError):
        path.unlink()


def _modified(path: Path) -> float:
    """Returns the time in s since the epoch; 0 if another process has removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _pack(clone: Clone) -> bytes:
    buffer = io.BytesIO()
    # Missing codes are stored as codes of 0 frames, so a file without the array is incomplete.
    codes = NO_CODES if clone.codes is None else clone.codes
    np.savez(buffer, embedding=clone.embedding, codes=codes)
    return buffer.getvalue()


def _unpack(data: bytes) -> Clone:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        clone = Clone(arrays["embedding"], codes := arrays["codes"])
    return clone if len(codes) else replace(clone, codes=None)


# --- cloning ---


def load_encoders(folder: Path, device: str) -> Encode:
    """Loads the clone encoders of a Base checkpoint onto a device, for the thread that owns it.
    Disables TF32 for the process, because it would change the codes. One second of a reference with
    transcript takes 0.4 s of a CPU core. Raises EngineError."""
    import torch

    from offhook.pipeline.engines.qwen3_tts.model import speaker_encoder, speech_encoder

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    speaker = speaker_encoder.load(folder, device)
    speech = speech_encoder.load(folder, device)

    def encode(reference: Reference) -> Clone:
        def on_device(pcm: Pcm) -> torch.Tensor:
            return torch.from_numpy(pcm.astype(np.float32) / 32768).to(device)

        codes = None
        if reference.text:
            sound = on_device(reference.pcm_for_codes)
            codes = speech.encode(sound).cpu().numpy().astype(np.int16)
        return Clone(speaker.embed(on_device(reference.pcm)).cpu().numpy(), codes)

    return encode


class Cloning:
    """Turns recordings into voices of a store, one at a time, on the event loop that uses the
    store."""

    def __init__(self, store: VoiceStore, compute: Callable[[Reference], Awaitable[Clone]]) -> None:
        """`compute` runs `Encode` on the encoders' thread."""
        self._store = store
        self._compute = compute
        self._turn = asyncio.Lock()
        self._asked = 0
        self._files: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Digest and transcript of references by the digest of the file they came from."""

    async def clone(
        self,
        name: str,
        pcm: Pcm,
        rate: int,
        *,
        consent: bool,
        text: str = "",
        language: str = "",
        replace: bool = False,
    ) -> Voice:
        """Creates a voice from a mono recording at `rate` Hz. With its transcript (`text`) it is
        closer to the person; without it the prompt is shorter. Raises VoiceError, and EngineError
        if the engine has failed."""
        self._store.check_clone(name, language, consent, replace)
        async with self._one_at_a_time():
            self._store.check_clone(name, language, consent, replace)  # it may exist by now
            reference = await asyncio.to_thread(prepare, pcm, rate, text)
            digest = reference.digest(self._store.model)
            clone = await self._clone_of(digest, reference)
            return await self._save(_voice(name, digest, reference.text, language), clone)

    async def add(self, name: str, sample: Sample, language: str = "") -> Voice:
        """Creates a voice from a file. Raises like `clone`."""
        self._store.check_clone(name, language, sample.consent, replace=False)
        async with self._one_at_a_time():
            self._store.check_clone(name, language, sample.consent, replace=False)
            digest, words, clone = await self._of_sample(sample)
            return await self._save(_voice(name, digest, words, language), clone)

    async def nameless(self, sample: Sample) -> Voice:
        """Creates a voice from a file that is kept only in memory while in use. Raises like
        `clone`."""
        self._store.check_nameless(sample.consent)
        async with self._one_at_a_time():
            digest, words, _ = await self._of_sample(sample)
            return _voice(NAMELESS, digest, words, "")

    @asynccontextmanager
    async def _one_at_a_time(self) -> AsyncIterator[None]:
        """Raises TooManyClones."""
        if self._asked == MAX_CLONING:
            raise TooManyClones(f"{MAX_CLONING} voices are being cloned already: try again later")
        self._asked += 1
        try:
            async with self._turn:
                yield
        finally:
            self._asked -= 1

    async def _of_sample(self, sample: Sample) -> tuple[str, str, Clone]:
        """Returns digest, transcript and data of the reference. The same file again costs nothing,
        the same recording in another file only its decoding."""
        file = hashlib.sha256(sample.text.encode("utf-8", "replace") + b"\0" + sample.file)
        key = file.hexdigest()
        if (made := self._files.get(key)) is not None:
            self._files.move_to_end(key)
            if (clone := self._store.known(made[0])) is not None:
                return *made, clone
        reference = await asyncio.to_thread(_reference, sample)
        digest = reference.digest(self._store.model)
        clone = await self._clone_of(digest, reference)
        self._files[key] = digest, reference.text
        if len(self._files) > MAX_CLONES:
            self._files.popitem(last=False)
        return digest, reference.text, clone

    async def _clone_of(self, digest: str, reference: Reference) -> Clone:
        clone = self._store.known(digest)
        if clone is None:
            clone = await self._compute(reference)
            self._store.clones.put(digest, clone)
        return clone

    async def _save(self, voice: Voice, clone: Clone) -> Voice:
        await asyncio.to_thread(self._store.storage.save, voice, clone)
        return voice


def _reference(sample: Sample) -> Reference:
    """Decodes and prepares a sample; takes a core for about 100 ms. Raises VoiceError."""
    pcm, rate = read_recording(sample.file)
    return prepare(pcm, rate, sample.text)


def _voice(name: str, digest: str, words: str, language: str) -> Voice:
    """Returns the metadata of a clone whose speaker has consented."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Voice(name, "clone", digest, language, words, True, created)
