"""Voices: a model's own, described ones, and those cloned from a recording.

A clone is made from a reference: 3 to 30 s of one person speaking, optionally with its transcript.
The audio alone yields a speaker embedding. With the transcript it also yields codes, which the
model continues in the same voice: closer to the person, with a longer prompt.
"""

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Literal, Protocol

import numpy as np
import soxr
from numpy.typing import NDArray

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.media.untrusted_json import read_json
from offhook.pipeline.speech.synthesizer import MAX_INSTRUCTIONS_CHARS, UnknownVoice
from offhook.pipeline.speech.voice_cloning import (
    CONSENT_RULE,
    LENGTH_RULE,
    MAX_S,
    MIN_S,
    NAME,
    NAME_RULE,
    CloningUnsupported,
    ConsentMissing,
    VoiceError,
    VoiceExists,
)

MIN_SOUND_S = 2.0
"""Minimum of non-silent audio, in s."""
READ_S = 60
"""Length of a recording that is examined, in s."""
MIN_RATE, MAX_RATE = 8_000, 192_000
"""Accepted sample rates of a recording, in Hz."""
MAX_TEXT_CHARS = 1000
"""Maximum characters of a transcript, twice the speech of 30 s; with a longer one the voice is
refused."""
SILENCE_DBFS = -50.0
SILENCE_DB = 40.0
"""A frame is silent below SILENCE_DBFS, or this far below the loudest frame."""
FRAME_MS = 20
MARGIN_MS = 200
"""Silence in ms kept around the speech."""
PAUSE_MS = 500
"""Silence in ms at the end of a reference's codes. The model continues directly after them, and
with less it may repeat the reference's last sound."""
CUT_S = 10
"""Range in s, before the end of what is used, in which a quiet place to cut is sought."""
QUIET_MS = 200
CLIPPED_LEVEL = 0.995
"""Share of the peak level. CLIPPED_RUN or more consecutive samples at it are a clipped peak."""
CLIPPED_RUN = 3
CLIPPED_PART = 0.005
"""Share of samples in clipped peaks. Clean speech has none; clipped by 6 dB, 1 %."""
CODEBOOKS = 16
"""Codes of a frame."""
CODEBOOK_SIZE = 2048
"""Number of values that a code may have."""
MAX_CLONES = 1000
"""Maximum clones kept in memory; the least recently used is forgotten."""
MAX_CLONE_BYTES = 64 << 20
"""Maximum bytes of clones kept in memory, of which one of 30 s has 20 kB; the least recently used
is forgotten."""

LANGUAGE = re.compile(r"([a-z]{2,3})?")
DIGEST = re.compile(r"[0-9a-f]{64}")

Kind = Literal["speaker", "design", "clone"]
ModelKind = Literal["custom_voice", "voice_design", "base"]


@dataclass(frozen=True)
class Voice:
    """A voice and its metadata. Raises ValueError for invalid fields."""

    name: str
    """Letters, digits, - and _ (unless the model's own); case-insensitive."""
    kind: Kind
    digest: str
    """SHA-256 in hex of everything that defines the voice, including its model; a key for anything
    derived from it."""
    language: str = ""
    """Default ISO 639 code of its language; empty: detected from the text."""
    text: str = ""
    """A described voice's description, or a clone's transcript (may be empty)."""
    consent: bool = False
    """Whether a clone's speaker has consented."""
    created: str = ""
    """Creation time, ISO 8601 UTC; empty for the model's own."""

    def __post_init__(self) -> None:
        if self.kind != "speaker" and not NAME.fullmatch(self.name):
            raise ValueError(f"{self.name[:80]!r} is no name: {NAME_RULE}")
        if not LANGUAGE.fullmatch(self.language):
            raise ValueError(f"language is {self.language[:80]!r}, not a code such as 'en'")
        if not DIGEST.fullmatch(self.digest):
            raise ValueError("digest is no SHA-256")
        if self.kind == "clone" and not self.consent:
            raise ValueError("it is not said that the speaker agreed")

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> "Voice":
        """Parses a described or cloned voice. Raises ValueError for anything else."""
        value = read_json(text)
        if not isinstance(value, dict) or value.get("kind") not in ("design", "clone"):
            raise ValueError("neither a design nor a clone")
        for field in fields(Voice):
            kind = bool if field.name == "consent" else str
            if type(value.get(field.name)) is not kind:
                raise ValueError(f"{field.name} is missing or of another type")
        return Voice(**{field.name: value[field.name] for field in fields(Voice)})


@dataclass(frozen=True)
class Reference:
    """The input of a clone."""

    pcm: Pcm
    """24 kHz samples, 3 to 30 s."""
    text: str
    """Transcript; empty: unknown, and no codes are made."""

    @property
    def pcm_for_codes(self) -> Pcm:
        """The samples with PAUSE_MS of silence after the last non-silent frame."""
        frame, pause = (RATE_OUT * ms // 1000 for ms in (FRAME_MS, PAUSE_MS))
        spoken = (int(np.flatnonzero(_sounding(self.pcm))[-1]) + 1) * frame
        return np.pad(self.pcm, (0, max(0, spoken + pause - len(self.pcm))))

    def digest(self, model: str) -> str:
        pcm = self.pcm_for_codes if self.text else self.pcm
        return _digest("clone", model, self.text, data=pcm.tobytes())


@dataclass(frozen=True, eq=False)
class Clone:
    """The model's input for a cloned voice. Raises ValueError if it is invalid."""

    embedding: NDArray[np.float32]
    """Speaker embedding [hidden] of the talker."""
    codes: NDArray[np.int16] | None
    """Codes [frames, 16] of the reference at 80 ms per frame, if it has a transcript."""

    def __post_init__(self) -> None:
        if self.embedding.dtype != np.float32 or self.embedding.ndim != 1:
            raise ValueError("no vector")
        if not np.isfinite(self.embedding).all():
            raise ValueError("a vector without end")
        if self.codes is None:
            return
        if self.codes.dtype != np.int16 or self.codes.shape[1:] != (CODEBOOKS,):
            raise ValueError(f"codes that are not {CODEBOOKS} a frame")
        if not ((self.codes >= 0) & (self.codes < CODEBOOK_SIZE)).all():
            raise ValueError("codes that no codebook has")

    @property
    def nbytes(self) -> int:
        return self.embedding.nbytes + (0 if self.codes is None else self.codes.nbytes)


# --- the reference ---


def prepare(pcm: Pcm, rate: int, text: str = "") -> Reference:
    """Prepares a recording for the encoders: 24 kHz, trimmed, at most 30 s. Longer audio is cut at
    a quiet place, but not if it has a transcript, which would no longer match.

    `pcm` is mono at `rate` Hz. Takes a core for about 100 ms. Raises VoiceError.
    """
    text = " ".join(_normalized_text(text).split())
    if len(text) > MAX_TEXT_CHARS:
        raise VoiceError(f"the words of the recording are over {MAX_TEXT_CHARS} characters")
    if not MIN_RATE <= rate <= MAX_RATE:
        raise VoiceError(f"the recording is of {rate} Hz, not of {MIN_RATE} to {MAX_RATE} Hz")
    looked_at = pcm[: READ_S * rate]
    sound = _trim(_resample(looked_at, rate))
    if len(sound) < MIN_S * RATE_OUT:
        seconds = len(sound) / RATE_OUT
        raise VoiceError(f"the recording holds {seconds:.1f} s of sound: {LENGTH_RULE}")
    if text and (len(sound) > MAX_S * RATE_OUT or len(looked_at) < len(pcm)):
        raise VoiceError(
            f"the recording is over {MAX_S} s: shorten it and its words, or give no words"
        )
    sound = sound[: _quiet_end(sound)]
    heard = np.count_nonzero(_sounding(sound)) * FRAME_MS / 1000
    if heard < MIN_SOUND_S:
        raise VoiceError(f"only {heard:.1f} s of the recording are not silent: {LENGTH_RULE}")
    _refuse_clipped(looked_at)
    return Reference(sound, text)


def _resample(pcm: Pcm, rate: int) -> Pcm:
    if rate == RATE_OUT:
        return pcm
    # As float: soxr dithers integers, and equal recordings must give equal samples.
    sound = np.rint(soxr.resample(pcm.astype(np.float32), rate, RATE_OUT))
    samples: Pcm = np.clip(sound, -32768, 32767).astype(np.int16)
    return samples


def _sounding(pcm: Pcm) -> NDArray[np.bool_]:
    """Returns a mask of the non-silent frames."""
    size = RATE_OUT * FRAME_MS // 1000
    frames = np.pad(pcm, (0, -len(pcm) % size)).reshape(-1, size).astype(np.float32)
    levels = 10 * np.log10(np.square(frames / 32768).mean(axis=1) + 1e-12)
    return np.asarray(levels >= max(SILENCE_DBFS, levels.max(initial=-np.inf) - SILENCE_DB))


def _trim(pcm: Pcm) -> Pcm:
    frames = np.flatnonzero(_sounding(pcm))
    if not len(frames):
        raise VoiceError(f"the recording is silent: {LENGTH_RULE}")
    frame, margin = (RATE_OUT * ms // 1000 for ms in (FRAME_MS, MARGIN_MS))
    return pcm[max(0, frames[0] * frame - margin) : (frames[-1] + 1) * frame + margin]


def _quiet_end(pcm: Pcm) -> int:
    """Returns where to cut: the middle of the quietest QUIET_MS in the last usable seconds."""
    most = MAX_S * RATE_OUT
    if len(pcm) <= most:
        return len(pcm)
    first, window = most - CUT_S * RATE_OUT, RATE_OUT * QUIET_MS // 1000
    energy = np.cumsum(np.square(pcm[first:most].astype(np.int64)))
    return first + int(np.argmin(energy[window:] - energy[:-window])) + window // 2


def _refuse_clipped(pcm: Pcm) -> None:
    height = np.abs(pcm.astype(np.int32))
    top = height >= CLIPPED_LEVEL * height.max()
    ends = np.flatnonzero(np.diff(top, prepend=False, append=False))
    runs = ends[1::2] - ends[::2]
    part = runs[runs >= CLIPPED_RUN].sum() / len(pcm)
    if part > CLIPPED_PART:
        raise VoiceError(
            f"the recording is clipped ({100 * part:.1f} % of it are peaks cut off): record it "
            "again with less gain"
        )


def _normalized_text(text: str) -> str:
    """JSON may contain lone surrogates, which no file or tokenizer accepts."""
    return text.encode("utf-8", "replace").decode()


def _digest(*parts: str, data: bytes = b"") -> str:
    return hashlib.sha256(json.dumps(parts).encode() + data).hexdigest()


# --- keeping them ---


class CloneCache:
    """Keeps clones in memory by digest; beyond its limits the least recently used are evicted."""

    def __init__(self, most: int = MAX_CLONES, most_bytes: int = MAX_CLONE_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._clones: OrderedDict[str, Clone] = OrderedDict()
        self.nbytes = 0
        self.hits = self.misses = self.evictions = 0

    def __len__(self) -> int:
        return len(self._clones)

    def get(self, digest: str) -> Clone | None:
        clone = self._clones.get(digest)
        if clone is None:
            self.misses += 1
            return None
        self.hits += 1
        self._clones.move_to_end(digest)
        return clone

    def put(self, digest: str, clone: Clone) -> None:
        self.drop(digest)
        self._clones[digest] = clone
        self.nbytes += clone.nbytes
        while len(self) > self._most or self.nbytes > self._most_bytes:
            self.drop(next(iter(self._clones)))
            self.evictions += 1

    def drop(self, digest: str) -> None:
        clone = self._clones.pop(digest, None)
        if clone is not None:
            self.nbytes -= clone.nbytes


class VoiceStorage(Protocol):
    """Persistent storage of described and cloned voices; see voices_io.VoiceFolder. Names are in
    lower case."""

    def voices(self) -> list[Voice]:
        """Returns all voices by name."""

    def voice(self, name: str) -> Voice | None:
        """Returns a voice and marks it as used."""

    def clone(self, digest: str) -> Clone | None: ...

    def save(self, voice: Voice, clone: Clone | None) -> None:
        """Saves a voice, replacing one of the same name."""

    def remove(self, name: str) -> bool:
        """Removes a voice and returns whether it existed."""


class VoiceStore:
    """All voices of one model, for use by one thread. Methods read at most one small file, except
    `voices`, which reads one per voice."""

    def __init__(
        self,
        model: str,
        kind: ModelKind,
        hidden: int,
        speakers: Iterable[str],
        storage: VoiceStorage,
        languages: Sequence[str],
        clones: CloneCache | None = None,
    ) -> None:
        """`model` is the folder or hub repository it was loaded from, `hidden` the width of its
        talker, `speakers` its own speakers, the default first, and `languages` the ISO 639 codes
        of those that it speaks."""
        self.model = model
        self.storage = storage
        self.clones = clones or CloneCache()
        self._kind = kind
        self._hidden = hidden
        self._languages = languages
        self._speakers = {
            name.lower(): Voice(name, "speaker", _digest("speaker", model, name))
            for name in speakers
        }

    def voices(self) -> list[Voice]:
        """Returns the model's own voices, then the others by name."""
        others = [v for v in self.storage.voices() if v.name.lower() not in self._speakers]
        return [*self._speakers.values(), *others]

    def voice(self, name: str) -> Voice:
        """Returns a voice. Raises UnknownVoice."""
        voice = self._speakers.get(name.lower())
        if voice is None and NAME.fullmatch(name):
            voice = self.storage.voice(name.lower())
        if voice is None:
            raise UnknownVoice(f"there is no voice {name[:80]!r}")
        return voice

    def clone(self, voice: Voice) -> Clone:
        """Returns the model's input for a cloned voice. Raises VoiceError."""
        clone = self.known(voice.digest)
        if clone is None or clone.embedding.shape != (self._hidden,):
            raise VoiceError(
                f"what was made of the voice {voice.name} is broken or of another model: "
                "clone it again"
            )
        return clone

    def remove(self, name: str) -> None:
        """Removes a voice. Raises UnknownVoice, and VoiceError for the model's own."""
        if name.lower() in self._speakers:
            raise VoiceError(f"{name} is a voice of the model itself and cannot be removed")
        voice = self.voice(name)
        self.storage.remove(name.lower())
        self.clones.drop(voice.digest)

    # --- new ones ---

    def design(
        self, name: str, text: str, *, created: str, language: str = "", replace: bool = False
    ) -> Voice:
        """Creates a described voice. Raises VoiceError."""
        if self._kind != "voice_design":
            raise VoiceError(
                f"{self.model} speaks with no voice described in words: use a VoiceDesign model, "
                "such as Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign"
            )
        self._check_new(name, language, replace)
        text = _normalized_text(text).strip()
        if not 0 < len(text) <= MAX_INSTRUCTIONS_CHARS:
            raise VoiceError(f"describe the voice in 1 to {MAX_INSTRUCTIONS_CHARS} characters")
        voice = Voice(
            name,
            "design",
            _digest("design", self.model, text),
            language=language,
            text=text,
            created=created,
        )
        self.storage.save(voice, None)
        return voice

    def check_clone(self, name: str, language: str, consent: bool, replace: bool) -> None:
        """Checks that a clone may be created under this name. Raises VoiceError if not."""
        self.check_nameless(consent)
        self._check_new(name, language, replace)

    def check_nameless(self, consent: bool) -> None:
        """Checks that a clone may be made for one reply. Raises VoiceError if not."""
        if consent is not True:
            raise ConsentMissing(CONSENT_RULE)
        if self._kind != "base":
            raise CloningUnsupported(
                f"{self.model} cannot clone voices: use a Base model, such as "
                "Qwen/Qwen3-TTS-12Hz-1.7B-Base"
            )

    def check_language(self, language: str) -> None:
        """Checks that the model speaks a language, by its ISO 639 code; empty: it is detected.
        Raises VoiceError if not."""
        if language and language not in self._languages:
            known = ", ".join(self._languages)
            raise VoiceError(f"the model does not speak {language!r}; it speaks {known}")

    def known(self, digest: str) -> Clone | None:
        """Returns the clone made earlier from the same recording, by its digest."""
        clone = self.clones.get(digest)
        if clone is None:
            clone = self.storage.clone(digest)
            if clone is not None:
                self.clones.put(digest, clone)
        return clone

    def _check_new(self, name: str, language: str, replace: bool) -> None:
        if not NAME.fullmatch(name):
            raise VoiceError(f"{name[:80]!r} is no name: {NAME_RULE}")
        if not LANGUAGE.fullmatch(language):
            raise VoiceError(f"language is {language[:80]!r}, not a code such as 'en'")
        self.check_language(language)
        if name.lower() in self._speakers:
            raise VoiceExists(f"{name} is a voice of the model itself: take another name")
        if not replace and self.storage.voice(name.lower()) is not None:
            raise VoiceExists(f"there is a voice {name} already: remove or replace it")
