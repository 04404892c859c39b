"""The store of calls: rows in, searches out. Everything here blocks: see `writer_io` for calls in
progress, and `reader_io` for answers over HTTP."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from offhook.telephony.call_record import CallRecord
from offhook.web.records.analyses import Analyses, analysis_of
from offhook.web.records.bucket.ledger import Ledger, place_of
from offhook.web.records.campaigns.calling import Calling
from offhook.web.records.campaigns.campaigns import Campaigns
from offhook.web.records.campaigns.do_not_call import DoNotCall
from offhook.web.records.deletion import Deletion
from offhook.web.records.entries import (
    Began,
    Entry,
    Happened,
    Over,
    Recorded,
    RecordingReady,
    TrunkTurned,
    as_json,
    digits_key,
    seconds_of,
    storable,
)
from offhook.web.records.errors import EntryError, StoreError
from offhook.web.records.listing import listed
from offhook.web.records.live import LiveReader
from offhook.web.records.live_look import SPOKEN
from offhook.web.records.numbers import numbers
from offhook.web.records.outbox import Outbox, is_complete
from offhook.web.records.people.desks import Desks
from offhook.web.records.people.phones import Registrations
from offhook.web.records.people.voicemails import Voicemails
from offhook.web.records.search import Search
from offhook.web.records.stores.kinds import kind_of
from offhook.web.records.summary import Summary
from offhook.web.records.tables import (
    METADATA,
    MIGRATIONS,
    VERSION,
    call_agents,
    calls,
    events,
    is_done,
    looks,
    servers,
    versions,
)
from offhook.web.records.times import iso
from offhook.web.records.webhooks import Receiver

CRASHED = "the server stopped"
"""Why a call has ended that was in progress in a process that is gone."""
LOOK_S = 600.0
"""Time in s within which requests of one listener are one look at a recording."""
BATCH = 500
"""Calls that are deleted, or exported, at once: others write in between."""


@dataclass(frozen=True)
class Writer:
    """A process that writes to the store."""

    server: str
    """Unique among the servers that share it."""
    process: int = 1


class CallStore:
    """Calls in a database. Methods raise StoreError if it cannot be used now."""

    def __init__(
        self,
        url: str,
        receivers: Sequence[Receiver] = (),
        analysed_by: Callable[[Sequence[str]], str] = lambda agents: "",
    ) -> None:
        """`receivers` are told of what is written, by webhook. `analysed_by` returns by the
        settings of which of its agents a call is analysed, "" if it is not. Raises StoreError for
        a URL that names no database of ours."""
        self.kind = kind_of(url)
        self.url = url
        self._engine = self.kind.open(url)
        self.outbox = Outbox(receivers, self._begin)
        self.ledger = Ledger(self.kind, self._begin, self.outbox)
        self.deletion = Deletion(self.kind, self._engine, self._begin, self.ledger)
        # Made once: of each that is made anew, some 200 objects are left to the garbage collector,
        # which stops the packets of calls.
        self._upserts: dict[tuple[str, ...], Any] = {}
        """Statements by the columns that they write, and those that stay as they are."""
        in_call: sa.BindParameter[str] = sa.bindparam("of_call")
        started = sa.select(calls.c.started).where(calls.c.id == in_call).scalar_subquery()
        row = {"agent": sa.bindparam("of_agent"), "call": in_call, "started": started}
        self._add_agent = self.kind.insert(call_agents).values(row).on_conflict_do_nothing()
        self.analyses = Analyses(self.kind, self._begin, self.outbox, analysed_by)
        self.live = LiveReader(self._begin)
        self.campaigns = Campaigns(self.kind, self._begin, self.outbox)
        self.calling = Calling(self._begin, self.outbox)
        self.do_not_call = DoNotCall(self.kind, self._begin)
        self.voicemails = Voicemails(self.kind, self._begin)
        self.registrations = Registrations(self.kind, self._begin)
        self.desks = Desks(self._begin)

    @property
    def place(self) -> str:
        """Returns where calls are kept, without a password."""
        return self._engine.url.render_as_string()

    def prepare(self) -> None:
        """Creates the tables, or brings them up to date."""
        with self._begin() as connection:
            METADATA.create_all(connection)
            for statement in self.kind.create:
                connection.exec_driver_sql(statement)
            found = connection.execute(sa.select(sa.func.max(versions.c.version))).scalar()
            if found is not None and found > VERSION:
                raise StoreError(
                    f"{self.place} was written by a newer offhook (version {found} of its tables, "
                    f"this one knows {VERSION}): update offhook, or name another [records] url"
                )
            if found is not None and found < VERSION:
                # Locks out others who would do the same, and knows what they have done.
                connection.execute(versions.update().values(version=versions.c.version))
                found = connection.execute(sa.select(sa.func.max(versions.c.version))).scalar()
            for version in range((found or VERSION) + 1, VERSION + 1):
                for statement in MIGRATIONS[version]:
                    if not is_done(connection, statement):
                        connection.exec_driver_sql(statement)
            if found != VERSION:
                connection.execute(versions.delete())
                connection.execute(versions.insert(), {"version": VERSION})

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _begin(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except (DBAPIError, OSError) as error:
            cause = getattr(error, "orig", error)
            kind = EntryError if isinstance(error, (DataError, IntegrityError)) else StoreError
            raise kind(f"{self.place}: {' '.join(str(cause).split())}") from error

    # --- writing ---

    def write(self, entries: Sequence[Entry], writer: Writer, now: float) -> None:
        """Writes what has happened, all of it or nothing. What was written before stays as it is,
        so that entries may come again. `now` is seconds since 1970. Raises EntryError, too."""
        with self._begin() as connection:
            self._write(connection, entries, writer, now)

    def _write(
        self, connection: sa.Connection, entries: Sequence[Entry], writer: Writer, now: float
    ) -> None:
        happened: list[dict[str, Any]] = []
        for entry in entries:
            if isinstance(entry, Happened):
                happened.append(_event_row(entry))
                continue
            self._write_events(connection, happened, now)
            happened.clear()
            match entry:
                case Began():
                    self._begin_call(connection, entry, writer, now)
                case Over():
                    self._end_call(connection, entry, writer, now)
                    self._announce_end(connection, entry.call, now)
                case Recorded():
                    self._add_record(connection, entry, writer)
                    self.calling.settle(connection, entry.record, now)
                    self._announce_end(connection, entry.record.call_id, now)
                case RecordingReady():
                    self.outbox.add_recording(connection, entry, now)
                case TrunkTurned():
                    self.outbox.add_trunk(connection, entry, writer.server, now)
        self._write_events(connection, happened, now)

    def _write_events(
        self, connection: sa.Connection, rows: Sequence[dict[str, Any]], now: float
    ) -> None:
        if rows:
            new = self.outbox.new_of(connection, rows)
            connection.execute(self.kind.insert(events).on_conflict_do_nothing(), list(rows))
            self.outbox.add_happened(connection, new, now)
            self.voicemails.add(connection, rows, now)

    def _announce_end(self, connection: sa.Connection, call: str, now: float) -> None:
        """Has all that is known of a call told, once nothing more is to come."""
        if self.outbox.wants("call.ended") and is_complete(connection, call):
            self.outbox.add(connection, call, "call.ended", _whole(connection, call), now)

    def _upsert(self, connection: sa.Connection, row: dict[str, Any], *stays: str) -> None:
        """Inserts a call's row, or updates it but for the columns that stay as they are."""
        names = *row, *(f"{name} stays" for name in stays)
        if (statement := self._upserts.get(names)) is None:
            insert = self.kind.insert(calls)
            changed = {name: insert.excluded[name] for name in row if name not in ("id", *stays)}
            statement = insert.on_conflict_do_update(index_elements=["id"], set_=changed)
            self._upserts[names] = statement
        connection.execute(statement, row)

    def _begin_call(
        self, connection: sa.Connection, entry: Began, writer: Writer, now: float
    ) -> None:
        info = entry.info
        is_new = self.outbox.wants("call.started") and _shown(connection, entry.call) is None
        extra = {name: info[name] for name in ("diverted_from", "headers", "variables")}
        row = {
            "id": entry.call,
            "state": "live",
            "server": writer.server,
            "process": writer.process,
            "started": entry.at,
            "answered": entry.at,
            "agent": entry.agent,
            "recording": place_of(connection, entry.call, entry.recording),
            "ended": None,
            "seconds": None,
            "end": "",
            "end_reason": "",
            **{
                name: storable(info[name]) for name in ("edge", "direction", "caller_name", "trunk")
            },
            **_parties(info["caller"], info["called"]),
            "tenant": info.get("tenant", ""),  # servers of before had none
            "details": as_json({name: value for name, value in extra.items() if value}),
        }
        # A call that continues here began elsewhere.
        self._upsert(connection, row, "started", "answered", "agent", "details")
        self._add_agents(connection, entry.call, [entry.agent])
        if is_new and (known := _shown(connection, entry.call)) is not None:
            self.outbox.add(connection, entry.call, "call.started", known, now)

    def _add_agents(self, connection: sa.Connection, call: str, agents: Sequence[str]) -> None:
        for agent in dict.fromkeys(agents):
            connection.execute(self._add_agent, {"of_agent": storable(agent), "of_call": call})

    def _end_call(self, connection: sa.Connection, entry: Over, writer: Writer, now: float) -> None:
        place = place_of(connection, entry.call, entry.recording)
        row: dict[str, Any] = {"state": "ended", "ended": entry.at, "recording": place}
        if entry.tokens is not None:
            row |= entry.tokens
        row["mos"] = entry.statistics.get("mos")
        # Of a phone call the record knows better, which may be here already.
        known = connection.execute(
            sa.select(calls.c.end, calls.c.started).where(calls.c.id == entry.call)
        ).one_or_none()
        if known is None:
            return
        if known.end in ("", CRASHED):  # or it was taken for lost
            reason = {"end": entry.end, "end_reason": storable(entry.reason)}
            reason["ended_by"] = entry.ended_by
            row |= {**reason, "seconds": max(0.0, entry.at - known.started)}
        self._update(connection, entry.call, row, {"statistics": entry.statistics})
        self._sum_up(connection, entry.call, writer.server, now, entry.collected)

    def _add_record(self, connection: sa.Connection, entry: Recorded, writer: Writer) -> None:
        record = entry.record
        ended = seconds_of(record.ended) or 0.0
        row = {
            "id": record.call_id,
            "state": "ended",
            "server": writer.server,
            "process": writer.process,
            "started": seconds_of(record.started) or ended,
            "answered": seconds_of(record.answered),
            "ended": ended,
            "seconds": record.duration_seconds,
            "end": entry.end,
            "end_reason": storable(record.end_reason),
            **{name: getattr(record, name) for name in ("edge", "direction", "ended_by")},
            **{name: storable(getattr(record, name)) for name in ("trunk", "transferred_to")},
            **_parties(record.caller, record.called),
            **{name: getattr(record, name) for name in ("input_tokens", "output_tokens", "cost")},
            "mos": record.mos,
            "agent": record.agent,
            "tenant": record.tenant,
        }
        self._upsert(connection, row, *(() if record.agent else ("agent",)))
        # It began before it reached them.
        of_call = call_agents.update().where(call_agents.c.call == record.call_id)
        connection.execute(of_call.values(started=row["started"]))
        self._update(connection, record.call_id, {}, {"record": _beyond_columns(record)})

    def _update(
        self, connection: sa.Connection, call: str, row: dict[str, Any], more: dict[str, Any]
    ) -> None:
        """Changes columns of a call, and adds to its details."""
        of_call = calls.c.id == call
        found = sa.select(calls.c.details).where(of_call).with_for_update()
        details = connection.execute(found).scalar_one()
        row["details"] = as_json({**json.loads(details), **more})
        connection.execute(calls.update().where(of_call).values(row))

    def _sum_up(
        self,
        connection: sa.Connection,
        call: str,
        server: str,
        now: float,
        collected: Mapping[str, Any] | None = None,
    ) -> None:
        """Completes the row of a call by its events, has its words found from now on, and has it
        analysed. `collected` is what the process knew last of noted details: others may have had
        the call before."""
        summary = Summary.of(
            (kind, json.loads(fields))
            for kind, fields in connection.execute(
                sa.select(events.c.kind, events.c.fields)
                .where(events.c.call == call)
                .order_by(events.c.position)
            )
        )
        noted = summary.noted | dict(collected or {})
        self._update(connection, call, summary.columns(), {"collected": noted} if noted else {})
        self._add_agents(connection, call, summary.agents)
        if summary.words:
            words = {"id": call, "words": "\n".join(summary.words)}
            connection.execute(sa.text(self.kind.add_words), words)
        if summary.turns:
            first = sa.select(calls.c.agent).where(calls.c.id == call)
            agents = (connection.execute(first).scalar_one(), *summary.agents)
            self.analyses.add(connection, call, agents, server, now)

    # --- processes that write ---

    def seen(self, writer: Writer, now: float) -> None:
        """Notes that a process is there."""
        row = {"server": writer.server, "process": writer.process, "seen": now}
        insert = self.kind.insert(servers).values(row)
        keys = ["server", "process"]
        with self._begin() as connection:
            connection.execute(
                insert.on_conflict_do_update(index_elements=keys, set_={"seen": now})
            )

    def close_lost(self, now: float, unseen_s: float, writer: Writer | None = None) -> list[str]:
        """Ends the calls of processes that were not seen for `unseen_s`, and those that `writer`,
        which starts now, has left; returns their ids."""
        gone = servers.c.seen < now - unseen_s
        if writer is not None:
            is_it = sa.and_(servers.c.server == writer.server, servers.c.process == writer.process)
            gone = sa.or_(gone, is_it)
        with self._begin() as connection:
            self.calling.lose(connection, gone, servers, now)
            lost = connection.execute(
                sa.select(calls.c.id, calls.c.started, calls.c.server, servers.c.seen)
                .join(
                    servers,
                    sa.and_(
                        servers.c.server == calls.c.server, servers.c.process == calls.c.process
                    ),
                )
                .where(calls.c.state == "live", gone)
            ).all()
            for call, started, server, seen in lost:
                last = connection.execute(
                    sa.select(sa.func.max(events.c.at_ms)).where(events.c.call == call)
                ).scalar()
                ended = max(started + (last or 0) / 1000, min(seen, now))
                row = {
                    "state": "ended",
                    "ended": ended,
                    "seconds": ended - started,
                    "end": CRASHED,
                    "end_reason": CRASHED,
                    "ended_by": "local",
                }
                connection.execute(calls.update().where(calls.c.id == call).values(row))
                self._sum_up(connection, call, server, now)
                if self.outbox.wants("call.ended"):
                    self.outbox.add(connection, call, "call.ended", _whole(connection, call), now)
        return [row.id for row in lost]

    # --- reading ---

    def find(self, search: Search) -> tuple[list[dict[str, Any]], str]:
        """Returns calls, the last first, and the cursor of those before them; "" if there are none.
        Raises SearchError."""
        with self._begin() as connection:
            look = self.kind.few if search.text else None
            few = None if look is None else look(connection, search.words())
            rows = connection.execute(search.select(self.kind, few)).mappings().all()
            shown = rows[: search.limit]
            live = [row["id"] for row in shown if row["state"] == "live"]
            words = _last_words(connection, live) if search.state == "live" else {}
        more = len(rows) > search.limit
        cursor = search.cursor_after(dict(shown[-1]), self.kind) if more else ""
        return [{**listed(row), **words.get(row["id"], {})} for row in shown], cursor

    def show(self, call: str) -> dict[str, Any] | None:
        """Returns all that is known of a call but its events; None if there is none."""
        with self._begin() as connection:
            return _shown(connection, call)

    def timeline(self, call: str) -> list[dict[str, Any]]:
        """Returns the events of a call in order."""
        with self._begin() as connection:
            return _timeline(connection, call)

    def numbers(self, start: float, end: float, tenant: str = "") -> dict[str, Any]:
        """Returns what the calls that began in a time, those of a tenant or "" all, add up to, by
        time, agent and so on."""
        with self._begin() as connection:
            return numbers(connection, start, end, tenant)

    def export(self, search: Search) -> Iterator[dict[str, Any]]:
        """Yields all calls of a search with their events, the last first. Raises SearchError."""
        cursor = search.cursor
        while True:
            part = Search(**{**vars(search), "limit": BATCH, "cursor": cursor})
            found, cursor = self.find(part)
            for row in found:
                call = self.show(row["call_id"])
                if call is not None:
                    yield {**call, "timeline": self.timeline(row["call_id"])}
            if not cursor:
                return

    def look(self, call: str, what: str, who: str, now: float) -> None:
        """Notes that somebody listens to a call: once in LOOK_S, as players ask for parts."""
        row = {"at": now, "call": call, "what": what, "who": who}
        same = (looks.c.call == call, looks.c.what == what, looks.c.who == who)
        with self._begin() as connection:
            lately = sa.select(looks.c.number).where(*same, looks.c.at > now - LOOK_S)
            if connection.execute(lately.limit(1)).first() is None:
                connection.execute(looks.insert(), row)

    def size(self) -> tuple[int, int]:
        """Returns the number of calls and the bytes that they take."""
        with self._begin() as connection:
            number = connection.execute(sa.select(sa.func.count()).select_from(calls)).scalar_one()
            return number, self.kind.size(connection)


def _last_words(connection: sa.Connection, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns what was said last in calls in progress, and how many turns there were so far."""
    spoken = events.c.kind.in_(SPOKEN)
    turns = sa.func.sum(sa.case((events.c.kind != "agent_turn", 1), else_=0))
    last = (
        sa.select(events.c.call, sa.func.max(events.c.position).label("at"), turns.label("turns"))
        .where(events.c.call.in_(ids), spoken)
        .group_by(events.c.call)
        .subquery()
    )
    is_it = sa.and_(events.c.call == last.c.call, events.c.position == last.c.at)
    found = connection.execute(
        sa.select(events.c.call, events.c.fields, last.c.turns).join(last, is_it)
    )
    return {
        call: {"last_words": json.loads(fields).get("text", ""), "turns_so_far": turns}
        for call, fields, turns in found
    }


def _parties(caller: str, called: str) -> dict[str, str]:
    """Returns the columns that say who has called whom."""
    return {
        "caller": storable(caller),
        "caller_key": digits_key(caller),
        "called": storable(called),
        "called_key": digits_key(called),
    }


def _event_row(entry: Happened) -> dict[str, Any]:
    return {
        "call": entry.call,
        "position": entry.position,
        "at_ms": entry.at_ms,
        "kind": entry.kind,
        "fields": as_json(entry.fields),
    }


def _beyond_columns(record: CallRecord) -> dict[str, Any]:
    """Returns what a record says beyond the columns."""
    return {name: value for name, value in record.as_dict().items() if name not in calls.c}


def _shown(connection: sa.Connection, call: str) -> dict[str, Any] | None:
    row = connection.execute(sa.select(calls).where(calls.c.id == call)).mappings().first()
    if row is None:
        return None
    agents = connection.scalars(
        sa.select(call_agents.c.agent).where(call_agents.c.call == call)
    ).all()
    seen = connection.execute(
        sa.select(looks.c.at, looks.c.what, looks.c.who).where(looks.c.call == call)
    )
    told = [{**look, "at": iso(look["at"])} for look in seen.mappings()]
    more: dict[str, Any] = {"agents": sorted(agents), "looks": told}
    if row["outcome"]:
        more["analysis"] = analysis_of(connection, call)
    return {**listed(row), **more, **json.loads(row["details"])}


def _timeline(connection: sa.Connection, call: str) -> list[dict[str, Any]]:
    rows = connection.execute(
        sa.select(events.c.at_ms, events.c.kind, events.c.fields)
        .where(events.c.call == call)
        .order_by(events.c.position)
    ).all()
    return [{"at_ms": at, "event": kind, **json.loads(fields)} for at, kind, fields in rows]


def _whole(connection: sa.Connection, call: str) -> dict[str, Any]:
    """Returns all that is known of a call that is there, with its events."""
    return {**(_shown(connection, call) or {}), "timeline": _timeline(connection, call)}


def rehearse(store: CallStore, writer: Writer) -> None:
    """Writes a call and takes it back: SQLAlchemy makes its statements when they are first used,
    which would take the processor from the first call. Raises StoreError."""
    info = {"edge": "webrtc", "direction": "inbound", "diverted_from": "", "headers": {}}
    info |= dict.fromkeys(("caller", "caller_name", "called", "trunk"), "")
    happened = Happened("rehearsal", 0, 0, "caller_turn", {"text": "hello"})
    began = Began("rehearsal", 0.0, "agent", {**info, "variables": {}})
    over = Over("rehearsal", 0.0, "", "", "", {})
    with store._begin() as connection, connection.begin_nested() as whole:
        store._write(connection, (began, happened, over), writer, 0.0)
        whole.rollback()
