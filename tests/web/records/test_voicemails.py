"""Messages in the store: for whom they are, who has heard them, and that they can be forgotten."""

import json
from pathlib import Path
from typing import Any

import pytest

from offhook.web.records.entries import Happened
from offhook.web.records.store import CallStore
from offhook.web.records.webhooks import Receiver
from tests.web.records.made_calls import HERE, NOON, begun, over

pytestmark = pytest.mark.filterwarnings("ignore")
ANN = Receiver("mailto:ann@example.org", (), frozenset({"voicemail.left"}), "101", 5.0)
BOB = Receiver("mailto:bob@example.org", (), frozenset({"voicemail.left"}), "102", 5.0)
ALL = Receiver("https://crm.example/hook", ("secret",), frozenset({"voicemail.left"}))


def store_at(folder: Path, *receivers: Receiver) -> CallStore:
    store = CallStore(f"sqlite:///{folder}/calls.db", receivers)
    store.prepare()
    return store


def message(store: CallStore, call: str, mailbox: str, at: float = NOON, text: str = "hi") -> None:
    fields: dict[str, Any] = {"mailbox": mailbox, "caller": "+49301", "seconds": 3.5}
    left = Happened(call, 9, 9000, "voicemail_left", {**fields, "text": text})
    entries = (begun(call, at), left, over(call, at + 20, recording=f"/sounds/{call}.ogg"))
    store.write(entries, HERE, at + 20)


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [one["call_id"] for one in found]


def test_messages_are_listed_by_mailbox_the_last_first(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    message(store, "a", "101")
    message(store, "b", "102", NOON + 100)
    message(store, "c", "101", NOON + 200, "call me back")
    assert ids(store.voicemails.list()) == ["c", "b", "a"]
    [last, first] = store.voicemails.list("101")
    assert (last["text"], last["seconds"], last["heard"]) == ("call me back", 3.5, False)
    assert (last["recording"], last["mailbox"]) == ("/calls/c/recording", "101")
    assert first["caller_name"] == "Ada"
    assert store.voicemails.counts() == {"101": (2, 0), "102": (1, 0)}


def test_one_is_heard_once_somebody_has_listened(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    message(store, "a", "101")
    message(store, "b", "101", NOON + 9)
    store.look("a", "recording", "127.0.0.1", NOON + 30)
    store.look("a", "recording", "127.0.0.2", NOON + 31)
    assert store.voicemails.counts() == {"101": (1, 1)}
    assert ids(store.voicemails.list("101", new=True)) == ["b"]


def test_what_is_forgotten_is_no_message_any_more(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    message(store, "a", "101")
    store.deletion.forget_call("a", NOON + 60)
    assert store.voicemails.list() == []
    assert store.voicemails.counts() == {}
    assert not store.voicemails.is_there("a")


def test_the_same_entries_again_are_one_message(tmp_path: Path) -> None:
    store = store_at(tmp_path, ALL)
    message(store, "a", "101")
    message(store, "a", "101")
    assert store.voicemails.counts() == {"101": (1, 0)}
    assert len(store.outbox.claim(ALL.url, NOON + 60)) == 1


def test_mail_goes_to_whom_it_is_for_and_later(tmp_path: Path) -> None:
    store = store_at(tmp_path, ANN, BOB, ALL)
    message(store, "a", "101")
    [hook] = store.outbox.claim(ALL.url, NOON + 20)
    data = json.loads(hook.body)["data"]
    assert (data["mailbox"], data["caller"], data["text"]) == ("101", "+49301", "hi")
    assert store.outbox.claim(ANN.url, NOON + 21) == []
    assert len(store.outbox.claim(ANN.url, NOON + 26)) == 1
    assert store.outbox.claim(BOB.url, NOON + 26) == []
