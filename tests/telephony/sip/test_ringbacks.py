"""The files that callers hear while a transfer rings: read at the start and at a reload."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from offhook.media.pcm import RATE_OUT
from offhook.telephony.sip import ringbacks_io
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.ringbacks_io import Ringbacks
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.ends import frequency
from tests.telephony.sip.phones import LOOPBACK, endpoint, write_tone

MUSIC_HZ = 1000


def heard(ringback, seconds=1.0):
    return np.concatenate([next(ringback) for _ in range(round(seconds * 50))])


@pytest.fixture
def music(tmp_path):
    path = tmp_path / "music.wav"
    write_tone(path, MUSIC_HZ, 44_100, seconds=0.5)
    return path


async def test_a_file_is_repeated_at_the_rate_of_calls(music):
    ringbacks, trunk = Ringbacks(), replace(LOOPBACK, ringback=music)
    await ringbacks.load([trunk])
    ringback = ringbacks.of(trunk)
    for _ in range(3):
        assert frequency(heard(ringback), RATE_OUT) == pytest.approx(MUSIC_HZ, abs=5)


@pytest.mark.parametrize(("ringback", "hz"), [("eu", 425), ("us", 440), ("off", None)])
async def test_a_tone_or_nothing(ringback, hz):
    sound = heard(Ringbacks().of(replace(LOOPBACK, ringback=ringback)))
    if hz is None:
        assert not sound.any()
    else:
        assert hz - 5 < frequency(sound, RATE_OUT) < hz + 45  # the American one is of two


async def test_who_is_no_trunks_hears_the_usual_tone():
    assert frequency(heard(Ringbacks().of(None)), RATE_OUT) == pytest.approx(425, abs=5)


def silent(path):
    write_tone(path, 0, 8000, seconds=1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, r"no such file or directory: write .eu., .us., .off."),
        (Path.mkdir, "is a directory"),
        (lambda path: path.write_text("la la la"), "no audio or video that can be read"),
        (silent, "there is only silence in it"),
        (lambda path: write_tone(path, 440, 8000, seconds=9), "more than 0.1 minutes"),
    ],
)
async def test_a_file_that_is_none_stops_the_start_and_says_which(
    tmp_path, monkeypatch, make, says
):
    monkeypatch.setattr(ringbacks_io, "MAX_RINGBACK_S", 6.0)
    path = tmp_path / "music.wav"
    make(path)
    trunk = Trunk("pbx", addresses=("127.0.0.1",), ringback=path)
    with pytest.raises(SipError, match=rf"trunk 'pbx': ringback: .*music\.wav: .*{says}"):
        async with endpoint(trunks=(trunk,)):
            pass


def test_a_word_that_is_no_tone_is_refused():
    with pytest.raises(SipError, match="eu, us, off or a file, not 'uk'"):
        Trunk("pbx", ringback="uk")


async def test_a_reload_reads_files_and_refuses_those_that_are_not_there(music, caplog):
    trunk = replace(LOOPBACK, ringback=music)
    async with endpoint() as (sip, _):
        settings = sip.stack.settings
        with pytest.raises(SipError, match="no such file"):
            sip.reload(replace(settings, trunks=(replace(trunk, ringback=Path("nowhere")),)))
        assert sip.stack.settings is settings
        sip.reload(replace(settings, trunks=(trunk,)))
        sounds = sip._ringbacks
        await until(lambda: abs(frequency(heard(sounds.of(trunk)), RATE_OUT) - MUSIC_HZ) < 5)
        music.write_text("la la la")  # while it is used
        sip.reload(replace(settings, trunks=(trunk,)))
        async with asyncio.timeout(HANGS_S):
            while not any("no audio" in text for text in caplog.messages):
                await asyncio.sleep(0.01)
        assert frequency(heard(sounds.of(trunk)), RATE_OUT) == pytest.approx(MUSIC_HZ, abs=5)
