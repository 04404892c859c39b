"""What calls are looked for: the parameters of GET /calls and of `offhook calls`, and their SQL."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from offhook.media.untrusted_json import read_json
from offhook.web.records.analyses import OUTCOMES, VERDICTS
from offhook.web.records.entries import digits_key
from offhook.web.records.errors import SearchError
from offhook.web.records.stores.store_kind import StoreKind
from offhook.web.records.tables import analysis_criteria, call_agents, calls

PAGE = 50
"""Calls in one answer, if nothing else is wanted."""
MAX_PAGE = 1000
MAX_WORDS = 20
"""Words of a text that is looked for."""
DAY_S = 86_400.0
MAX_TEXT = 200
"""Characters of a parameter."""

LISTED = tuple(
    column
    for column in calls.c
    if column.name not in ("number", "caller_key", "called_key", "details", "process")
)
"""What a list says of each call."""

_AGO = re.compile(r"(\d{1,5})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_WORD = re.compile(r"[^\W_]+\*?")


@dataclass(frozen=True)
class Search:
    """What calls are wanted; "" and None: any."""

    start: float | None = None
    """Seconds since 1970, inclusive."""
    end: float | None = None
    """Seconds since 1970, exclusive."""
    number: str = ""
    """Digits of the caller's or the called number, with or without their prefixes."""
    agent: str = ""
    trunk: str = ""
    tenant: str = ""
    edge: str = ""
    state: str = ""
    reason: str = ""
    """Label or sentence of why the call has ended."""
    text: str = ""
    """Words that were said."""
    min_latency: int | None = None
    """ms of the slowest answer."""
    min_seconds: float | None = None
    failed: bool = False
    """Whether something has failed."""
    interrupted: bool = False
    """Whether the caller has interrupted the agent."""
    analysis: str = ""
    """What an analysis has found: one of OUTCOMES."""
    criterion: str = ""
    """Name of the criterion of which `analysis` is the verdict, in place of all of them."""
    limit: int = PAGE
    cursor: str = ""
    """Where the answer before has ended."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Search":
        """Reads parameters. Raises SearchError."""
        known = {field.name for field in fields(cls)} - {"start", "end"} | {"from", "to"}
        values: dict[str, Any] = {}
        for name, text in query.items():
            if name not in known:
                raise SearchError(f"{name}: there is no such parameter; {', '.join(sorted(known))}")
            if len(text) > MAX_TEXT:
                raise SearchError(f"{name}: is over {MAX_TEXT} characters")
            values[{"from": "start", "to": "end"}.get(name, name)] = _read(name, text)
        if values.get("number") and not digits_key(values["number"]):
            raise SearchError("number: has fewer than three digits")
        if values.get("criterion") and values.get("analysis", "") not in ("", *VERDICTS):
            raise SearchError(f"analysis: of a criterion, {', '.join(VERDICTS)}")
        return cls(**values)

    def select(self, kind: StoreKind, few: Sequence[int] | None = None) -> sa.Select[Any]:
        """Returns the SELECT of one call more than wanted, the last first. `few` are the numbers of
        those with its words, if they are known. Raises SearchError."""
        found = sa.select(*LISTED, calls.c.number)
        order: sa.ColumnElement[Any] = calls.c.started
        by_words = bool(self.text) and kind.words_order is not None
        if few is not None:
            found = found.where(calls.c.number.in_(few))
        elif self.text:
            found = kind.with_words(found, self.words())
        if by_words:
            assert kind.words_order is not None
            order = kind.words_order
            found = found.where(*self._numbers(order))
        if self.agent and not by_words:  # in the order of the agent's index
            order = call_agents.c.started
            found = found.join(call_agents, call_agents.c.call == calls.c.id)
            found = found.where(call_agents.c.agent == self.agent)
        elif self.agent:
            has = sa.and_(call_agents.c.agent == self.agent, call_agents.c.call == calls.c.id)
            found = found.where(sa.exists(call_agents.c.call).where(has).correlate(calls))
        if self.criterion:
            of_call = sa.and_(analysis_criteria.c.call == calls.c.id, *self._verdict())
            if self.analysis and not by_words and not self.agent:  # in the order of its index
                order = analysis_criteria.c.started
                found = found.join(analysis_criteria, of_call)
            else:
                found = found.where(
                    sa.exists(analysis_criteria.c.call).where(of_call).correlate(calls)
                )
        found = found.where(*self._conditions(calls.c.started if by_words else order))
        if self.cursor:
            before, call = read_cursor(self.cursor)
            found = found.where(order <= before)  # for the index
            found = found.where(sa.or_(order < before, calls.c.id < call))
        orders = (order.desc(),) if by_words else (order.desc(), calls.c.id.desc())
        return found.order_by(*orders).limit(self.limit + 1)

    def cursor_after(self, row: Mapping[str, Any], kind: StoreKind) -> str:
        """Returns where the list continues after a row of the SELECT."""
        by_number = self.text and kind.words_order is not None
        place = [row["number"] if by_number else row["started"], row["id"]]
        return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")

    def _verdict(self) -> Iterator[sa.ColumnElement[bool]]:
        yield analysis_criteria.c.criterion == self.criterion
        if self.analysis:
            yield analysis_criteria.c.verdict == self.analysis

    def words(self) -> list[str]:
        """Returns the words that it looks for. Raises SearchError."""
        words = _WORD.findall(self.text.lower())
        if not words or len(words) > MAX_WORDS:
            raise SearchError(
                f"text: write 1 to {MAX_WORDS} words, as refund, or lett* for a beginning"
            )
        return words

    def _numbers(self, number: sa.ColumnElement[int]) -> Iterator[sa.ColumnElement[bool]]:
        """Yields bounds of the calls' numbers by when they began: a call whose entries waited in a
        spool has a higher number than those after it, so a day more at each end."""
        if self.start is not None:
            first = sa.select(calls.c.number).where(calls.c.started >= self.start - DAY_S)
            yield number >= first.order_by(calls.c.started).limit(1).scalar_subquery()
        if self.end is not None:
            last = sa.select(calls.c.number).where(calls.c.started < self.end + DAY_S)
            yield number <= last.order_by(calls.c.started.desc()).limit(1).scalar_subquery()

    def _conditions(self, started: sa.ColumnElement[float]) -> list[sa.ColumnElement[bool]]:
        wanted: list[sa.ColumnElement[bool]] = []
        if self.start is not None:
            wanted.append(started >= self.start)
        if self.end is not None:
            wanted.append(started < self.end)
        if self.number:
            key = digits_key(self.number).rstrip("0")  # as 0 and 00 before a number
            wanted.append(
                sa.or_(
                    *(
                        sa.and_(column >= key, column < f"{key}:")  # ":" follows "9"
                        for column in (calls.c.caller_key, calls.c.called_key)
                    )
                )
            )
        equal = {"tenant": self.tenant, "trunk": self.trunk, "edge": self.edge, "state": self.state}
        wanted += [calls.c[name] == value for name, value in equal.items() if value]
        if self.reason:
            begins = calls.c.end_reason.startswith(self.reason, autoescape=True)
            wanted.append(sa.or_(calls.c.end == self.reason, begins))
        if self.min_latency is not None:
            wanted.append(calls.c.latency_max_ms >= self.min_latency)
        if self.min_seconds is not None:
            wanted.append(calls.c.seconds >= self.min_seconds)
        if self.failed:
            wanted.append(calls.c.failures > 0)
        if self.interrupted:
            wanted.append(calls.c.interruptions > 0)
        if self.analysis and not self.criterion:
            wanted.append(calls.c.outcome == self.analysis)
        return wanted


def _read(name: str, text: str) -> Any:
    match name:
        case "from" | "to":
            return read_time(name, text)
        case "limit":
            return _number(name, text, 1, MAX_PAGE)
        case "min_latency":
            return _number(name, text, 0, 10**7)
        case "min_seconds":
            return float(_number(name, text, 0, 10**7))
        case "failed" | "interrupted":
            if text not in ("true", "false"):
                raise SearchError(f"{name}: true or false")
            return text == "true"
        case "analysis" if text not in ("", *OUTCOMES):
            raise SearchError(f"analysis: {', '.join(OUTCOMES)}")
        case "state" if text not in ("", "live", "ended"):
            raise SearchError("state: live or ended")
    return text


def _number(name: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
        raise SearchError(f"{name}: a whole number from {least} to {most}")
    return int(text)


def read_time(name: str, text: str) -> float:
    """Reads an ISO 8601 time or date, UTC where it says nothing else, or how long ago: 90m, 24h,
    7d, 2w. Returns seconds since 1970. Raises SearchError."""
    if found := _AGO.fullmatch(text):
        ago = timedelta(**{_UNITS[found[2]]: int(found[1])})
        return (datetime.now(UTC) - ago).timestamp()
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        words = f"{name}: a date or time as 2026-03-14T15:10, or how long ago as 24h or 7d"
        raise SearchError(words) from error


def read_cursor(text: str) -> tuple[float, str]:
    """Returns when the last call of an answer began, or its number, and its id. Raises
    SearchError."""
    try:
        decoded = read_json(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        started, call = decoded
        return float(started), str(call)
    except (ValueError, TypeError) as error:
        raise SearchError("cursor: is none of an answer before") from error
