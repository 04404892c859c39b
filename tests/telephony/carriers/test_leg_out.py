"""What a carrier is sent of what is queued to be said, and when."""

from dataclasses import replace

import numpy as np
import pytest

from offhook.media.pcm import SAMPLES_OUT
from offhook.media.telephone_tones.tones import repeat
from offhook.telephony.carriers.streams.stream import Congested, Format
from tests.support.listening import Listening
from tests.telephony.carriers.carrier import STARTED, Call, Line, ScriptedStream, spoken, told


@pytest.fixture
def line():
    return Line(format=Format("l16", 24_000))


def test_sound_is_sent_ahead_by_the_lead_and_not_by_more(line):
    line.leg.playout.begin()
    line.leg.playout.write(spoken(0, 1000))
    line.tick()
    assert [message if isinstance(message, str) else told(message)[0] for message in line.sent] == [
        "mark 1.0", 1, "mark 1.480", 21, 41, 61, 81, 101, "mark 1.2880",
    ]  # fmt: skip
    line.tick(11)
    assert len(line.sounds) == 6 + 11
    assert line.leg.playout.sent == 11 * SAMPLES_OUT
    assert [message for message in line.sent[9:] if isinstance(message, str)] == [
        "mark 1.5280",
        "mark 1.7680",
    ]


def test_a_sound_in_the_background_is_sent_ahead_as_speech_is_and_cleared_at_its_end(line):
    with line.leg.playing(repeat(spoken(0, 1000))):
        line.tick(100)
        said = [ms for message in line.sounds for ms in told(message)]
        assert said[:1000] == list(range(1, 1001))
        assert said[1000:1020] == list(range(1, 21))  # again from the beginning
        assert 2000 <= len(said) <= 2000 + line.leg.stream.lead_ms
        assert line.leg.playout.sent == 0  # nobody speaks
    assert line.sent[-1] == "clear"
    before = len(line.sounds)
    line.tick(10)
    assert len(line.sounds) == before


def test_whoever_speaks_is_heard_in_place_of_the_background_and_it_goes_on_after_that(line):
    with line.leg.playing(repeat(spoken(0, 1000))):
        line.tick(10)
        line.leg.playout.begin()
        line.leg.playout.write(spoken(2000, 200))
        line.leg.playout.end()
        line.tick()
        begun = line.sent.index("clear")
        line.tick(30)
    sounds = [message for message in line.sent[begun:] if not isinstance(message, str)]
    said = [ms for message in sounds for ms in told(message)]
    assert said[:200] == list(range(2001, 2201))
    assert all(1 <= ms <= 1000 for ms in said[200:])
    assert len(said) > 200 + 15 * 20
    assert line.sent[-1] == "clear"


def test_sound_written_as_it_is_played_is_passed_on_tick_by_tick(line):
    for tick in range(50):
        line.leg.playout.write(spoken(tick * 20, 20))
        line.tick()
        assert len(line.sounds) == tick + 1
    assert line.leg.playout.queued == SAMPLES_OUT


def test_the_end_of_an_utterance_is_padded_and_marked(line):
    line.leg.playout.begin()
    line.leg.playout.write(spoken(0, 130), mark="end")
    passed = []
    line.leg.playout.listener = Listening(
        on_mark=lambda mark, position: passed.append((mark, line.ticks))
    )
    line.tick(4)
    line.leg.playout.end()
    line.tick(8)
    assert [told(message) for message in line.sounds][-1] == [*range(121, 131), *[0] * 10]
    assert line.sent[-1] == f"mark 1.{130 * 24}"
    assert passed == [("end", 7)]
    assert not line.leg.playout.speaking


def test_what_is_written_late_follows_without_padding_in_between(line):
    line.leg.playout.write(spoken(0, 130))
    line.tick(4)
    line.leg.playout.write(spoken(130, 110))
    line.tick(12)
    said = [ms for message in line.sounds for ms in told(message)]
    assert said == list(range(1, 241))


@pytest.mark.parametrize("how", ["pause", "flush"])
def test_a_cut_is_cleared_in_the_same_call_and_nothing_old_is_sent_after_it(line, how):
    line.leg.playout.write(spoken(0, 2000))
    line.tick(20)
    before = len(line.sent)
    getattr(line.leg.playout, how)()
    assert line.sent[before:] == ["clear"]
    line.tick(10)
    assert line.sent[before:] == ["clear"]
    line.leg.playout.flush()
    line.leg.playout.write(spoken(5000, 1000))
    line.tick(10)
    assert line.sent[before] == "clear"
    assert "clear" not in line.sent[before + 1 :]
    said = [
        ms for message in line.sent[before:] if isinstance(message, bytes) for ms in told(message)
    ]
    assert said[0] == 5001
    assert all(ms > 5000 for ms in said)


def test_what_a_codec_keeps_of_the_old_utterance_is_not_heard_in_the_new():
    line = Line(format=Format("pcmu", 8000))
    line.leg.playout.write(np.full(24_000, 20_000, np.int16))
    line.tick(10)
    line.leg.playout.flush()
    before = len(line.sounds)
    line.leg.playout.write(np.zeros(2400, np.int16))
    line.tick(3)
    assert set(b"".join(line.sounds[before:])) == {0xFF}


def test_nothing_is_cleared_where_nothing_was_sent(line):
    line.leg.playout.pause()
    line.leg.playout.write(spoken(0, 100))
    line.tick(3)
    line.leg.playout.flush()
    assert line.sent == []


def test_a_pause_that_is_taken_back_goes_on_from_what_was_played():
    call = Call()
    call.speak(3000)
    call.run(1010)
    call.leg.playout.pause()
    counted = call.counted
    call.run(400)
    at = len(call.sent)
    call.leg.playout.resume()
    call.run(100)
    assert call.said_ms(at)[0][-1] == counted + 20
    assert all(message != "clear" for _, message in call.sent[at:])


def test_while_it_is_congested_nothing_is_sent_and_the_count_stops_at_what_was(line):
    line.leg.playout.write(spoken(0, 2000))
    line.tick(5)
    line.take(Congested(True))
    before = len(line.sounds)
    line.tick(20)
    assert len(line.sounds) == before
    assert line.leg.playout.sent == before * SAMPLES_OUT
    line.take(Congested(False))
    line.tick(3)
    assert told(line.sounds[before])[0] == before * 20 + 1


def longer(line):
    """Its stream takes 60 ms in one message."""
    line.stream.long_packet_ms = 60
    line.stream.events.clear()
    line.take(replace(STARTED, format_in=Format("l16", 24_000), format_out=Format("l16", 24_000)))
    return line


def test_what_waits_is_sent_in_longer_messages_and_as_far_ahead():
    line = longer(Line())
    line.leg.playout.begin()
    line.leg.playout.write(spoken(0, 1000))
    line.tick()
    assert [len(told(message)) for message in line.sounds] == [60, 60]
    for _ in range(30):
        line.tick()
        sent = sum(len(told(message)) for message in line.sounds)
        assert sent - line.ticks * 20 >= 100 - 20
        assert [ms for message in line.sounds for ms in told(message)] == list(range(1, sent + 1))
    assert len(line.sounds) < 30 * 20 / 60 + 4


def test_sound_that_comes_as_it_is_played_does_not_wait_for_a_longer_message():
    line = longer(Line())
    for tick in range(10):
        line.leg.playout.write(spoken(tick * 20, 20))
        line.tick()
        assert len(line.sounds) == tick + 1


def test_the_last_of_an_utterance_is_sent_though_it_fills_no_longer_message():
    line = longer(Line())
    line.leg.playout.begin()
    line.leg.playout.write(spoken(0, 130))
    line.leg.playout.end()
    line.tick(12)
    assert [len(told(message)) for message in line.sounds] == [60, 60, 20]
    assert line.leg.playout.sent == 130 * 24


def test_messages_of_100_ms_wait_until_there_is_that_much():
    stream = ScriptedStream()
    stream.packet_ms, stream.lead_ms = 100, 300
    call = Call(stream=stream)
    playout = call.leg.playout
    playout.begin()
    for start in range(0, 900, 60):
        playout.write(spoken(start, 60))
        call.run(60)
    playout.end()
    call.run(1500)
    assert {len(sound) for sound in call.said_ms()} == {100}
    assert [ms for ms in call.played if ms] == list(range(1, 901))
    assert call.counted == 900


def test_a_line_that_must_hear_something_all_the_time_is_sent_silence_in_between():
    stream = ScriptedStream()
    stream.needs_silence, stream.acknowledges, stream.clears = True, False, False
    stream.lead_ms = 40
    call = Call(stream=stream)
    call.run(500)
    assert [sum(sound) for sound in call.said_ms()] == [0] * 25
    call.speak(350)
    call.run(1000)
    ticks = [ms for ms, _ in call.sent]
    assert set(range(0, 1500, 20)) - set(ticks) == {840}  # the lead is used up
    assert [tick for tick in ticks if ticks.count(tick) > 1] == [500, 500]  # where it was sent
    assert [ms for ms in call.played if ms] == list(range(1, 351))
    assert len(call.played) == 1500 - 20
    assert call.queued <= 20


def test_where_sound_cannot_be_taken_back_a_pause_repeats_nothing():
    stream = ScriptedStream()
    stream.acknowledges, stream.clears, stream.lead_ms = False, False, 40
    call = Call(stream=stream)
    call.speak(2000)
    call.run(600)
    call.leg.playout.pause()
    call.run(500)
    call.leg.playout.resume()
    call.run(2500)
    assert [ms for ms in call.played if ms] == list(range(1, 2001))
    assert call.counted == 2000
    assert not any(isinstance(message, str) for _, message in call.sent)


def test_what_was_flushed_is_not_sent_where_sound_cannot_be_taken_back():
    stream = ScriptedStream()
    stream.acknowledges, stream.clears, stream.lead_ms = False, False, 40
    call = Call(stream=stream)
    call.speak(2000)
    call.run(600)
    call.leg.playout.flush()
    at = len(call.sent)
    call.speak(200, 5000)
    call.run(600)
    assert min(min(sound) for sound in call.said_ms(at)) == 5001
    assert call.counted == pytest.approx(call.heard(), abs=40)
