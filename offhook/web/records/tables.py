"""The tables of the store, and how they have changed from version to version.

The tables are the same in every database; the index of words is the database's own (`stores`).
"""

import re

import sqlalchemy as sa

METADATA = sa.MetaData()

VERSION = 6
"""Of the tables below. A store of an older one is brought up to date by `MIGRATIONS`, and one of a
newer one is refused."""

versions = sa.Table("offhook_version", METADATA, sa.Column("version", sa.Integer, primary_key=True))

calls = sa.Table(
    "calls",
    METADATA,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("server", sa.Text, nullable=False),
    sa.Column("process", sa.Integer, nullable=False),
    sa.Column("edge", sa.Text, nullable=False, default=""),
    sa.Column("direction", sa.Text, nullable=False, default=""),
    sa.Column("caller", sa.Text, nullable=False, default=""),
    sa.Column("caller_name", sa.Text, nullable=False, default=""),
    sa.Column("called", sa.Text, nullable=False, default=""),
    sa.Column("caller_key", sa.Text, nullable=False, default=""),
    sa.Column("called_key", sa.Text, nullable=False, default=""),
    sa.Column("trunk", sa.Text, nullable=False, default=""),
    sa.Column("agent", sa.Text, nullable=False, default=""),
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("answered", sa.Double),
    sa.Column("ended", sa.Double),
    sa.Column("seconds", sa.Double),
    sa.Column("end", sa.Text, nullable=False, default=""),
    sa.Column("end_reason", sa.Text, nullable=False, default=""),
    sa.Column("ended_by", sa.Text, nullable=False, default=""),
    sa.Column("turns", sa.Integer, nullable=False, default=0),
    sa.Column("interruptions", sa.Integer, nullable=False, default=0),
    sa.Column("failures", sa.Integer, nullable=False, default=0),
    sa.Column("latency_ms", sa.Integer),
    sa.Column("latency_max_ms", sa.Integer),
    sa.Column("mos", sa.Double),
    sa.Column("input_tokens", sa.Integer, nullable=False, default=0),
    sa.Column("output_tokens", sa.Integer, nullable=False, default=0),
    sa.Column("cost", sa.Double),
    sa.Column("transferred_to", sa.Text, nullable=False, default=""),
    sa.Column("recording", sa.Text, nullable=False, default=""),
    sa.Column("details", sa.Text, nullable=False, default="{}"),
    sa.Column("forgotten", sa.Double),
    sa.Column("outcome", sa.Text, nullable=False, default="", server_default=""),
    sa.Column("analysis_cost", sa.Double),
    sa.Column("tenant", sa.Text, nullable=False, default="", server_default=""),
    # Of what is rare, a search reads many entries of the index instead of many rows.
    sa.Index("calls_started", "started", "latency_max_ms", "failures"),
    sa.Index("calls_state", "state", "started"),
    sa.Index("calls_caller", "caller_key", "started"),
    sa.Index("calls_called", "called_key", "started"),
    sa.Index("calls_trunk", "trunk", "started"),
    sa.Index("calls_edge", "edge", "started"),
    sa.Index("calls_end", "end", "started"),
    sa.Index("calls_outcome", "outcome", "started"),
    sa.Index("calls_recording", "recording"),
    sa.Index("calls_tenant", "tenant", "started"),
)
"""A row a call. Times are seconds since 1970. `caller_key` and `called_key` are the digits of a
number from the last to the first, so that a number is found with and without its prefixes. `end` is
the label that metrics have for why the call ended. `details` is JSON: what nobody searches for.
`recording` is where its sound lies: a path, or s3://BUCKET/KEY. `outcome` is what an analysis has
found, one of `analyses.OUTCOMES`, empty without one; it and
`analysis_cost` stay when words are deleted, as the other numbers do. `tenant` is whose call it was,
where several customers share the server."""

call_agents = sa.Table(
    "call_agents",
    METADATA,
    sa.Column("agent", sa.Text, primary_key=True),
    sa.Column("started", sa.Double, primary_key=True),
    sa.Column("call", sa.Text, primary_key=True),
    sa.Index("call_agents_call", "call", "agent"),
)
"""Every agent that a call has had, and when the call began."""

events = sa.Table(
    "call_events",
    METADATA,
    sa.Column("call", sa.Text, primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("at_ms", sa.Integer, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("fields", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)
"""What has happened in a call, in order; `at_ms` is on the clock of its recording. `fields` is the
rest of the event as JSON."""

servers = sa.Table(
    "servers",
    METADATA,
    sa.Column("server", sa.Text, primary_key=True),
    sa.Column("process", sa.Integer, primary_key=True),
    sa.Column("seen", sa.Double, nullable=False),
)
"""When the processes that write here were last seen."""

looks = sa.Table(
    "looks",
    METADATA,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("call", sa.Text, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Index("looks_call", "call"),
)
"""Who has listened to which recording."""

voicemails = sa.Table(
    "voicemails",
    METADATA,
    sa.Column("call", sa.Text, primary_key=True),
    sa.Column("mailbox", sa.Text, nullable=False),
    sa.Column("left_at", sa.Double, nullable=False),
    sa.Index("voicemails_mailbox", "mailbox", "left_at"),
)
"""The calls in which a message was left, and for whom. It goes with the words of its call."""

registrations = sa.Table(
    "registrations",
    METADATA,
    sa.Column("server", sa.Text, primary_key=True),
    sa.Column("extension", sa.Text, primary_key=True),
    sa.Column("phones", sa.Text, nullable=False),
    sa.Column("expires", sa.Double, nullable=False),
)
"""Where the phones of extensions are that have registered by UDP, as JSON, and when the last of
them expires; each server has its own."""

deliveries = sa.Table(
    "deliveries",
    METADATA,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("call", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("next_at", sa.Double, nullable=False),
    sa.Column("state", sa.Text, nullable=False, default="waiting"),
    sa.Column("fault", sa.Text, nullable=False, default=""),
    sa.Index("deliveries_next", "url", "state", "next_at"),
    sa.Index("deliveries_call", "call"),
)
"""Webhooks that wait for their receivers; those that were delivered are deleted, and the state of
those that were given up is "dead". `call` is what they are about, in whose order they go: the id of
a call, or trunk:NAME@SERVER."""

analyses = sa.Table(
    "analyses",
    METADATA,
    sa.Column("call", sa.Text, primary_key=True),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("server", sa.Text, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False, default="waiting"),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("next_at", sa.Double, nullable=False),
    sa.Column("fault", sa.Text, nullable=False, default=""),
    sa.Column("result", sa.Text, nullable=False, default="{}"),
    sa.Index("analyses_next", "state", "next_at"),
)
"""Analyses of calls: those that wait for a model, and what was found. `position` is that of the
call's last event when the analysis was asked for, and `result` JSON."""

analysis_criteria = sa.Table(
    "analysis_criteria",
    METADATA,
    sa.Column("criterion", sa.Text, primary_key=True),
    sa.Column("verdict", sa.Text, primary_key=True),
    sa.Column("started", sa.Double, primary_key=True),
    sa.Column("call", sa.Text, primary_key=True),
    sa.Index("analysis_criteria_of_call", "call", "criterion", "verdict"),
)
"""The verdict on each criterion of a call that was analysed, and when the call began."""

bucket_recordings = sa.Table(
    "bucket_recordings",
    METADATA,
    sa.Column("sound", sa.Text, primary_key=True),
    sa.Column("call", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("next_at", sa.Double, nullable=False),
    sa.Column("fault", sa.Text, nullable=False, default=""),
    sa.Index("bucket_recordings_call", "call"),
    sa.Index("bucket_recordings_state", "state", "next_at"),
)
"""What is in a bucket, or may be: noted before an upload begins, and until the bucket has deleted
it. `sound` is its s3://BUCKET/KEY; the timeline lies beside it. `state` is waiting, uploading,
there or removing: see `bucket.ledger`."""

campaigns = sa.Table(
    "campaigns",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("ended", sa.Double),
    sa.Column("next_at", sa.Double, nullable=False),
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("columns", sa.Text, nullable=False, default="[]"),
    sa.Column("tenant", sa.Text, nullable=False, default="", server_default=""),
    sa.Index("campaigns_state", "state", "next_at"),
    sa.Index("campaigns_tenant", "tenant", "created"),
)
"""Campaigns of outgoing calls. `next_at` is the earliest time of the next call, as `per_second` has
it; `settings` is JSON as it was asked for, and `columns` lists the names of variables. `ended` is
when nobody waited and no call was in progress any more."""

campaign_recipients = sa.Table(
    "campaign_recipients",
    METADATA,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("campaign", sa.Text, nullable=False),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("called", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("time_zone", sa.Text, nullable=False),
    sa.Column("variables", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False, default=""),
    sa.Column("reason", sa.Text, nullable=False, default=""),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("next_at", sa.Double, nullable=False),
    sa.Column("call", sa.Text, nullable=False, default=""),
    sa.Column("server", sa.Text, nullable=False, default=""),
    sa.Column("process", sa.Integer, nullable=False, default=0),
    sa.Column("dialled", sa.Double),
    sa.UniqueConstraint("campaign", "id"),
    # With all that progress is counted by, which so reads no rows.
    sa.Index("campaign_recipients_next", "campaign", "state", "next_at", "outcome", "attempts"),
    sa.Index("campaign_recipients_call", "call"),
    sa.Index("campaign_recipients_key", "key"),
)
"""Who is called. `called` is the number as it is dialled and `key` the same for all ways of writing
it; `state` is one of `states.RECIPIENT_STATES`. `call`, `server` and `process` are of the last
attempt, written with "dialling" before anything is sent."""

do_not_call = sa.Table(
    "do_not_call",
    METADATA,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("called", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False, default=""),
    sa.Column("added", sa.Double, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False, default=""),
)
"""Numbers that no campaign of a tenant calls, "" being all tenants and nobody. `key` is that of the
recipients; a tenant's begins with its name and a slash."""


def of_tenant(table: sa.Table, tenant: str) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions of what is a tenant's; "" has none."""
    return [table.c.tenant == tenant] if tenant else []


MIGRATIONS: dict[int, tuple[str, ...]] = {
    2: (
        "ALTER TABLE calls ADD COLUMN outcome TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE calls ADD COLUMN analysis_cost DOUBLE PRECISION",
        "CREATE INDEX IF NOT EXISTS calls_outcome ON calls (outcome, started)",
    ),
    3: ("CREATE INDEX IF NOT EXISTS calls_recording ON calls (recording)",),
    4: (
        "ALTER TABLE calls ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
        "CREATE INDEX IF NOT EXISTS calls_tenant ON calls (tenant, started)",
        "ALTER TABLE campaigns ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
        "CREATE INDEX IF NOT EXISTS campaigns_tenant ON campaigns (tenant, created)",
    ),
    5: ("ALTER TABLE do_not_call ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",),
    6: (
        "CREATE INDEX IF NOT EXISTS call_agents_call ON call_agents (call, agent)",
        "DROP INDEX IF EXISTS analysis_criteria_call",
        "CREATE INDEX IF NOT EXISTS analysis_criteria_of_call "
        "ON analysis_criteria (call, criterion, verdict)",
    ),
}
"""Statements that bring a store from the version before up to each one; tables that are new are
made anyway."""
ADDS = re.compile(r"ALTER TABLE (\w+) ADD COLUMN (\w+)")


def is_done(connection: sa.Connection, statement: str) -> bool:
    """Returns whether the column that a migration adds is there: the table is new, or another
    process was interrupted, as SQLite keeps each statement that changes tables."""
    adds = ADDS.match(statement)
    columns = sa.inspect(connection).get_columns(adds[1]) if adds is not None else []
    return adds is not None and any(column["name"] == adds[2] for column in columns)
