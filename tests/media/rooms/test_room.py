"""Several lines in one room: who hears whom, tick by tick."""

import numpy as np
import pytest

from offhook.media.clock_io import PacketClock
from offhook.media.pcm import SAMPLES_OUT
from offhook.media.rooms.room import Member, Room
from offhook.media.telephone_tones.tones import Segment, play
from tests.media.lines import FULL, NARROW, WIDE, Line, tone
from tests.support.listening import Listening

HZ = {"a": 500, "b": 800, "c": 1250, "d": 1700}
AGENT = 2300
FORMATS = {"a": NARROW, "b": WIDE, "c": FULL, "d": NARROW}


class Phone:
    """A phone, which sounds at its own frequency, and our line to it."""

    def __init__(self, name):
        self.far, self.line = (
            Line(f"{name}'s phone", FORMATS[name], 1),
            Line(name, FORMATS[name], 2),
        )
        self.far.far, self.line.far = self.line, self.far
        self.line.connect()
        self.says = True


class Meeting:
    """A room with these phones, "a" being the call that has the agent."""

    def __init__(self, names="abcd"):
        self.phones = {name: Phone(name) for name in names}
        self.room = Room("meeting")
        self.now = 0.0
        self.agent_says = True
        for name in names:
            self.room.join(Member(name, self.phones[name].line))
        self["a"].has_agent = True

    def __getitem__(self, name):
        return self.room.members[name]

    def run(self, ticks):
        """What each phone heard, and the ear of the agent."""
        ear = []
        stop = self["a"].leg.listen(lambda heard, said, now: ear.append(heard))
        for phone in self.phones.values():
            phone.far.heard.clear()
        for _ in range(ticks):
            self.tick()
        stop()
        return {**{n: p.far.heard for n, p in self.phones.items()}, "agent": ear}

    def tick(self):
        self.now += 0.02
        for name, phone in self.phones.items():
            phone.far.now = phone.line.now = self.now
            if phone.says and phone.far.playout.queued < SAMPLES_OUT:
                phone.far.playout.write(tone(HZ[name]))
            phone.far.tick(self.now)
        if self.agent_says and self["a"].leg.playout.queued < SAMPLES_OUT:
            self["a"].leg.playout.write(tone(AGENT))
        self.room.begin_tick()
        self.room.receive_tick(self.now)
        self.room.send_tick(self.now)


def tones_in(packets):
    """Names of those whose tones are audible, within 40 dB of the loudest."""
    pcm = np.concatenate(packets[-50:])
    power = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm)))) ** 2
    hz = np.fft.rfftfreq(len(pcm), 1 / 16_000)
    levels = {n: power[np.abs(hz - f) < 20].sum() for n, f in {**HZ, "agent": AGENT}.items()}
    return {name for name, level in levels.items() if level > 1e-4 * max(1e9, *levels.values())}


def who_hears_whom(meeting):
    return {name: "".join(sorted(n[0] if n != "agent" else "!" for n in tones_in(heard)))
            for name, heard in meeting.run(120).items()}  # fmt: skip


def test_each_hears_all_others_and_not_himself():
    meeting = Meeting("abc")
    meeting.agent_says = False
    assert who_hears_whom(meeting) == {"a": "bc", "b": "ac", "c": "ab", "agent": "abc"}


def test_the_agent_is_heard_by_all_and_hears_no_voice_of_its_own():
    meeting = Meeting("abc")
    meeting.phones["c"].says = False
    assert who_hears_whom(meeting) == {"a": "!b", "b": "!a", "c": "!ab", "agent": "ab"}


def test_a_listener_hears_all_and_is_heard_by_nobody():
    meeting = Meeting("abd")
    meeting["d"].role = "listen"
    assert who_hears_whom(meeting) == {"a": "!b", "b": "!a", "d": "!ab", "agent": "ab"}


def test_a_whisper_is_heard_by_one():
    meeting = Meeting("abd")
    meeting["d"].role, meeting["d"].to = "whisper", "b"
    assert who_hears_whom(meeting) == {"a": "!b", "b": "!ad", "d": "!ab", "agent": "ab"}


def test_a_whisper_to_somebody_who_has_left_is_heard_by_nobody():
    meeting = Meeting("abd")
    meeting["d"].role, meeting["d"].to = "whisper", "b"
    meeting.run(10)
    meeting.room.leave("b")
    assert who_hears_whom(meeting)["a"] == "!"


def test_who_is_muted_hears_all():
    meeting = Meeting("abc")
    meeting.agent_says = False
    meeting["b"].muted = True
    assert who_hears_whom(meeting) == {"a": "c", "b": "ac", "c": "a", "agent": "ac"}


def test_who_is_on_hold_hears_its_sound_and_no_word():
    meeting = Meeting("abc")
    meeting.agent_says = False
    meeting["b"].on_hold = play((Segment((HZ["d"],), 1000),))
    assert who_hears_whom(meeting) == {"a": "c", "b": "d", "c": "a", "agent": "ac"}


def test_music_of_a_far_end_that_holds_us_is_for_nobody():
    meeting = Meeting("abc")
    meeting.agent_says = False
    meeting["b"].leg.set_held(True)
    assert {n: who_hears_whom(meeting)[n] for n in "ac"} == {"a": "c", "c": "a"}


def test_an_agent_that_is_not_the_rooms_is_heard_by_its_own_caller_and_hears_nobody_else():
    meeting = Meeting("abc")
    meeting["a"].has_agent = False
    assert who_hears_whom(meeting) == {"a": "!bc", "b": "ac", "c": "ab", "agent": "a"}


def test_a_notice_is_heard_by_one():
    meeting = Meeting("abc")
    meeting.phones["b"].says = meeting.phones["c"].says = meeting.agent_says = False
    for _ in range(5):
        meeting["b"].notices.write(tone(HZ["d"]))
    assert who_hears_whom(meeting) == {"a": "", "b": "ad", "c": "a", "agent": "a"}


def test_the_mix_of_a_tick_is_sent_in_that_tick():
    """A room adds nothing to the way of the sound."""
    meeting = Meeting("ab")
    meeting.agent_says = meeting.phones["b"].says = False
    meeting.phones["a"].says = False
    meeting.run(50)
    heard, sent = [], []
    meeting["a"].leg.listen(lambda one, said, now: heard.append(np.abs(one).max() > 500))
    meeting["b"].leg._send = lambda said, now: sent.append(
        said is not None and np.abs(said).max() > 500
    )
    meeting.phones["a"].says = True
    for _ in range(30):
        meeting.tick()
    assert True in heard
    assert sent.index(True) - heard.index(True) <= 1  # the filter's 0.75 ms may cross a packet


def test_keys_of_each_member_reach_his_own_listener():
    meeting = Meeting("ab")
    keys = []
    meeting["b"].leg.listener = Listening(on_dtmf=keys.append)
    meeting.phones["b"].far.send_dtmf("7")
    meeting.run(30)
    assert keys == ["7"]


def test_a_line_that_fails_leaves_and_the_others_go_on():
    meeting = Meeting("abc")
    meeting.agent_says = False

    def fails(now):
        raise RuntimeError("the decoder has failed")

    meeting["b"].leg.receive_tick = fails
    assert who_hears_whom(meeting)["a"] == "c"
    assert list(meeting.room.members) == ["a", "c"]
    assert meeting.phones["b"].line.closed is not None


def test_back_on_a_line_of_its_own_the_agent_goes_on_where_it_was():
    meeting = Meeting("ab")
    meeting.run(5)
    leg = meeting["a"].leg
    sent = leg.playout.sent
    meeting.room.leave("a")
    leg.tick(meeting.now + 0.02)
    assert leg.playout.sent == sent + SAMPLES_OUT


@pytest.fixture
def clock():
    return PacketClock()


async def test_a_room_takes_the_place_of_a_leg_in_the_clock(clock):
    """In the same phase, so that no packet is early or late."""
    one, other = Line("one", NARROW), Line("other", NARROW)
    one.far = other.far = one
    clock.add(one)
    clock.add(other)
    room = Room("one")
    before = [list(phase) for phase in clock._phases]
    clock.replace(one, room)
    assert [[room if leg is one else leg for leg in phase] for phase in before] == clock._phases
    clock.replace(room, one)
    assert before == clock._phases
    clock.remove(one)
    clock.remove(other)
