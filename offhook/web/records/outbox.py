"""The webhooks that wait in the store: they are written with what they tell, and stay until their
receivers have taken them."""

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from offhook.web.records.entries import RecordingReady, TrunkTurned, storable
from offhook.web.records.leases import claim_rows, retry_at
from offhook.web.records.tables import calls, deliveries, events
from offhook.web.records.times import iso
from offhook.web.records.webhooks import (
    AT_ONCE,
    LEASE_S,
    OF_KINDS,
    Delivery,
    EventType,
    Receiver,
    body_of,
    wanting,
)

SHOWN = 1000
"""Webhooks that a list shows."""


class Outbox:
    """The webhooks of one store. Methods raise StoreError if it cannot be used now."""

    def __init__(
        self,
        receivers: Sequence[Receiver],
        begin: Callable[[], AbstractContextManager[sa.Connection]],
    ) -> None:
        """`begin` opens a transaction."""
        self.receivers = receivers
        self._begin = begin

    # --- with what is written ---

    def add(
        self,
        connection: sa.Connection,
        call: str,
        event: EventType,
        data: dict[str, Any],
        now: float,
    ) -> None:
        """Has an event told to those who want it. `now` is seconds since 1970."""
        self._add(connection, call, event, {"call_id": call, **data}, now)

    def add_recording(self, connection: sa.Connection, ready: RecordingReady, now: float) -> None:
        """Has a recording told that is complete at its place, unless its call was forgotten
        meanwhile."""
        is_it = sa.and_(calls.c.id == ready.call, calls.c.forgotten.is_(None))
        if connection.execute(sa.select(calls.c.id).where(is_it)).first() is None:
            return
        data = {"call_id": ready.call, "place": ready.place, "seconds": ready.seconds}
        data["sealed"] = ready.sealed
        self._add(connection, ready.call, "recording.ready", data, now, ready.place)

    def add_trunk(
        self, connection: sa.Connection, turned: TrunkTurned, server: str, now: float
    ) -> None:
        """Has a change of a trunk told, in order with the others of that trunk at this server."""
        data = {"trunk": turned.trunk, "server": server, "at": iso(turned.at)}
        data["reason"] = turned.reason
        about = storable(f"trunk:{turned.trunk}@{server}")
        event: EventType = "trunk.registered" if turned.up else "trunk.failed"
        self._add(connection, about, event, data, now, str(turned.at), turned.tenant)

    def add_campaign(
        self, connection: sa.Connection, campaign: str, shown: dict[str, Any], now: float
    ) -> None:
        """Has a campaign told that is over, with what became of its recipients."""
        about = f"campaign:{campaign}"
        self._add(connection, about, "campaign.completed", shown, now, tenant=shown["tenant"])

    def _add(
        self,
        connection: sa.Connection,
        about: str,
        event: EventType,
        data: dict[str, Any],
        now: float,
        once: str = "",
        tenant: str | None = None,
    ) -> None:
        """`once` tells an event from others of its kind, if nothing in the store says whether it
        was added before: its webhook has the same id then, by which receivers know it. `tenant` is
        whose it is; None: whose the call is that it is about."""
        mailbox = data.get("mailbox", "")
        found = wanting(self.receivers, event)
        wanted = [receiver for receiver in found if receiver.mailbox in ("", mailbox)]
        if tenant is None and any(receiver.tenant for receiver in wanted):
            its = sa.select(calls.c.tenant).where(calls.c.id == about)
            tenant = connection.execute(its).scalar()
        wanted = [receiver for receiver in wanted if receiver.tenant in ("", tenant)]
        if not wanted:
            return
        body = body_of(event, data, now)
        rows = [
            {
                "id": _id_of(receiver.url, about, event, once),
                "url": receiver.url,
                "call": about,
                "event": event,
                "body": body,
                "created": now,
                "next_at": now + receiver.delay_s,
            }
            for receiver in wanted
        ]
        connection.execute(deliveries.insert(), rows)

    def add_happened(
        self, connection: sa.Connection, rows: Sequence[dict[str, Any]], now: float
    ) -> None:
        """The same of rows of events that are new."""
        for row in rows:
            event = OF_KINDS.get(row["kind"])
            if event is not None and wanting(self.receivers, event):
                data = {"at_ms": row["at_ms"], **json.loads(row["fields"])}
                self.add(connection, row["call"], event, data, now)

    def wants(self, event: EventType) -> bool:
        return bool(wanting(self.receivers, event))

    def new_of(
        self, connection: sa.Connection, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Returns the rows of events that are not in the store yet, if anybody is told of such."""
        told = [
            row for row in rows if row["kind"] in OF_KINDS and self.wants(OF_KINDS[row["kind"]])
        ]
        new = []
        for row in told:
            is_it = sa.and_(events.c.call == row["call"], events.c.position == row["position"])
            if connection.execute(sa.select(events.c.at_ms).where(is_it)).first() is None:
                new.append(row)
        return new

    # --- to their receivers ---

    def claim(self, url: str, now: float) -> list[Delivery]:
        """Returns webhooks that are due for a receiver, and has them to itself for LEASE_S: the
        first of each call or trunk that waits."""
        other = deliveries.alias()
        before = sa.and_(
            other.c.url == deliveries.c.url,
            other.c.call == deliveries.c.call,
            other.c.state == "waiting",
            other.c.number < deliveries.c.number,
        )
        due = sa.and_(
            deliveries.c.url == url, deliveries.c.state == "waiting", deliveries.c.next_at <= now
        )
        first = (
            sa.select(deliveries.c.number)
            .where(due, ~sa.exists().where(before).correlate(deliveries))
            .order_by(deliveries.c.number)
            .limit(AT_ONCE)
        )
        with self._begin() as connection:
            columns = [
                deliveries.c[name] for name in ("number", "id", "body", "created", "attempts")
            ]
            taken = claim_rows(connection, first, due, {"next_at": now + LEASE_S}, columns)
        return [
            Delivery(row.number, row.id, row.body.encode(), row.created, row.attempts)
            for row in taken
        ]

    def delivered(self, delivery: Delivery) -> None:
        with self._begin() as connection:
            connection.execute(deliveries.delete().where(deliveries.c.number == delivery.number))

    def failed(self, delivery: Delivery, why: str, now: float) -> bool:
        """Has a webhook tried again later; returns whether it is given up instead."""
        again = retry_at(delivery.created, delivery.attempts, now)
        row = {"attempts": delivery.attempts + 1, "fault": why}
        row |= {"state": "dead"} if again is None else {"next_at": again}
        with self._begin() as connection:
            is_it = deliveries.c.number == delivery.number
            connection.execute(deliveries.update().where(is_it).values(row))
        return again is None

    # --- for people ---

    def waiting(self) -> list[dict[str, Any]]:
        """Returns the webhooks that wait or were given up, the oldest first, without their
        bodies."""
        names = ("number", "event", "call", "url", "state", "attempts", "created", "fault")
        columns = [deliveries.c[name] for name in names]
        with self._begin() as connection:
            found = connection.execute(
                sa.select(*columns).order_by(deliveries.c.number).limit(SHOWN)
            )
            return [dict(row) for row in found.mappings()]

    def replay(self, now: float, call: str = "") -> int:
        """Has all webhooks, or those of a call, tried at once, as if they were new; returns how
        many."""
        again = deliveries.update().values(
            state="waiting", attempts=0, created=now, next_at=now, fault=""
        )
        if call:
            again = again.where(deliveries.c.call == call)
        with self._begin() as connection:
            return connection.execute(again).rowcount

    def expire(self, before: float) -> None:
        """Deletes what was written before a time."""
        with self._begin() as connection:
            connection.execute(deliveries.delete().where(deliveries.c.created < before))


def _id_of(*what: str) -> str:
    """Returns the id of a webhook: one by chance, unless the last part says which event it is."""
    if not what[-1]:
        return f"evt_{secrets.token_hex(12)}"
    digest = hashlib.sha256("\0".join(what).encode(errors="surrogatepass"))
    return f"evt_{digest.hexdigest()[:24]}"


def is_complete(connection: sa.Connection, call: str) -> bool:
    """Returns whether all is known of a call that is over: of a phone's, its conversation and its
    record, if it has had both."""
    row = connection.execute(
        sa.select(calls.c.edge, calls.c.details, calls.c.agent).where(calls.c.id == call)
    ).one()
    details = json.loads(row.details)
    if "statistics" in details:
        return row.edge == "webrtc" or "record" in details
    started = sa.select(events.c.position).where(events.c.call == call).limit(1)
    return "record" in details and connection.execute(started).first() is None
