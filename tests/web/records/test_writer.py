"""What calls do is written from a queue, whatever happens to the database or to the process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.records.entries import Entry, Happened, Recorded
from offhook.web.records.search import Search
from offhook.web.records.store import CallStore, Writer
from offhook.web.records.writing import writer_io
from offhook.web.records.writing.spool import entries_of, lines_of
from offhook.web.records.writing.spool_file_io import SpoolFile
from offhook.web.records.writing.writer_io import StoreWriter
from tests.support.environment import environment
from tests.support.waiting import wait_until
from tests.web.records.conftest import Postgres, emptied
from tests.web.records.made_calls import HERE, RECORD, begun, call_of, over, said


@contextmanager
def writing(url: str, spool: Path, **options: Any) -> Iterator[StoreWriter]:
    writer = StoreWriter(CallStore(url), HERE, spool, words=True, **options)
    writer.start()
    try:
        yield writer
    finally:
        writer.close()
        writer.store.close()


def add(writer: StoreWriter, entries: list[Entry]) -> None:
    for entry in entries:
        writer.add(entry)


def kept(url: str) -> set[str]:
    store = CallStore(url)
    try:
        return {call["call_id"] for call in store.find(Search(limit=1000))[0]}
    finally:
        store.close()


def test_all_that_is_added_is_in_the_store(url: str, tmp_path: Path) -> None:
    written: list[int] = []
    with writing(url, tmp_path / "spool", on_written=written.append) as writer:
        for number in range(100):
            add(writer, call_of(f"c{number}", "hello"))
    assert len(kept(url)) == 100
    assert sum(written) == 500
    assert not (tmp_path / "spool").exists()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_io, "RETRY_S", 0.1)
    monkeypatch.setattr(writer_io, "RETRY_MAX_S", 0.2)


@pytest.mark.usefixtures("hasty")
def test_a_database_that_was_killed_has_all_calls_when_it_is_back(
    postgres: Postgres, tmp_path: Path
) -> None:
    emptied(postgres)
    spool = tmp_path / "spool"
    with writing(postgres.url, spool) as writer:
        add(writer, call_of("before", "hello"))
        wait_until(lambda: writer.behind == 0)
        postgres.kill()
        try:
            add(writer, call_of("meanwhile", "my card", "is lost"))
            wait_until(lambda: list(spool.glob("*.jsonl")))
            add(writer, call_of("later", "hello again"))
            wait_until(lambda: not writer._waiting)
        finally:
            postgres.start()
        wait_until(lambda: writer.behind == 0)
        assert kept(postgres.url) == {"before", "meanwhile", "later"}
        [call], _ = writer.store.find(Search(text="card"))
        assert call["turns"] == 2
    assert not list(spool.iterdir())


def test_what_a_process_leaves_is_read_by_the_next(url: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    nowhere = "postgresql://offhook@127.0.0.1:1/calls"
    with writing(nowhere, spool) as writer:
        add(writer, call_of("left", "hello"))
        writer.add(Recorded(RECORD, "the caller hung up"))
    assert len(list(spool.iterdir())) == 1
    with writing(url, spool) as writer:
        wait_until(lambda: not list(spool.iterdir()))
    assert kept(url) == {"left", "call"}


def test_the_calls_of_a_spool_that_was_left_are_over(url: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with writing("postgresql://offhook@127.0.0.1:1/calls", spool) as writer:
        add(writer, [begun("cut"), said("cut", 0, "caller", "my card is lost", at_ms=4000)])
    with writing(url, spool) as writer:
        wait_until(lambda: not list(spool.iterdir()))
        wait_until(lambda: not _live(url))
        call = writer.store.show("cut")
    assert call is not None
    assert (call["end_reason"], call["seconds"]) == ("the server stopped", 4)


def test_the_spool_of_a_process_that_runs_is_its_own(tmp_path: Path) -> None:
    mine = SpoolFile.create(tmp_path)
    mine.append(b"{}\n")
    assert list(SpoolFile.left_in(tmp_path)) == []
    mine.close()
    [left] = [spool.read() for spool in SpoolFile.left_in(tmp_path)]
    assert left == b"{}\n"


KILLED = """
import sys, time
from pathlib import Path
from tests.web.records.made_calls import *
from offhook.web.records.store import CallStore
from offhook.web.records.writing.writer_io import StoreWriter

writer = StoreWriter(CallStore(sys.argv[1]), HERE, Path(sys.argv[2]), words=True)
writer.start()
for entry in (begun("cut", time.time()), said("cut", 0, "caller", "my card is lost", at_ms=4000)):
    writer.add(entry)
while writer.behind:
    time.sleep(0.01)
print("written", flush=True)
time.sleep(600)
"""


def test_the_call_of_a_process_that_was_killed_is_over_with_its_words(
    url: str, tmp_path: Path
) -> None:
    command = (sys.executable, "-c", KILLED, url, str(tmp_path / "spool"))
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with writing(url, tmp_path / "spool") as writer:
        wait_until(lambda: not _live(url))
        call = writer.store.show("cut")
    assert call is not None
    assert call["end_reason"] == "the server stopped"
    assert call["seconds"] == pytest.approx(4)
    store = CallStore(url)
    assert [event["text"] for event in store.timeline("cut")] == ["my card is lost"]
    store.close()


def _live(url: str) -> bool:
    store = CallStore(url)
    try:
        return any(call["state"] == "live" for call in store.find(Search())[0])
    finally:
        store.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts a small disk")
@pytest.mark.usefixtures("hasty")
def test_a_full_disk_loses_nothing_once_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk))
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        url = f"sqlite:///{disk}/calls.db"
        with writing(url, disk / "spool") as writer:
            add(writer, call_of("first", "hello"))
            wait_until(lambda: writer.behind == 0)
            full = disk / "full"
            fill = ("dd", "if=/dev/zero", f"of={full}", "bs=4096")
            assert b"space" in subprocess.run(fill, capture_output=True).stderr
            for number in range(20):
                add(writer, call_of(f"c{number}", "hello " * 200))
            wait_until(lambda: writer._failing)
            full.unlink()
            subprocess.run(("mount", "-o", "remount,size=8m", str(disk)), check=True)
            wait_until(lambda: writer.behind == 0)
        assert len(kept(url)) == 21
    finally:
        subprocess.run(("umount", "-l", str(disk)), check=True)


def test_an_entry_that_no_database_takes_holds_up_no_other(
    postgres: Postgres, tmp_path: Path
) -> None:
    emptied(postgres)
    lost: list[int] = []
    with writing(postgres.url, tmp_path / "spool", on_lost=lost.append) as writer:
        endless = Happened("call", 0, 10**12, "caller_turn", {"text": "hello"})
        add(writer, [begun("call"), endless, said("call", 1, "agent", "hi"), over("call")])
    store = CallStore(postgres.url)
    call = store.show("call")
    assert call is not None
    assert call["state"] == "ended"
    assert [event["text"] for event in store.timeline("call")] == ["hi"]
    assert lost == [1]
    store.close()


def test_what_is_too_old_goes_with_its_recording(url: str, tmp_path: Path) -> None:
    sound = tmp_path / "old.ogg"
    for path in (sound, sound.with_suffix(".jsonl")):
        path.write_bytes(b"sound")
    day = 86_400.0
    with writing(url, tmp_path / "spool") as writer:  # a call of 2026-09-21
        add(writer, [begun("old"), said("old", 0, "caller", "hello")])
        add(writer, [over("old", recording=str(sound))])
    with writing(url, tmp_path / "spool", keep_s=(0.0, day, day)) as writer:
        wait_until(lambda: not sound.exists())
    assert not sound.with_suffix(".jsonl").exists()
    store = CallStore(url)
    assert store.timeline("old") == []
    assert kept(url) == {"old"}
    store.close()


@given(st.binary(max_size=200), st.text(max_size=40))
def test_a_spool_that_was_cut_off_is_read_as_far_as_it_goes(noise: bytes, text: str) -> None:
    entries: list[Entry] = [
        begun("call", caller=text),
        said("call", 0, "caller", text),
        over("call"),
    ]
    data = lines_of(entries)
    assert len(list(entries_of(data))) == 3
    assert len(list(entries_of(data + noise.replace(b"\n", b"")))) == 3
    assert list(entries_of(noise)) == []


def test_the_record_of_a_phone_call_comes_back_from_the_spool() -> None:
    [entry] = entries_of(lines_of([Recorded(RECORD, "busy")]))
    assert isinstance(entry, Recorded)
    assert entry.record == RECORD


def test_processes_of_one_server_are_told_apart() -> None:
    assert Writer("here") != Writer("here", 2)
