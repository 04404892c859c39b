"""What is deleted from the store: of one person at once, and of all when it is old enough."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from offhook.media.sealing.names import timeline_path
from offhook.web.records.analyses import drop_analyses
from offhook.web.records.bucket.faults import BucketFault
from offhook.web.records.bucket.ledger import Ledger, release
from offhook.web.records.bucket.places import in_bucket
from offhook.web.records.campaigns.rows import forget_recipient
from offhook.web.records.entries import digits_keys
from offhook.web.records.errors import StoreError
from offhook.web.records.stores.store_kind import StoreKind
from offhook.web.records.tables import (
    call_agents,
    calls,
    deliveries,
    events,
    looks,
    of_tenant,
    voicemails,
)

BATCH = 500
"""Calls that are deleted at once: others write in between."""


@dataclass(frozen=True)
class Forgotten:
    """What was deleted of a person."""

    calls: int
    recordings: tuple[str, ...]
    """Files that are to be deleted too."""
    in_buckets: tuple[str, ...] = ()
    """Sounds that are, or may be, in buckets, and are to be deleted there."""
    recipients: int = 0
    """Entries in campaigns of a number; whoever waited there is not called."""


class Remover(Protocol):
    """What deletes recordings from buckets."""

    def remove(self, sound: str) -> None:
        """Raises BucketFault."""


class Deletion:
    """Deletes from one store. Methods raise StoreError if it cannot be used now."""

    def __init__(
        self,
        kind: StoreKind,
        engine: sa.Engine,
        begin: Callable[[], AbstractContextManager[sa.Connection]],
        ledger: Ledger,
    ) -> None:
        """`begin` opens a transaction."""
        self._kind, self._engine, self._begin = kind, engine, begin
        self._ledger = ledger

    def forget_number(self, number: str, now: float, tenant: str = "") -> Forgotten:
        """Deletes what was said and who it was in the calls of a number, however it is written, or
        of a name as lists show it: words, numbers, names, variables; only in calls of a tenant, if
        there is one. The rows stay, so that calls can be counted. `finish` does the rest."""
        if not number:  # which browsers have
            return Forgotten(0, ())
        if keys := digits_keys(number):
            is_it = sa.or_(calls.c.caller_key.in_(keys), calls.c.called_key.in_(keys))
        else:
            is_it = sa.or_(calls.c.caller == number, calls.c.called == number)
        forgotten = self._forget(is_it, now, tenant)
        with self._begin() as connection:
            recipients = forget_recipient(connection, number, tenant)
        return replace(forgotten, recipients=recipients)

    def forget_call(self, call: str, now: float, tenant: str = "") -> Forgotten:
        """The same for one call, by its id."""
        return self._forget(calls.c.id == call, now, tenant)

    def _forget(self, is_it: sa.ColumnElement[bool], now: float, tenant: str) -> Forgotten:
        return self._blank(sa.and_(is_it, calls.c.state == "ended", *of_tenant(calls, tenant)), now)

    def expire_words(self, before: float, now: float) -> Forgotten:
        """The same for the calls that ended before a time and have not been forgotten yet."""
        return self._blank(_ended(before), now)

    def expire_calls(self, before: float, now: float) -> Forgotten:
        """Deletes the calls that ended before a time, rows and all."""
        number, recordings = 0, list[str]()
        while True:
            with self._begin() as connection:
                rows = connection.execute(
                    sa.select(calls.c.id, calls.c.recording)
                    .where(calls.c.state == "ended", calls.c.ended < before)
                    .limit(BATCH)
                ).all()
                ids = [row.id for row in rows]
                release(connection, ids, now)
                self._drop_words(connection, ids)
                connection.execute(calls.delete().where(calls.c.id.in_(ids)))
            number += len(rows)
            recordings += [row.recording for row in rows if row.recording]
            if len(rows) < BATCH:
                return Forgotten(number, tuple(recordings))

    def expire_recordings(self, before: float, now: float) -> Forgotten:
        """Has the calls that ended before a time have no recording."""
        recordings = list[str]()
        while True:
            with self._begin() as connection:
                rows = connection.execute(
                    sa.select(calls.c.id, calls.c.recording)
                    .where(_ended(before), calls.c.recording != "")
                    .limit(BATCH)
                ).all()
                ids = [row.id for row in rows]
                release(connection, ids, now)
                connection.execute(calls.update().where(calls.c.id.in_(ids)).values(recording=""))
            recordings += [row.recording for row in rows]
            if len(rows) < BATCH:
                return Forgotten(len(recordings), tuple(recordings))

    def erase(self) -> None:
        """Makes what was deleted disappear from the database's files."""
        try:
            self._kind.erase(self._engine)
        except DBAPIError as error:
            raise StoreError(f"what was deleted cannot be erased yet: {error.orig}") from error

    def finish(
        self, forgotten: Forgotten, now: float, bucket: Remover | None
    ) -> tuple[list[str], int]:
        """Deletes the recordings of what was forgotten, and does `erase`. Returns which files could
        not be deleted, and how many recordings are in buckets until these can be reached. `bucket`
        is None without one."""
        faults = delete_files(forgotten.recordings)
        if forgotten.calls or forgotten.recipients:
            self.erase()
        if not forgotten.in_buckets:
            return faults, 0
        if bucket is not None:
            self._remove(forgotten.in_buckets, now, bucket)
        return faults, self._ledger.waiting(forgotten.in_buckets)

    def _remove(self, sounds: Sequence[str], now: float, bucket: Remover) -> None:
        removals = self._ledger.claim_removals(now, sounds)
        fault = ""
        for removal in removals:
            if not fault:
                try:
                    bucket.remove(removal.sound)
                    self._ledger.removed(removal)
                    continue
                except BucketFault as error:
                    fault = str(error)
            self._ledger.removal_failed(removal, fault, now)

    def _blank(self, which: sa.ColumnElement[bool], now: float) -> Forgotten:
        number, recordings, in_buckets = 0, list[str](), list[str]()
        blank = {
            **dict.fromkeys(("caller", "caller_name", "called", "caller_key", "called_key"), ""),
            "transferred_to": "",
            "recording": "",
            "details": "{}",
            "forgotten": now,
        }
        while True:
            with self._begin() as connection:
                rows = connection.execute(
                    sa.select(calls.c.id, calls.c.recording)
                    .where(which, calls.c.forgotten.is_(None))
                    .limit(BATCH)
                ).all()
                ids = [row.id for row in rows]
                in_buckets += release(connection, ids, now)
                self._drop_words(connection, ids, agents=False)
                connection.execute(calls.update().where(calls.c.id.in_(ids)).values(blank))
            number += len(rows)
            recordings += [row.recording for row in rows if row.recording]
            if len(rows) < BATCH:
                return Forgotten(number, tuple(recordings), tuple(in_buckets))

    def _drop_words(
        self, connection: sa.Connection, ids: Sequence[str], *, agents: bool = True
    ) -> None:
        if not ids:
            return
        connection.execute(sa.text(self._kind.drop_words), [{"id": call} for call in ids])
        connection.execute(events.delete().where(events.c.call.in_(ids)))
        connection.execute(voicemails.delete().where(voicemails.c.call.in_(ids)))
        connection.execute(looks.delete().where(looks.c.call.in_(ids)))
        connection.execute(deliveries.delete().where(deliveries.c.call.in_(ids)))
        drop_analyses(connection, ids)
        if agents:
            connection.execute(call_agents.delete().where(call_agents.c.call.in_(ids)))


def delete_files(recordings: Sequence[str]) -> list[str]:
    """Deletes recordings of this machine with their timelines; returns those that could not be
    deleted, and why."""
    faults = []
    for name in recordings:
        if in_bucket(name):
            continue
        for path in (Path(name), timeline_path(Path(name))):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                faults.append(f"{path}: {error.strerror}")
    return faults


def _ended(before: float) -> sa.ColumnElement[bool]:
    return sa.and_(calls.c.state == "ended", calls.c.ended < before)
