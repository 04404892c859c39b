"""Sound files that callers hear while a tool runs."""

from pathlib import Path
from wave import open as open_wave

import numpy as np
import pytest

from offhook.media.pcm import RATE_OUT
from offhook.web.config.config import Config, ConfigError
from offhook.web.tools.agent_tools_io import AgentTools
from offhook.web.tools.waiting_sound import MAX_SOUND_S, length_of


def config_with(sound: Path) -> Config:
    tool = {"name": "look", "description": "Looks.", "url": "http://a/", "sound": str(sound)}
    agent = {"kind": "openai", "base_url": "http://a/v1", "model": "m", "tools": [tool]}
    return Config.model_validate({"agent": agent})


def write(file: Path, seconds: float, level: int) -> None:
    with open_wave(str(file), "wb") as wave:
        wave.setparams((1, 2, RATE_OUT, 0, "NONE", ""))
        wave.writeframes(np.full(round(seconds * RATE_OUT), level, "<i2").tobytes())


def test_a_sound_is_decoded_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "typing.wav"
    write(file, 2.5, 9000)
    AgentTools().load(config_with(file))
    assert length_of(str(file)) == f"{file}: 2.5 s"


@pytest.mark.parametrize(
    ("seconds", "level", "data", "why"),
    [
        (0, 0, None, "no such file"),
        (1, 0, None, "there is only silence in it"),
        (MAX_SOUND_S + 1, 9000, None, "more than 1 minutes"),
        (0, 0, b"no sound at all", ""),
    ],
)
def test_what_cannot_be_played_stops_the_start(
    seconds: float, level: int, data: bytes | None, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "typing.wav"
    if data is not None:
        file.write_bytes(data)
    elif seconds:
        write(file, seconds, level)
    with pytest.raises(ConfigError, match=f"sound of a tool: .*typing.wav.*{why}"):
        AgentTools().load(config_with(file))
