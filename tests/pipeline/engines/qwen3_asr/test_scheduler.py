"""Who is served, and when: simulated callers and files, on a simulated machine and its clock."""

from collections import Counter
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from time import thread_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.pipeline.engines.qwen3_asr.scheduler import (
    BATCH_MS,
    EXPECTED_LATE,
    FILE_RIDE_AFTER,
    FILE_RIDE_MS,
    FIRST_UPDATE_MS,
    NO_PAGES_WAIT,
    TEXT_TOKENS,
    TRANSITIONS,
    Cost,
    Event,
    Job,
    Scheduler,
    StreamState,
)
from offhook.pipeline.engines.qwen3_asr.windows import WINDOW_SAMPLES
from offhook.pipeline.speech.errors import EngineOverloaded

COST = Cost(batch_ms=8.0, encoder_token_ms=0.005, prefill_token_ms=0.01)
MS = 16  # samples


def scheduler(
    cost: Cost = COST,
    streams: int = 2000,
    files: int = 50,
    batch: int = 64,
    tokens: int = 8192,
) -> Scheduler:
    return Scheduler(cost, streams, files, batch, tokens)


def total_ms(jobs: list[Job], cost: Cost = COST) -> float:
    return cost.batch_ms + sum(cost.work_ms(j.encoder_tokens, j.prefill_tokens) for j in jobs)


def file_of(s: Scheduler, seconds: float, ended: bool = True) -> int:
    file = s.open_file()
    s.audio(file, int(seconds * 1000) * MS, 0.0)
    if ended:
        s.finish(file, 0.0)
    return file


class Machine:
    """Runs batches as long as the cost model says, while callers speak in 20 ms packets."""

    def __init__(self, s: Scheduler, cost: Cost = COST) -> None:
        self.s, self.cost, self.now = s, cost, 0.0
        self.events: list[tuple[float, int, str, int]] = []
        self.updates: Counter[int] = Counter()
        self.waits: list[float] = []
        self.finals: dict[int, float] = {}
        self.finished: dict[int, float] = {}
        self.work: Counter[int] = Counter()

    def at(self, when: float, what: str, stream: int) -> None:
        heappush(self.events, (when, len(self.events) + len(self.waits), what, stream))

    def speak(self, stream: int, start: float, seconds: float) -> None:
        for packet in range(1, round(seconds / 0.02) + 1):
            self.at(start + 0.02 * packet, "audio", stream)
        self.at(start + seconds + 0.001, "finish", stream)

    def run(self, until: float) -> None:
        while self.now < until:
            self._tell(self.now)
            batch = self.s.next_batch(self.now)
            if not batch:
                times = [
                    t for t in (self.s.timer(), self.events[0][0] if self.events else None) if t
                ]
                self.now = max(self.now + 1e-6, min([*times, until]))
                continue
            self.now += total_ms(batch, self.cost) / 1000
            self._tell(self.now)
            for job in batch:
                self.answer(job)

    def answer(self, job: Job) -> None:
        self.updates[job.stream] += 1
        self.work[job.stream] += job.encoder_tokens
        if self.s.done(job.stream, self.now) and job.final:
            self.finals[job.stream] = self.now

    def _tell(self, now: float) -> None:
        while self.events and self.events[0][0] <= now:
            when, _, what, stream = heappop(self.events)
            if what == "audio":
                self.s.audio(stream, 20 * MS, when)
            else:
                self.finished[stream] = when
                self.s.finish(stream, when)


def test_first_update_is_early_then_regular() -> None:
    s = scheduler()
    stream = s.open(update_ms=400)
    taken = []
    for packet in range(1, 76):
        now = packet * 0.02
        s.audio(stream, 20 * MS, now)
        for job in s.next_batch(now):
            taken.append(job.end // MS)
            assert s.done(stream, now)
    assert taken == [160, 560, 960, 1360]


def test_a_late_stream_is_updated_once_with_all() -> None:
    s = scheduler()
    stream = s.open(update_ms=100)
    for packet in range(1, 101):
        s.audio(stream, 20 * MS, packet * 0.02)
    (job,) = s.next_batch(2.0)
    assert (job.end, job.final) == (2000 * MS, False)
    s.done(stream, 2.1)
    assert s.late == 1
    assert s.next_batch(2.1) == []


def test_earliest_deadline_first_and_ends_of_turns_before_all() -> None:
    s = scheduler(batch=2)
    slow, quick, ending = s.open(400), s.open(80), s.open(400)
    for stream in (slow, quick, ending):
        s.audio(stream, 500 * MS, 1.0)
    s.finish(ending, 1.01)
    batch = s.next_batch(1.02)
    assert [job.stream for job in batch] == [ending, quick]
    assert batch[0].final
    for job in batch:
        s.done(job.stream, 1.03)
    assert [job.stream for job in s.next_batch(1.03)] == [slow]


def test_an_end_of_turn_during_the_update_comes_next() -> None:
    s = scheduler()
    stream = s.open()
    s.audio(stream, 400 * MS, 0.4)
    s.next_batch(0.4)
    s.audio(stream, 20 * MS, 0.42)
    s.finish(stream, 0.42)
    assert s.state(stream) is StreamState.ENDING
    assert not s.settled(stream)
    s.done(stream, 0.43)
    (job,) = s.next_batch(0.43)
    assert (job.end, job.final) == (420 * MS, True)
    assert s.done(stream, 0.44)
    assert s.settled(stream)
    s.audio(stream, 200 * MS, 0.6)  # the next utterance
    assert s.next_batch(0.6)[0].end == 200 * MS


def test_ends_of_turns_join_a_batch_that_was_chosen_ahead() -> None:
    s = scheduler(batch=3)
    running, chosen, late, ending = (s.open() for _ in range(4))
    s.audio(running, 400 * MS, 1.0)
    s.next_batch(1.0)
    for stream in (chosen, late, ending):
        s.audio(stream, 400 * MS, 1.01)
    s.finish(late, 1.01)
    batch = s.next_batch(1.01, ahead=True)
    assert [job.stream for job in batch] == [late, chosen, ending]
    s.done(running, 1.02)
    s.audio(running, 400 * MS, 1.02)  # a partial does not join
    s.finish(ending, 1.02)  # nor does a stream twice
    assert s.join(batch[:2]) == []
    for job in batch:
        s.done(job.stream, 1.03)
    assert [(job.stream, job.final) for job in s.join([])] == [(ending, True)]
    s.done(ending, 1.04)
    assert [job.stream for job in s.next_batch(1.04)] == [running]


def test_a_batch_chosen_ahead_leaves_room_for_ends_of_turns() -> None:
    each = 13 * 60 + TEXT_TOKENS  # prefill tokens of a minute
    s = scheduler(Cost(1.0, 0.001, 0.001), batch=10, tokens=5 * each)
    streams = [s.open() for _ in range(8)]
    for stream in streams:
        s.audio(stream, 60_000 * MS, 1.0)
    batch = s.next_batch(1.0, ahead=True)
    assert len(batch) == 4
    for stream in streams[4:]:
        s.finish(stream, 1.01)
    assert [job.stream for job in s.join(batch)] == [streams[4]]
    assert s.join(s.next_batch(1.02)) == []


def test_an_end_of_turn_takes_the_place_of_its_update_in_a_batch_chosen_ahead() -> None:
    s = scheduler()
    ending, long, going, file = s.open(), s.open(), s.open(), s.open_file()
    for stream in (ending, going):
        s.audio(stream, 400 * MS, 1.0)
    s.audio(long, 30_000 * MS, 1.0)  # more windows than go into one prefill with what follows
    s.audio(file, 10_000 * MS, 1.0)
    batch = s.next_batch(1.0)
    for stream in (ending, long):
        s.audio(stream, 40 * MS, 1.01)
    for stream in (ending, long, file):
        s.finish(stream, 1.01)
    (job,) = s.join(batch)
    assert (job.stream, job.end, job.final) == (ending, 440 * MS, True)
    assert s.state(ending) is StreamState.LAST
    for started in batch:
        assert s.done(started.stream, 1.02)
    assert s.settled(ending)
    assert not s.settled(long)


def test_ends_of_turns_that_take_a_place_never_make_a_batch_larger_than_the_most() -> None:
    each = 13 + TEXT_TOKENS  # prefill tokens of a second
    s = scheduler(Cost(1.0, 0.001, 0.001), batch=40, tokens=20 * each)
    streams = [s.open() for _ in range(30)]
    for stream in streams:
        s.audio(stream, 1010 * MS, 1.0)
    batch = s.next_batch(1.0, ahead=True)
    assert len(batch) == 16
    for stream in streams:
        s.audio(stream, 7000 * MS, 1.01)
        s.finish(stream, 1.01)
    ends = s.join(batch)
    ended = {job.stream for job in ends}
    assert ended == {job.stream for job in batch[:3]}  # 91 tokens more each
    whole = ends + [job for job in batch if job.stream not in ended]
    assert sum(job.prefill_tokens for job in whole) <= 20 * each


def test_an_end_without_sound() -> None:
    s = scheduler()
    stream = s.open()
    s.finish(stream, 0.0)
    assert s.next_batch(0.0) == [Job(stream, 0, True, True, 0, TEXT_TOKENS)]


def test_text_not_at_its_end_goes_on_in_the_next_batch() -> None:
    s = scheduler()
    stream = s.open()
    s.audio(stream, 400 * MS, 0.4)
    s.finish(stream, 0.4)
    for _ in range(3):
        (job,) = s.next_batch(0.5)
        assert job.final
        assert s.done(stream, 0.5, complete=False)
    s.next_batch(0.6)
    s.done(stream, 0.6)
    assert s.next_batch(0.7) == []


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_nobody_wants_the_result_any_more(end: str) -> None:
    s = scheduler(streams=1)
    stream = s.open()
    s.audio(stream, 400 * MS, 0.4)
    s.next_batch(0.4)
    getattr(s, end)(stream)
    assert not s.settled(stream)
    assert s.done(stream, 0.5) is False
    assert s.settled(stream)
    assert s.next_batch(0.6) == []
    if end == "close":
        assert s.state(stream) is StreamState.CLOSED
        s.open()
    else:
        s.audio(stream, 160 * MS, 1.0)
        assert s.next_batch(1.0)[0].end == 160 * MS


def test_admission() -> None:
    s = scheduler(streams=2, files=1)
    first = s.open()
    s.open()
    with pytest.raises(EngineOverloaded, match="2 streams"):
        s.open()
    s.open_file()
    with pytest.raises(EngineOverloaded, match="1 files"):
        s.open_file()
    s.close(first)
    assert s.open() != first


def test_a_file_is_read_in_whole_windows_then_its_rest() -> None:
    s = scheduler()
    file = file_of(s, seconds=100)
    ends = []
    while batch := s.next_batch(0.0):
        ends.append((batch[0].end / WINDOW_SAMPLES, batch[0].final))
        s.done(file, 0.0)
    assert ends[-1] == (12.5, True)
    assert [int(end) for end, _ in ends[:-1]] == [8]
    assert not ends[0][1]


def test_a_file_waits_for_a_whole_window() -> None:
    s = scheduler()
    file = s.open_file()
    s.audio(file, WINDOW_SAMPLES, 0.0)
    assert s.next_batch(0.0) == []
    s.audio(file, 40, 0.1)
    assert s.next_batch(0.1)[0].end == WINDOW_SAMPLES + 40


QUICK = Cost(batch_ms=8.0, encoder_token_ms=0.001, prefill_token_ms=0.002)


def test_files_ride_along_after_every_live_stream_and_within_their_budget() -> None:
    s = scheduler(QUICK, batch=4)
    for _ in range(5):
        file_of(s, seconds=60)
    streams = [s.open(320) for _ in range(5)]
    for stream in streams:
        s.audio(stream, 320 * MS, 1.0)
    batch = s.next_batch(1.0)
    assert all(job.live for job in batch)  # one live stream still waits
    for job in batch:
        s.done(job.stream, 1.01)
    batch = s.next_batch(1.01)
    assert batch[0].live
    assert len(batch) > 1
    assert not any(job.live for job in batch[1:])
    assert total_ms(batch[1:], QUICK) - QUICK.batch_ms <= FILE_RIDE_MS + 1e-9


def test_files_have_a_batch_of_their_own_where_nobody_is_expected() -> None:
    s = scheduler(QUICK)
    file_of(s, seconds=4000)
    stream = s.open(400)

    def done(now: float) -> list[bool]:
        batch = s.next_batch(now)
        for job in batch:
            s.done(job.stream, now)
        return [job.live for job in batch]

    s.audio(stream, 400 * MS, 1.0)
    assert done(1.0)[0]
    assert done(1.1) == [False]  # the next update is 300 ms off
    assert done(1.395) == []  # a batch would not be done in time
    assert s.timer() == pytest.approx(1.4 + EXPECTED_LATE)
    assert done(1.4 + EXPECTED_LATE) == [False]  # the caller fell silent: nobody is waited for


def test_who_has_ended_a_turn_is_not_waited_for() -> None:
    s = scheduler(QUICK)
    file_of(s, seconds=4000)
    speaking, ending = s.open(400), s.open(400)
    s.audio(ending, 400 * MS, 1.0)
    s.audio(speaking, 400 * MS, 1.2)
    for job in s.next_batch(1.2):
        s.done(job.stream, 1.21)
    assert s.next_batch(1.395) == []  # both are expected, one of them in 5 ms
    s.finish(ending, 1.395)
    (last,) = s.next_batch(1.395)
    s.done(last.stream, 1.4)
    assert [job.live for job in s.next_batch(1.4)] == [False]


def test_a_new_utterance_is_expected_before_its_first_update() -> None:
    s = scheduler(QUICK)
    file_of(s, seconds=4000)
    stream = s.open(400)
    s.audio(stream, 20 * MS, 1.0)
    assert s.next_batch(1.0 + FIRST_UPDATE_MS / 1000 - 0.025) == []
    s.cancel(stream)
    assert s.next_batch(1.0 + FIRST_UPDATE_MS / 1000 - 0.025) != []


def test_files_ride_along_now_and_then_and_never_with_an_end_of_turn() -> None:
    s = scheduler(QUICK)
    file_of(s, seconds=4000)
    streams = [s.open(400) for _ in range(60)]
    now, step, rides = 1.0, 0.006, []
    for stream in streams:  # always somebody is due: there is no gap for files alone
        s.audio(stream, 400 * MS, now)
        batch = s.next_batch(now)
        if not all(job.live for job in batch):
            rides.append(now)
        now += step
        for job in batch:
            s.done(job.stream, now)
    apart = [after - before for before, after in pairwise(rides)]
    assert len(rides) > 10
    assert min(apart) >= FILE_RIDE_AFTER
    assert max(apart) <= FILE_RIDE_AFTER + step
    s.finish(streams[0], now + 1)
    assert [job.live for job in s.next_batch(now + 1)] == [True]


def test_files_are_not_put_behind_a_batch_that_runs() -> None:
    s = scheduler()
    file_of(s, seconds=4000)
    stream = s.open()
    s.audio(stream, 20 * MS, 1.0)
    assert s.next_batch(1.0, ahead=True) == []
    s.cancel(stream)
    assert [job.live for job in s.next_batch(1.0, ahead=True)] == [False]


H200 = Cost(batch_ms=4.5, encoder_token_ms=0.0022, prefill_token_ms=0.0023)
"""0.6B in bf16."""
CHUNK_S = 27
TEXT_PASSES = 40
"""That many batches say the text of such a chunk, beside people who speak."""


class Transcribing(Machine):
    """A machine with callers who speak all the time, `starts` s after one another, and files."""

    def __init__(self, starts: list[float], files: int) -> None:
        super().__init__(scheduler(H200, batch=128), H200)
        self.starts: dict[int, float] = {}
        self.heard: Counter[int] = Counter()
        self.passes: Counter[int] = Counter()
        self.delays: list[float] = []
        """ms from when an update's sound had come until it was done."""
        for start in starts:
            stream = self.s.open(400)
            self.starts[stream] = start
            self.speak(stream, start, 10)
        for _ in range(files):
            file_of(self.s, CHUNK_S)

    def answer(self, job: Job) -> None:
        if not job.live:
            self.passes[job.stream] += job.final
            said = not job.final or self.passes[job.stream] % TEXT_PASSES == 0
            self.s.done(job.stream, self.now, complete=said)
            if job.final and said:
                self.s.audio(job.stream, CHUNK_S * 1000 * MS, self.now)
                self.s.finish(job.stream, self.now)
            return
        self.s.done(job.stream, self.now)
        wanted = self.heard[job.stream] + (400 if self.heard[job.stream] else FIRST_UPDATE_MS)
        self.heard[job.stream] = job.end // MS
        self.delays.append(1000 * (self.now - self.starts[job.stream]) - wanted)


@pytest.mark.parametrize(
    ("starts", "least"),
    [
        # In four crowds, 100 ms apart: the gaps are for the files.
        ([0.1 * (i % 4) for i in range(100)], 200),
        # Whenever they like: hardly a gap is left.
        ([Random(i).random() * 0.4 for i in range(100)], 30),
        ([Random(i).random() * 0.4 for i in range(30)], 100),
    ],
    ids=["crowds", "mixed", "few"],
)
def test_live_updates_hardly_notice_files(starts: list[float], least: float) -> None:
    """95 of 100 updates take at most a tenth longer beside six files, which are nevertheless
    transcribed `least` times as fast as they are spoken."""
    seconds, p95 = 4, []
    for files in (0, 3, 6):
        machine = Transcribing(starts, files)
        machine.run(seconds)
        p95.append(sorted(machine.delays)[len(machine.delays) * 95 // 100])
    assert max(p95[1:]) <= 1.1 * p95[0]
    assert machine.passes.total() / TEXT_PASSES * CHUNK_S / seconds > least


def test_on_a_slow_machine_files_wait_until_nobody_speaks() -> None:
    slow = Cost(batch_ms=100.0, encoder_token_ms=5.0, prefill_token_ms=5.0)
    s = scheduler(slow)
    file = file_of(s, seconds=30)
    stream = s.open()
    s.audio(stream, 20 * MS, 0.0)
    assert s.next_batch(0.0) == []
    s.cancel(stream)
    assert [job.stream for job in s.next_batch(0.0)] == [file]


def test_files_take_turns() -> None:
    s = scheduler()
    long, work = [file_of(s, seconds=4000) for _ in range(3)], Counter[int]()
    for turn in range(60):
        if turn == 30:
            long.append(file_of(s, seconds=4000))
            before = work.copy()
        for job in s.next_batch(float(turn)):
            work[job.stream] += job.encoder_tokens
            s.done(job.stream, float(turn))
    shares = [work[f] - before[f] for f in long]
    assert max(shares) - min(shares) <= 2 * 8 * 104
    assert work[long[0]] > work[long[3]]  # who comes late is not owed the past


def test_a_live_stream_takes_pages_from_the_file_that_came_last() -> None:
    s = scheduler(batch=1)
    first, second, third = (s.open_file() for _ in range(3))
    for file in (first, second, third):
        s.audio(file, 20 * WINDOW_SAMPLES, 0.0)
        (job,) = s.next_batch(0.0)
        assert job.stream == file  # the least served
        s.done(file, 0.0)
    assert (s.evict(1.0), s.evict(1.0)) == (third, second)
    (job,) = s.next_batch(1.0)
    assert job.stream == first
    assert job.end > 8 * WINDOW_SAMPLES + 40  # it goes on where it was
    s.done(first, 1.0)
    ends = {}
    assert s.timer() == pytest.approx(1.0 + NO_PAGES_WAIT)
    while batch := s.next_batch(1.0 + NO_PAGES_WAIT):
        ends |= {job.stream: job.end for job in batch if job.stream not in ends}
        for job in batch:
            s.done(job.stream, 1.2)
    assert ends[second] == ends[third] == 8 * WINDOW_SAMPLES + 40  # from their beginning


def test_evicting_from_the_batch_being_prepared() -> None:
    s = scheduler()
    file = file_of(s, seconds=20)
    (job,) = s.next_batch(0.0)
    assert job.final
    assert s.evict(0.0) == file
    assert s.state(file) is StreamState.FINISHING
    assert s.evict(0.0) is None
    assert s.next_batch(0.05) == []
    assert s.next_batch(0.0 + NO_PAGES_WAIT) == [job]


def test_without_pages_a_stream_comes_again_a_little_later() -> None:
    s = scheduler()
    stream = s.open()
    s.audio(stream, 400 * MS, 0.4)
    s.next_batch(0.4)
    s.postpone(stream, 0.4)
    assert s.next_batch(0.41) == []
    s.audio(stream, 40 * MS, 0.45)
    assert [j.end for j in s.next_batch(0.4 + NO_PAGES_WAIT)] == [440 * MS]


def test_the_table_is_complete() -> None:
    """Whatever can happen from outside can happen in every state but CLOSED; a batch's events only
    to who is in one; and every state can be reached, and left."""
    batched = {
        StreamState.RUNNING,
        StreamState.ENDING,
        StreamState.LAST,
        StreamState.DISCARDING,
        StreamState.CLOSING,
    }
    for state, row in TRANSITIONS.items():
        if state not in (StreamState.CLOSED, StreamState.CLOSING):
            assert {Event.CANCEL, Event.CLOSE, Event.EVICT} <= set(row)
        assert (Event.DONE in row) == (Event.MORE in row) == (state in batched)
    reached, left = {StreamState.IDLE}, -1
    while len(reached) != left:
        left = len(reached)
        reached |= {after for state in reached for after in TRANSITIONS[state].values()}
    assert reached == set(StreamState) == set(TRANSITIONS)


@settings(max_examples=25)
@given(
    st.integers(1, 60),
    st.lists(st.sampled_from([80, 160, 320, 400]), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 1000),
)
def test_within_its_means_the_machine_is_never_late(
    callers: int, paces: list[int], files: int, seed: int
) -> None:
    s = scheduler(Cost(2.0, 0.002, 0.004))
    machine = Machine(s, Cost(2.0, 0.002, 0.004))
    random = Random(seed)
    mine = [file_of(s, seconds=200) for _ in range(files)]
    streams = [s.open(random.choice(paces)) for _ in range(callers)]
    for stream in streams:
        machine.speak(stream, random.random(), random.uniform(0.05, 3.0))
    machine.run(5.0)
    assert s.late == 0
    for stream in streams:
        # An end of turn waits for one batch and is answered in the next.
        assert machine.finals[stream] - machine.finished[stream] <= 2 * BATCH_MS / 1000
    assert all(file in machine.finals for file in mine)


@settings(max_examples=settings.default.max_examples // 15)
@given(st.integers(0, 1000), st.integers(1, 8))
def test_nobody_starves_when_there_is_too_much(seed: int, batch: int) -> None:
    """Three to twenty times more callers than can be served, and always somebody ends a turn: each
    is updated about as often as the others of its pace."""
    s = scheduler(batch=batch)
    machine = Machine(s)
    random = Random(seed)
    streams = [s.open(320) for _ in range(120)]
    for stream in streams:
        machine.speak(stream, random.random() * 0.3, 20.0)
    short = [s.open(320) for _ in range(100)]
    for i, stream in enumerate(short):
        machine.speak(stream, 0.05 * i, 0.1)
    machine.run(5.0)
    counts = [machine.updates[stream] for stream in streams]
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 2


@pytest.mark.slow
def test_a_thousand_callers_cost_microseconds() -> None:
    s = scheduler()
    streams = [s.open(320) for _ in range(1000)]
    began, packets, updates = thread_time(), 0, 0
    for packet in range(1, 51):
        now = packet * 0.02
        for stream in streams:
            s.audio(stream, 20 * MS, now)
            packets += 1
        while batch := s.next_batch(now):
            for job in batch:
                s.done(job.stream, now)
                updates += 1
    took = thread_time() - began
    assert updates == 3000
    assert took / packets < 50e-6


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=80))
def test_any_order_of_events(steps: list[tuple[int, int]]) -> None:
    """Callers come, speak, cancel, hang up and are evicted in any order: nothing is left behind."""
    s = scheduler(streams=3, files=3, batch=3)
    known: list[int] = []
    running: list[Job] = []
    now = 0.0
    for what, which in steps:
        now += 0.05
        stream = known[which % len(known)] if known else None
        if what == 0 and len(known) < 3:
            known.append(s.open(80) if which % 2 else s.open_file())
        elif what <= 2 and stream and s.settled(stream):
            s.audio(stream, 9000 * MS, now)
        elif what == 3 and stream and s.settled(stream):
            s.finish(stream, now)
        elif what == 4 and stream:
            s.cancel(stream)
        elif what == 5 and stream:
            s.close(stream)
            known.remove(stream)
        elif what == 6 and running:
            evicted = s.evict(now)
            running = [j for j in running if j.stream != evicted]
        elif what == 7 and running:
            joined = s.join(running)
            ended = {j.stream for j in joined}
            running = [j for j in running if j.stream not in ended] + joined
            assert len({j.stream for j in running}) == len(running) <= 3
        elif not running:
            running = s.next_batch(now, ahead=bool(which % 2))
            assert len({j.stream for j in running}) == len(running)
        else:
            for i, job in enumerate(running):
                s.done(job.stream, now, complete=bool((which + i) % 3))
            running = []
    for job in running:
        s.done(job.stream, now)
    for stream in known:
        s.close(stream)
    assert s.next_batch(now + 1) == []
    for _ in range(3):
        s.open()
        s.open_file()
