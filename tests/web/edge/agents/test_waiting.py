"""What a caller hears by browser, phone and carrier's stream while a tool runs: a sound in a loop,
words again and again, and nothing of either once it has run."""

from pathlib import Path
from wave import open as open_wave

import numpy as np
import pytest

from offhook.media.leg import Leg
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from tests.pipeline.conversation.phone import calls, model, says
from tests.support.waiting import until
from tests.web.edge.agents.test_four_ways import (
    ANSWER,
    Browser,
    Caller,
    Carrier,
    Phone,
    Record,
    serving,
    shop,
)

TONE_HZ = 1000


def write_tone(file: Path) -> None:
    """A second of a steady tone."""
    sound = 8000 * np.sin(2 * np.pi * TONE_HZ * np.arange(RATE_OUT) / RATE_OUT)
    with open_wave(str(file), "wb") as wave:
        wave.setparams((1, 2, RATE_OUT, 0, "NONE", ""))
        wave.writeframes(sound.astype("<i2").tobytes())


class Ear:
    """Counts the ticks of a leg, and those in which the tone is heard, and little else."""

    def __init__(self, leg: Leg) -> None:
        self.ticks = self.tones = 0
        leg.listen(self._listen)

    def _listen(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        powers = np.abs(np.fft.rfft(heard)) ** 2
        near = TONE_HZ * len(heard) // RATE_IN
        self.ticks += 1
        self.tones += powers[near - 2 : near + 3].sum() > max(1e10, 0.9 * powers.sum())


@pytest.mark.parametrize("way", [Browser, Phone, Carrier])
async def test_a_sound_is_heard_until_the_tool_has_run(way: type[Caller], tmp_path: Path) -> None:
    file = tmp_path / "waiting.wav"
    write_tone(file)
    answers = [calls("order_status", number=7)], [says(ANSWER)]
    table = f'say_after = 0\nsound = "{file}"'
    async with (
        shop() as (backend, address),
        model(*answers) as endpoint,
        serving(tmp_path, endpoint.url, address, table) as (edge, url),
    ):
        backend.answers.clear()
        caller = way(edge, url)
        async with caller.calling():
            ear = Ear(caller.leg)
            await until(lambda: edge.calls)
            kept = Record(edge)
            await until(lambda: kept.says("which order"))
            assert ear.tones == 0
            await caller.gives_number()
            await until(lambda: ear.tones > 60)  # over a second: from the beginning again
            backend.answers.set()
            await until(lambda: kept.says(ANSWER))
            before, ticks = ear.tones, ear.ticks
            await until(lambda: ear.ticks > ticks + 20)
            assert ear.tones == before
        await until(lambda: kept.call()["state"] == "ended")
        said = [event["text"] for event in kept.events("agent_turn")]
        # The sound is no speech of the agent's: nothing was interrupted or cut off by it.
        assert said == ["Corner Bikes, which order is it?", ANSWER]


async def test_words_are_heard_again_while_it_runs(tmp_path: Path) -> None:
    answers = [calls("order_status", number=7)], [says(ANSWER)]
    table = 'say_after = 0\nsay = "I am looking."\nsay_again = 0.1'
    async with (
        shop() as (backend, address),
        model(*answers) as endpoint,
        serving(tmp_path, endpoint.url, address, table) as (edge, url),
    ):
        backend.answers.clear()
        caller = Phone(edge, url)
        async with caller.calling():
            await until(lambda: edge.calls)
            [call_id] = edge.calls
            conversation = edge.conversations[call_id]
            kept = Record(edge)
            await until(lambda: kept.says("which order"))
            await caller.gives_number()
            await until(
                lambda: " ".join(w for _, w in conversation.transcript()).count("looking") > 1
            )
            backend.answers.set()
            await until(lambda: kept.says(ANSWER))
