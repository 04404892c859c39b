"""Which recordings are in a bucket, or may be, by what the store knows: so none is lost or left.

    state      claimed     failed    finished   deleted by somebody
    (none)     uploading   -         -          -
    waiting    uploading   -         -          removing
    uploading  uploading   waiting   there      removing, once the upload has ended or LEASE_S later
    there      -           -         -          removing
    removing   -           removing  (none)     -

A recording is uploaded by the process that has locked its file, so one that is killed leaves it to
the next at once. An upload is noted before it begins and a deletion until it is done, so that a
process that is killed leaves nothing in a bucket that nobody knows of.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from offhook.web.records.bucket.places import in_bucket, name_of
from offhook.web.records.leases import FIRST_RETRY_S, claim_rows
from offhook.web.records.outbox import Outbox
from offhook.web.records.stores.store_kind import StoreKind
from offhook.web.records.tables import bucket_recordings as files
from offhook.web.records.tables import calls

AT_ONCE = 2
"""Maximum recordings that a process uploads at once, and that it deletes at once."""
LEASE_S = 600.0
"""Time in s after which an upload whose process was killed is taken for ended: longer than one part
can take."""
REMOVAL_S = 60.0
"""Time in s for which a process that deletes a recording has it to itself; twice does no harm."""
RETRY_MAX_S = 60.0
"""Maximum delay in s of a further attempt; it doubles with each, and none is the last."""
LOOKED_FOR = 500
"""Maximum paths that are looked for in one statement."""


@dataclass(frozen=True)
class Upload:
    """A recording that is to be uploaded by whoever has claimed it."""

    call: str
    path: str
    """Of the sound, on this machine."""
    sound: str
    """Where it shall lie."""
    attempts: int
    """Before this one."""


@dataclass(frozen=True)
class Removal:
    """A recording that is to be deleted from its bucket by whoever has claimed it."""

    sound: str
    attempts: int


class Ledger:
    """The recordings in buckets of one store. Methods raise StoreError if it cannot be used now."""

    def __init__(
        self,
        kind: StoreKind,
        begin: Callable[[], AbstractContextManager[sa.Connection]],
        outbox: Outbox,
    ) -> None:
        """`begin` opens a transaction. Programs are told by the `outbox`."""
        self._kind, self._begin, self._outbox = kind, begin, outbox

    # --- up ---

    def finished(self, paths: Sequence[str]) -> dict[str, str]:
        """Returns the calls that are over of those paths that are recordings of such."""
        found: dict[str, str] = {}
        for start in range(0, len(paths), LOOKED_FOR):
            some = calls.c.recording.in_(paths[start : start + LOOKED_FOR])
            query = sa.select(calls.c.recording, calls.c.id).where(some, calls.c.state == "ended")
            with self._begin() as connection:
                found |= {row.recording: row.id for row in connection.execute(query)}
        return found

    def are_there(self, sounds: Sequence[str]) -> set[str]:
        """Returns those that have been uploaded."""
        found: set[str] = set()
        for start in range(0, len(sounds), LOOKED_FOR):
            some = files.c.sound.in_(sounds[start : start + LOOKED_FOR])
            query = sa.select(files.c.sound).where(some, files.c.state == "there")
            with self._begin() as connection:
                found |= set(connection.scalars(query))
        return found

    def claim_upload(self, call: str, path: str, sound: str, now: float) -> Upload | None:
        """Returns what is to be uploaded, if it is due; the file is locked meanwhile. `now` is
        seconds since 1970."""
        is_due = sa.or_(
            files.c.state == "uploading",
            sa.and_(files.c.state == "waiting", files.c.next_at <= now),
        )
        row = {"state": "uploading", "next_at": now + LEASE_S}
        insert = self._kind.insert(files).values(
            sound=sound, call=call, **row, attempts=0, fault=""
        )
        claim = insert.on_conflict_do_update(
            index_elements=["sound"], set_=row, where=is_due
        ).returning(files.c.attempts)
        with self._begin() as connection:
            of_call = sa.and_(calls.c.id == call, calls.c.recording == path)
            if connection.execute(sa.select(calls.c.id).where(of_call)).first() is None:
                return None  # deleted meanwhile
            claimed = connection.execute(claim).first()
        return None if claimed is None else Upload(call, path, sound, claimed.attempts)

    def go_on(self, upload: Upload, now: float) -> bool:
        """Says that an upload goes on; returns whether it is still wanted."""
        mine = sa.and_(files.c.sound == upload.sound, files.c.state == "uploading")
        with self._begin() as connection:
            later = files.update().where(mine).values(next_at=now + LEASE_S)
            return bool(connection.execute(later).rowcount)

    def finish(self, upload: Upload, now: float) -> bool:
        """Has a call's recording lie in the bucket. Returns whether it does: one that was deleted
        meanwhile is deleted there too."""
        of_call = sa.and_(calls.c.id == upload.call, calls.c.recording == upload.path)
        moved = calls.update().where(of_call, calls.c.state == "ended")
        with self._begin() as connection:
            is_there = bool(connection.execute(moved.values(recording=upload.sound)).rowcount)
            row = {"state": "there" if is_there else "removing", "attempts": 0, "fault": ""}
            values = {"sound": upload.sound, "call": upload.call, **row, "next_at": now}
            insert = self._kind.insert(files).values(**values)
            changed = {name: insert.excluded[name] for name in (*row, "next_at")}
            connection.execute(insert.on_conflict_do_update(index_elements=["sound"], set_=changed))
            if is_there:
                where = {"place": upload.sound}
                self._outbox.add(connection, upload.call, "recording.uploaded", where, now)
        return is_there

    def failed(self, upload: Upload, why: str, now: float) -> None:
        """Has an upload tried again later; one that was deleted meanwhile is deleted now."""
        of_sound = files.update().where(files.c.sound == upload.sound)
        again = {"next_at": _next_at(upload.attempts, now), "attempts": upload.attempts + 1}
        row = {"state": "waiting", **again, "fault": why}
        with self._begin() as connection:
            connection.execute(of_sound.where(files.c.state == "uploading").values(row))
            deleted = of_sound.where(files.c.state == "removing").values(next_at=now)
            connection.execute(deleted)

    # --- away ---

    def claim_removals(self, now: float, sounds: Sequence[str] | None = None) -> list[Removal]:
        """Returns what is to be deleted now, and has it to oneself for REMOVAL_S: of `sounds`, if
        they are given, all but what is being uploaded."""
        due = sa.and_(files.c.state == "removing", files.c.next_at <= now)
        first = sa.select(files.c.sound).where(due).order_by(files.c.next_at)
        first = first.limit(AT_ONCE) if sounds is None else first.where(files.c.sound.in_(sounds))
        columns = [files.c.sound, files.c.attempts]
        with self._begin() as connection:
            rows = claim_rows(connection, first, due, {"next_at": now + REMOVAL_S}, columns)
        return [Removal(row.sound, row.attempts) for row in rows]

    def removed(self, removal: Removal) -> None:
        with self._begin() as connection:
            connection.execute(files.delete().where(files.c.sound == removal.sound))

    def removal_failed(self, removal: Removal, why: str, now: float) -> None:
        """Has a deletion tried again later."""
        again = {"next_at": _next_at(removal.attempts, now), "attempts": removal.attempts + 1}
        with self._begin() as connection:
            of_sound = files.update().where(files.c.sound == removal.sound)
            connection.execute(of_sound.values({**again, "fault": why}))

    def waiting(self, sounds: Sequence[str] | None = None) -> int:
        """Returns how many recordings are still to be deleted, of all or of these."""
        query = sa.select(sa.func.count()).select_from(files).where(files.c.state == "removing")
        if sounds is not None:
            query = query.where(files.c.sound.in_(sounds))
        with self._begin() as connection:
            return int(connection.execute(query).scalar_one())


def place_of(connection: sa.Connection, call: str, path: str) -> str:
    """Returns where a call's recording lies that was written to a path: entries of the store may
    come again, and some so late that the recording is in its bucket by then."""
    of_call = sa.select(calls.c.recording).where(calls.c.id == call)
    place = connection.execute(of_call).scalar() or ""
    is_moved = in_bucket(place) and name_of(path) in ("", name_of(place))
    return place if is_moved else path


def release(connection: sa.Connection, ids: Sequence[str], now: float) -> list[str]:
    """Has what is in buckets of calls deleted there, and returns it; what is being uploaded once
    that has ended."""
    of_calls = files.c.call.in_(ids)
    ended: sa.ColumnElement[Any] = sa.case(
        (files.c.state == "uploading", files.c.next_at), else_=now
    )
    values = {"state": "removing", "next_at": ended, "attempts": 0}
    connection.execute(files.update().where(of_calls, files.c.state != "removing").values(values))
    return list(connection.scalars(sa.select(files.c.sound).where(of_calls)))


def _next_at(attempts: int, now: float) -> float:
    return now + min(FIRST_RETRY_S * 2.0 ** min(attempts, 20), RETRY_MAX_S)
