"""What the store knows of recordings in a bucket, so that none is lost and none is left there."""

from collections.abc import Iterator

import pytest

from offhook.web.records.bucket.ledger import AT_ONCE, LEASE_S, RETRY_MAX_S, Upload
from offhook.web.records.store import CallStore
from tests.web.records.made_calls import HERE, NOON, begun, call_of, over, said

PATH, SOUND = "/recordings/call.ogg", "s3://bucket/call.ogg"
DAY = 86_400.0


@pytest.fixture
def store(url: str) -> Iterator[CallStore]:
    store = CallStore(url)
    store.prepare()
    yield store
    store.close()


def kept(store: CallStore, call: str = "call") -> str:
    """A call that is over and was recorded; returns its path."""
    path = f"/recordings/{call}.ogg"
    words = [begun(call), said(call, 0, "caller", "my card is lost")]
    store.write([*words, over(call, recording=path)], HERE, NOON)
    return path


def claimed(store: CallStore, now: float = NOON, call: str = "call") -> Upload:
    sound = f"s3://bucket/{call}.ogg"
    upload = store.ledger.claim_upload(call, f"/recordings/{call}.ogg", sound, now)
    assert upload is not None
    return upload


def place(store: CallStore, call: str = "call") -> str:
    shown = store.show(call)
    assert shown is not None
    return str(shown["recording"])


def removals(store: CallStore, now: float = NOON) -> list[str]:
    return [removal.sound for removal in store.ledger.claim_removals(now)]


def test_only_recordings_of_calls_that_are_over_are_uploaded(store: CallStore) -> None:
    path = kept(store)
    store.write([begun("live")], HERE, NOON)
    others = [f"/recordings/{number}.ogg" for number in range(1200)]
    assert store.ledger.finished([*others, path, "/recordings/live.ogg"]) == {path: "call"}
    assert store.ledger.claim_upload("call", "/elsewhere/call.ogg", SOUND, NOON) is None


def test_the_record_says_where_it_lies_also_if_entries_come_again(store: CallStore) -> None:
    path = kept(store)
    assert store.ledger.finish(claimed(store), NOON)
    assert place(store) == SOUND
    assert store.ledger.are_there([SOUND, "s3://bucket/other.ogg"]) == {SOUND}
    kept(store)
    assert place(store) == SOUND
    assert store.ledger.finished([path]) == {}
    store.write([begun("call"), over("call", recording="/recordings/call-2.ogg")], HERE, NOON)
    assert place(store) == "/recordings/call-2.ogg"  # the call went on


def test_one_that_failed_is_tried_again_later_and_for_ever(store: CallStore) -> None:
    kept(store)
    now = NOON
    for attempt in range(30):
        upload = claimed(store, now)
        assert upload.attempts == attempt
        store.ledger.failed(upload, "nobody answers", now)
        assert store.ledger.claim_upload("call", PATH, SOUND, now + 4) is None
        now += RETRY_MAX_S
    assert store.ledger.finish(claimed(store, now), now)


def test_one_whose_process_was_killed_is_uploaded_by_the_next_at_once(store: CallStore) -> None:
    kept(store)
    claimed(store)
    assert store.ledger.finish(claimed(store), NOON)
    assert place(store) == SOUND


def test_what_is_deleted_is_deleted_in_the_bucket_until_it_is_gone(store: CallStore) -> None:
    kept(store)
    store.ledger.finish(claimed(store), NOON)
    forgotten = store.deletion.forget_call("call", NOON)
    assert (forgotten.recordings, forgotten.in_buckets) == ((SOUND,), (SOUND,))
    now = NOON
    for _ in range(30):
        [removal] = store.ledger.claim_removals(now)
        assert store.ledger.claim_removals(now) == []
        store.ledger.removal_failed(removal, "nobody answers", now)
        now += RETRY_MAX_S
    assert store.ledger.waiting() == 1
    [removal] = store.ledger.claim_removals(now)
    store.ledger.removed(removal)
    assert (store.ledger.waiting(), removals(store, now + DAY)) == (0, [])


def test_what_is_forgotten_during_its_upload_is_deleted_once_that_ends(store: CallStore) -> None:
    for call, ends in (("a", "finish"), ("b", "failed"), ("c", "killed")):
        path = kept(store, call)
        upload = claimed(store, call=call)
        assert store.ledger.go_on(upload, NOON + 1)
        assert store.deletion.forget_call(call, NOON + 2).recordings == (path,)
        assert not store.ledger.go_on(upload, NOON + 3)
        assert removals(store, NOON + 3) == []  # a part may be under way
        now = NOON + 4
        if ends == "finish":
            assert not store.ledger.finish(upload, now)
        elif ends == "failed":
            store.ledger.failed(upload, "", now)
        else:
            assert removals(store, now) == []
            now = NOON + 1 + LEASE_S
        [removal] = store.ledger.claim_removals(now)
        assert removal.sound == upload.sound
        store.ledger.removed(removal)
        assert place(store, call) == ""


def test_one_that_arrives_after_it_was_deleted_there_is_deleted_again(store: CallStore) -> None:
    kept(store)
    upload = claimed(store)
    store.deletion.forget_call("call", NOON)
    [removal] = store.ledger.claim_removals(NOON + LEASE_S)
    store.ledger.removed(removal)
    assert not store.ledger.finish(upload, NOON + LEASE_S + 1)
    assert removals(store, NOON + LEASE_S + 1) == [SOUND]


@pytest.mark.parametrize("what", ["recordings", "words", "calls"])
def test_what_is_old_enough_is_deleted_in_the_bucket(store: CallStore, what: str) -> None:
    for call in ("a", "b", "c"):
        kept(store, call)
        store.ledger.finish(claimed(store, call=call), NOON)
    store.write(call_of("new", "hello", at=NOON + 9 * DAY), HERE, NOON)
    deletion, before, now = store.deletion, NOON + DAY, NOON + 10 * DAY
    match what:
        case "recordings":
            gone = deletion.expire_recordings(before, now)
        case "words":
            gone = deletion.expire_words(before, now)
        case _:
            gone = deletion.expire_calls(before, now)
    assert sorted(gone.recordings) == [f"s3://bucket/{call}.ogg" for call in "abc"]
    first = removals(store, now)
    assert len(first) == AT_ONCE
    assert sorted([*first, *removals(store, now)]) == sorted(gone.recordings)
