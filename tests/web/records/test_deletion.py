"""What is deleted of a person, in SQLite and in PostgreSQL, and in the bytes of their files."""

import re
from collections.abc import Iterator
from pathlib import Path
from secrets import randbelow, token_hex
from typing import Any

import psycopg
import pytest

from offhook.web.records.entries import Entry
from offhook.web.records.search import Search
from offhook.web.records.store import CallStore
from offhook.web.records.webhooks import Receiver
from tests.web.records.conftest import Postgres, emptied
from tests.web.records.made_calls import HERE, NOON, begun, call_of, over

DOCS = Path(__file__).parents[3] / "docs/find-a-call.md"


@pytest.fixture
def store(url: str) -> Iterator[CallStore]:
    store = CallStore(url)
    store.prepare()
    yield store
    store.close()


def ids(store: CallStore, **query: str) -> list[str]:
    return [call["call_id"] for call in store.find(Search.of(query))[0]]


SECRETS = ("Zaphod", "Beeblebrox", "heartofgold", "Trillian", "zarniwoop")


def secret_call(call: str, caller: str) -> list[Entry]:
    return call_of(
        call,
        "I am Zaphod Beeblebrox",
        *(f"heartofgold {number}" for number in range(40)),
        caller=caller,
        caller_name="Trillian",
        variables={"ship": "zarniwoop"},
    )


def test_nothing_is_left_of_a_number_that_is_forgotten(store: CallStore, tmp_path: Path) -> None:
    store.write(secret_call("call", "+49 30 777888999"), HERE, NOON)
    for number in range(30):
        store.write(call_of(f"other{number}", "my card is lost", caller="+4930777"), HERE, NOON)
    assert ids(store, text="zaphod") == ["call"]
    assert store.deletion.forget_number("777888999", NOON).calls == 0  # not the whole number
    forgotten = store.deletion.forget_number("+49 (30) 777 888 999", NOON + 60)
    assert forgotten.calls == 1
    store.deletion.erase()
    assert ids(store, text="zaphod") == ids(store, number="777888999") == []
    assert len(ids(store, text="card")) == 30
    call = store.show("call")
    assert call is not None
    assert (call["turns"], call["caller"], call["caller_name"]) == (41, "", "")
    assert store.timeline("call") == []
    if store.kind.title == "SQLite":
        kept = b"".join(path.read_bytes() for path in tmp_path.glob("calls.db*"))
        for secret in (*SECRETS, "777888999", "999888777"):
            assert secret.lower().encode() not in kept.lower()


def test_what_is_old_enough_goes_by_its_kind(store: CallStore) -> None:
    day = 86_400.0
    for age in (400, 100, 40, 1):  # in the order in which they began
        entries = call_of(f"d{age}", "my card", at=NOON - age * day)
        entries[-1] = over(f"d{age}", NOON - age * day + 20, recording=f"/recordings/d{age}.ogg")
        store.write(entries, HERE, NOON)
    store.write([begun("live", NOON - 500 * day)], HERE, NOON)
    recordings = set(store.deletion.expire_recordings(NOON - 30 * day, NOON).recordings)
    assert recordings == {f"/recordings/d{age}.ogg" for age in (40, 100, 400)}
    assert store.deletion.expire_words(NOON - 90 * day, NOON).calls == 2
    assert store.deletion.expire_words(NOON - 90 * day, NOON).calls == 0
    assert store.deletion.expire_calls(NOON - 365 * day, NOON).calls == 1
    assert ids(store) == ["d1", "d40", "d100", "live"]
    assert ids(store, text="card") == ["d1", "d40"]
    store.deletion.erase()


@pytest.mark.parametrize("caller", ["1739021", "001739021", "sip:+1739021@pbx.example"])
def test_the_digits_of_an_id_are_no_number(store: CallStore, caller: str) -> None:
    store.write(call_of("1-7f3a9c0d21aa", "mine"), HERE, NOON)
    store.write(call_of("another", "somebody else's", caller=caller), HERE, NOON)
    assert store.deletion.forget_number("1-7f3a9c0d21aa", NOON).calls == 0
    assert store.deletion.forget_call("1739021", NOON).calls == 0
    assert store.deletion.forget_call("1-7f3a9c0d21aa", NOON).calls == 1
    assert ids(store, number="1739021") == ["another"]
    assert store.deletion.forget_number("+1 (739) 021", NOON).calls == 1


def test_a_caller_without_a_number_is_forgotten_by_name(store: CallStore) -> None:
    store.write(call_of("named", "hello", caller="sip:ann@pbx.example"), HERE, NOON)
    store.write(call_of("short", "hello", caller="17"), HERE, NOON)
    store.write(call_of("browser", "hello", caller="", called=""), HERE, NOON)
    assert store.deletion.forget_number("", NOON).calls == 0
    assert store.deletion.forget_number("sip:ann@pbx.example", NOON).calls == 1
    assert store.deletion.forget_number("17", NOON).calls == 1
    assert ids(store, text="hello") == ["browser"]


def test_postgresql_has_nothing_left_once_it_has_written_its_files_anew(postgres: Postgres) -> None:
    emptied(postgres)
    secret, number = f"zaphod{token_hex(8)}", f"777{randbelow(10**9):09}"
    hook = Receiver("https://crm.example", ("s" * 16,), frozenset({"call.started", "call.ended"}))
    store = CallStore(postgres.url, [hook])
    store.prepare()
    about: dict[str, Any] = {
        "caller": f"+{number}",
        "caller_name": secret,
        "variables": {"ship": secret},
    }
    words = (f"I am {secret}", *(f"{secret} {turn}" for turn in range(40)))
    store.write(call_of("call", *words, edge="webrtc", **about), HERE, NOON)
    for other in range(30):
        store.write(call_of(f"other{other}", "my card is lost"), HERE, NOON)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        assert _is_in(postgres, secret)
        assert store.deletion.forget_number(f"+{number}", NOON).calls == 1
        store.deletion.erase()
        commands = re.findall(r"^psql .*$", DOCS.read_text(), re.MULTILINE)
        for statement in re.findall("-c '([^']*)'", " ".join(commands)):
            connection.execute(statement)
    for what in (secret, number, number[::-1]):
        assert _is_in(postgres, what) == []
    assert len(ids(store, text="card")) == 30
    store.close()


def _is_in(postgres: Postgres, text: str) -> list[Path]:
    """Returns the files of a server that have a text."""
    files = [path for path in (postgres.folder / "data").rglob("*") if path.is_file()]
    return [path for path in files if text.encode() in path.read_bytes()]
