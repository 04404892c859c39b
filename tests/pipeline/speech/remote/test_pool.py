"""Which worker is chosen, and what its streams do when it drains, falls silent or is gone."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.speech.remote.pool import (
    FORGET_S,
    MOVES_PER_S,
    SILENT_LOOKS,
    SUBSET,
    TABLE,
    Action,
    WorkerAddress,
    WorkerEvent,
    WorkerPool,
    WorkerState,
)

S, E = WorkerState, WorkerEvent


def at(number: int) -> WorkerAddress:
    return WorkerAddress(f"http://10.0.0.{number}:7870")


def pool_of(count: int, edge: str = "edge") -> WorkerPool:
    pool = WorkerPool(edge, random.Random(1))
    pool.replace_list(map(at, range(count)), 0.0)
    return pool


def all_say(pool: WorkerPool, event: WorkerEvent) -> None:
    for address in pool.workers:
        pool.receive(address, event, 0.0)


def test_of_two_at_random_the_freer_is_chosen() -> None:
    pool = pool_of(2)
    all_say(pool, E.READY)
    pool.receive_free(at(0), 0.2, 0.0)
    pool.receive_free(at(1), 0.9, 0.0)
    assert {pool.choose() for _ in range(20)} == {pool.workers[at(1)]}
    chosen = pool.choose({at(1)})
    assert chosen is pool.workers[at(0)]
    assert pool.choose({at(0), at(1)}) is None


def test_what_was_opened_since_the_last_answer_counts() -> None:
    pool = pool_of(2)
    all_say(pool, E.READY)
    for address in pool.workers:
        pool.receive_free(address, 1.0, 0.1)
    chosen = Counter(str(worker.address) for _ in range(10) if (worker := pool.choose()))
    assert sorted(chosen.values()) == [5, 5]


def test_an_edge_uses_a_subset_and_the_others_when_it_is_full() -> None:
    pool = pool_of(20)
    all_say(pool, E.READY)
    subset = {worker.address for worker in pool.watched()}
    assert len(subset) == SUBSET
    assert {worker.address for _ in range(200) if (worker := pool.choose())} == subset
    for address in subset:
        pool.receive(address, E.FULL, 0.0)
    others = {worker.address for _ in range(200) if (worker := pool.choose())}
    assert not others & subset
    assert len(others) > SUBSET


def test_the_subsets_of_many_edges_cover_the_workers_evenly() -> None:
    used = Counter(
        worker.address for edge in range(500) for worker in pool_of(20, str(edge)).watched()
    )
    assert len(used) == 20
    assert max(used.values()) / (500 * SUBSET / 20) < 1.4


def test_one_more_worker_changes_few_subsets() -> None:
    changed = sum(
        len(
            {w.address for w in pool_of(20, str(edge)).watched()}
            - {w.address for w in pool_of(21, str(edge)).watched()}
        )
        for edge in range(200)
    )
    assert changed < 200 * SUBSET * 2 / 21


def test_a_gone_worker_is_replaced_in_the_subset_and_still_polled() -> None:
    pool = pool_of(20)
    all_say(pool, E.READY)
    first = pool.watched()[0]
    pool.receive(first.address, E.LOST, 0.0)
    watched = pool.watched()
    assert first in watched
    assert len(watched) == SUBSET + 1
    assert first not in {pool.choose() for _ in range(100)}
    pool.receive(first.address, E.READY, 1.0)
    assert len(pool.watched()) == SUBSET


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (E.READY, E.FULL),
        (E.READY, E.LOADING),
        (E.FULL, E.LOADING),
        (E.LOADING, E.SILENT),
        (E.SILENT, E.LOST),
    ],
)
def test_the_best_state_is_preferred(better: WorkerEvent, worse: WorkerEvent) -> None:
    pool = pool_of(2)
    pool.receive(at(0), better, 0.0)
    pool.receive(at(1), worse, 0.0)
    assert pool.choose() is pool.workers[at(0)]
    assert pool.choose({at(0)}) is pool.workers[at(1)]


def test_a_draining_worker_gets_no_stream_and_its_streams_move() -> None:
    pool = pool_of(2)
    all_say(pool, E.READY)
    pool.receive(at(0), E.DRAINING, 0.0)
    assert pool.choose({at(1)}) is None
    assert pool.look(pool.workers[at(0)], True, 0.0) is Action.STAY
    pool.receive(at(0), E.DATA, 0.0)
    assert pool.look(pool.workers[at(0)], True, 0.0) is Action.MOVE
    assert pool.look(pool.workers[at(1)], False, 0.0) is Action.STAY


def test_a_silent_worker_is_suspected_while_a_result_is_due() -> None:
    pool = pool_of(2)
    all_say(pool, E.READY)
    worker = pool.workers[at(0)]
    for _ in range(2 * SILENT_LOOKS):
        assert pool.look(worker, False, 0.0) is Action.STAY
    actions = [pool.look(worker, True, 0.0) for _ in range(SILENT_LOOKS + 1)]
    assert actions == [Action.STAY] * (SILENT_LOOKS - 1) + [Action.REPLAY] * 2
    assert worker.state is S.SUSPECTED
    pool.receive(worker.address, E.DATA, 0.0)
    assert pool.look(worker, True, 0.0) is Action.STAY
    assert worker.state is S.READY


def test_polls_without_an_answer_end_in_gone() -> None:
    pool = pool_of(2)
    worker = pool.workers[at(0)]
    pool.receive(at(0), E.READY, 0.0)
    pool.receive(at(0), E.UNANSWERED, 1.0)
    assert worker.state is S.SUSPECTED
    pool.receive(at(0), E.UNANSWERED, 2.0)
    assert worker.state is S.GONE
    assert pool.look(worker, False, 2.0) is Action.MOVE


def test_what_is_no_longer_listed_drains_until_it_is_forgotten_or_listed_again() -> None:
    pool = pool_of(3)
    all_say(pool, E.READY)
    pool.replace_list([at(1), at(2)], 1.0)
    assert pool.workers[at(0)].state is S.DRAINING
    pool.receive(at(0), E.READY, 1.0)  # an answer that was under way
    assert pool.workers[at(0)].state is S.DRAINING
    assert at(0) not in {worker.address for worker in pool.watched()}
    pool.replace_list(map(at, range(3)), 2.0)
    assert pool.workers[at(0)].state is S.UNKNOWN
    pool.replace_list([at(1)], 3.0)
    pool.forget(at(0))
    assert set(pool.workers) == {at(1), at(2)}
    pool.receive(at(0), E.READY, 3.0)


def test_what_an_attempt_said_of_a_worker_that_is_not_polled_is_forgotten() -> None:
    pool = pool_of(20)
    other = next(w for w in pool.workers.values() if w not in pool.watched())
    pool.receive(other.address, E.FULL, 1.0)
    pool.expire(pool.watched(), 1.0 + FORGET_S)
    assert other.state is S.FULL
    pool.expire(pool.watched(), 1.1 + FORGET_S)
    assert other.state is S.UNKNOWN


def test_moves_are_bounded_each_second() -> None:
    pool = pool_of(2)
    moved = 0
    for tenth in range(30):
        while pool.may_move(tenth / 10):
            pool.count_move()
            moved += 1
    assert moved <= MOVES_PER_S * 4
    assert moved >= MOVES_PER_S * 3


def test_every_state_has_a_way_back() -> None:
    assert {(state, E.READY) for state in S} <= TABLE.keys()
    assert {(state, E.LOST) for state in S} <= TABLE.keys()


EVENTS = st.tuples(st.integers(0, 5), st.sampled_from(E))
STEPS = st.one_of(EVENTS, st.frozensets(st.integers(0, 5)), st.booleans())


@given(st.lists(STEPS, max_size=60))
def test_whatever_happens_a_listed_worker_that_can_take_a_stream_is_found(
    steps: list[tuple[int, WorkerEvent] | frozenset[int] | bool],
) -> None:
    pool = pool_of(6)
    for now, step in enumerate(steps):
        if isinstance(step, tuple):
            pool.receive(at(step[0]), step[1], now)
        elif isinstance(step, frozenset):
            pool.replace_list(map(at, step), now)
        else:
            for worker in pool.workers.values():
                action = pool.look(worker, step, now)
                assert action is not Action.MOVE or worker.state in (S.DRAINING, S.GONE)
                assert action is not Action.REPLAY or step
        usable = [w for w in pool.workers.values() if w.listed and w.state is not S.DRAINING]
        chosen = pool.choose()
        assert (chosen is None) == (not usable)
        ready = [w for w in usable if w.state is S.READY]
        if chosen is not None:
            assert chosen in usable
            assert not ready or chosen.state is S.READY or chosen.state is S.UNKNOWN
            assert pool.choose([w.address for w in usable]) is None
