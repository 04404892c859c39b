"""How many voices the memory of a GPU holds."""

import pytest

pytest.importorskip("torch")

from offhook.pipeline.engine.capacity import (
    MAX_VOICES,
    PAGES_PER_VOICE,
    PREFIX_PAGES,
    page_bytes,
    voice_capacity,
)
from offhook.pipeline.models.qwen3_tts.model import QWEN3_TTS_1_7B
from offhook.pipeline.speech.recognizer import EngineError

TALKER = QWEN3_TTS_1_7B.talker
STATE = 28 << 20


@pytest.mark.parametrize("gib", [2, 8, 20, 60, 130])
def test_what_is_taken_fits(gib: int) -> None:
    streams, pages = voice_capacity(gib << 30, TALKER, STATE)
    taken = streams * STATE + pages * page_bytes(TALKER)
    assert 0.5 * (gib << 30) < taken < 0.9 * (gib << 30) or streams == MAX_VOICES
    assert pages == streams * PAGES_PER_VOICE + PREFIX_PAGES + 1


def test_one_voice_at_least() -> None:
    with pytest.raises(EngineError, match=r"0\.5 GiB of GPU memory are free, 0\.6 GiB"):
        voice_capacity(1 << 29, TALKER, STATE)
