"""eSpeak NG in a separate process: the voice where there is no Flite, and for other languages than
English.

It runs on every system with a wheel of espeakng-loader, but sounds mechanical. The wheel is not
part of the base installation, and its library is never loaded by the server: see `espeak_worker`.
eSpeak reports where each word starts; a word ends where the next one starts, so a pause within a
clause belongs to the word before it.
"""

import json
import re
import select
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from offhook.pipeline.engines.embedded.embedded_speech_io import EmbeddedSynthesizer, Sound
from offhook.pipeline.engines.embedded.espeak_ipa import with_mnemonics
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.text.spoken_text import TextReader, with_rules
from offhook.processes.child_io import Child

USUAL_VOICE = "en-us"
USUAL_RANK = 5
"""eSpeak's priority of a voice for a language where none is given."""
LANGUAGE = re.compile(r"^language[ \t]+(\S+)[ \t]*(\d*)", re.MULTILINE)
"""Matches a line of a voice's file: a tag, and the voice's priority among those for it."""
DICTIONARY = re.compile(r"^dictionary[ \t]+(\S+)", re.MULTILINE)
"""Matches the line with the dictionary of a voice, where it is not that of its first tag."""
USUAL_RATE_WPM = 175
"""eSpeak NG's usual rate in words per minute."""
ANSWER_S = 20.0
"""Time limit in s for a response, including the first; then the process is killed, and its clause
has failed. A clause needs some ms, but the machine may be busy."""
READ_BYTES = 1 << 16
HOW_TO_GET = (
    "install Flite (Debian, Ubuntu: sudo apt-get install libflite1), or eSpeak NG, which is under "
    "the GPL and runs in a process of its own: `make espeak`, or pip install "
    "espeakng-loader babel budoux num2words"
)


class EspeakChild:
    """The child process. One that has died is started again with the next request. Raises
    EngineError if it cannot speak."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def start(self) -> Child:
        """Starts it, unless it runs, and returns it."""
        if self._child is not None and self._child.poll() is None:
            return self._child
        if not is_installed():
            raise EngineError(f"eSpeak NG is not installed: {HOW_TO_GET}")
        command = [sys.executable, "-m", "offhook.pipeline.engines.embedded.espeak_worker"]
        self.end()
        child = self._child = Child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self._answer(child)
        except EngineError:
            self.end()
            raise
        return child

    def say(self, words: list[str], voice: str, speed: float) -> Sound:
        given = list(map(with_mnemonics, words))
        ipa = given != words
        wpm = round(USUAL_RATE_WPM * speed)
        asked = {"text": " ".join(given), "voice": voice, "wpm": wpm, "mnemonics": ipa}
        table, data = self._ask(asked)
        pcm = np.frombuffer(data, np.int16)
        return Sound(pcm, table["rate"], list(_word_ends(given, table["words"], len(pcm))))

    def phonemes(self, texts: list[str], voice: str) -> list[str]:
        """Returns the phonemes of texts, in IPA and without punctuation."""
        table, _ = self._ask({"phonemes": texts, "voice": voice})
        return list(table["phonemes"])

    def _ask(self, asked: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        child = self.start()
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(asked).encode() + b"\n")
        except (OSError, ValueError) as error:
            raise EngineError("the process of eSpeak NG has ended") from error
        return self._answer(child)

    def _answer(self, child: Child) -> tuple[dict[str, Any], bytes]:
        until = time.monotonic() + ANSWER_S
        data = b""
        while b"\n" not in data:
            data += self._read(child, until)
        line, _, rest = data.partition(b"\n")
        table = json.loads(line)
        if "error" in table:
            raise EngineError(table["error"])
        sound = bytearray(rest)
        while len(sound) < table["bytes"]:
            sound += self._read(child, until)
        return table, bytes(sound)

    def _read(self, child: Child, until: float) -> bytes:
        output = child.stdout
        assert output is not None
        try:
            came, _, _ = select.select([output], [], [], max(0.0, until - time.monotonic()))
            data = output.read(READ_BYTES) if came else b""
        except (OSError, ValueError) as error:  # it has exited in the meantime
            raise EngineError("the process of eSpeak NG was ended") from error
        if not data:
            self.end()  # its later output would be taken for another response
            what = "has ended" if came else f"says nothing for {ANSWER_S:g} s"
            raise EngineError(f"the process of eSpeak NG {what}")
        return bytes(data)

    def end(self) -> None:
        if self._child is not None:
            self._child.end_now()


def is_installed() -> bool:
    return find_spec("espeakng_loader") is not None


def voices_here() -> Mapping[str, tuple[str, ...]]:
    """Returns the voices, named by their language and region as eSpeak has them, with the ISO 639
    codes of their languages: the usual one first, then those that eSpeak prefers for a language.
    Only the usual one if eSpeak NG is not installed."""
    spec = find_spec("espeakng_loader")
    folders = (spec and spec.submodule_search_locations) or ()
    return next((_voices_in(folder) for folder in folders), {USUAL_VOICE: ("en",)})


@cache
def _voices_in(package: str) -> Mapping[str, tuple[str, ...]]:
    """Reads the voices' files, with a line such as "language pt 6" for each tag: the tag, and the
    voice's priority among those for it, the lowest first."""
    found, data = [], Path(package) / "espeak-ng-data"
    for path in (data / "lang").rglob("*"):
        text = path.read_text(errors="replace") if path.is_file() else ""
        lines = LANGUAGE.findall(text)
        dictionary = DICTIONARY.search(text) or LANGUAGE.search(text)
        # Wheels lack the dictionaries of some voices.
        if dictionary and (data / f"{dictionary[1].partition('-')[0]}_dict").exists():
            codes = sorted({tag.partition("-")[0].lower() for tag, _ in lines}, key=len)
            ranks = [int(rank or USUAL_RANK) for tag, rank in lines if tag in codes]
            name = path.name.lower()
            found.append((min(ranks, default=USUAL_RANK), len(name), name, tuple(codes)))
    usual = {USUAL_VOICE: ("en",)}
    return usual | {name: codes for _, _, name, codes in sorted(found)}


def _word_ends(words: list[str], starts: list[tuple[int, int]], samples: int) -> Iterator[int]:
    """Converts `starts`, (position in the text, sample) of eSpeak's words, to word ends; eSpeak may
    see several words in one of ours, or none, which then has no length."""
    places = [place for place, _ in starts]
    after = 0
    for word in words:
        after += len(word) + 1
        following = bisect_right(places, after - 1)
        yield min(starts[following][1], samples) if following < len(starts) else samples


class EspeakSynthesizer(EmbeddedSynthesizer):
    """eSpeak's voices, American English by default."""

    name = "espeak"
    takes_ipa = True

    def __init__(self) -> None:
        super().__init__()
        self.spoken = voices_here()
        self._child = EspeakChild()

    def load(self) -> None:
        self._child.start()

    def sound(self, words: list[str], voice: str, speed: float = 1.0) -> Sound:
        return self._child.say(words, voice, speed)

    def _reader(self, language: str, normalise: bool = True) -> TextReader:
        """Without the packages of our rules eSpeak reads numbers by its own."""
        return TextReader(with_rules(language), normalise, ipa=True)

    async def close(self) -> None:
        await super().close()
        self._child.end()
