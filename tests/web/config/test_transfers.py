"""[transfers] and [queues]: what is refused, and in which words."""

import re
from typing import Any

import pytest

from offhook.web.config.config import Config
from offhook.web.config.people.queues import Queue
from offhook.web.config.people.transfers import BriefedTransfer, split_extension

TRUNK = {"name": "pbx", "server": "127.0.0.1"}
SALES = {"to": ["+4930123456"]}
SUPPORT = {"members": ["+4930123456"]}


def config(**tables: Any) -> Config:
    return Config.model_validate({"sip": {"trunks": [TRUNK]}, **tables})


def test_an_extension_stands_behind_a_comma() -> None:
    assert split_extension("+4930123456,,12") == ("+4930123456", ",12")
    assert split_extension("sip:anna@pbx.example") == ("sip:anna@pbx.example", "")
    transfer = BriefedTransfer(to=("+49 30 123456,12#",))
    assert transfer.to == ("+49 30 123456,12#",)


def test_the_highest_priority_of_a_number_counts() -> None:
    queue = Queue(members=("+4930",), priorities={"+49*": 1, "+4930*": 5, "*": -1})
    assert [queue.priority(n) for n in ("+49305", "+4940", "+33", "")] == [5, 1, -1, -1]


def test_agents_transfer_to_what_there_is() -> None:
    agent = {"transfers": ["sales", "queue:support"], "gives_up_to": "queue:support"}
    made = config(transfers={"sales": SALES}, queues={"support": SUPPORT}, agent=agent)
    assert made.agent.gives_up_to == "queue:support"


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"transfers": {"sales": {"to": []}}}, "at least 1 item"),
        ({"transfers": {"sales": {"to": ["+49,x"]}}}, "'x' is no key"),
        ({"transfers": {"sales": {"to": ["two words"]}}}, "neither a number"),
        ({"transfers": {"sales": {**SALES, "trunk": "no"}}}, "no trunk called 'no' has a server"),
        ({"transfers": {"sales": {**SALES, "carrier": "no"}}}, "no carrier is called 'no'"),
        (
            {"transfers": {"sales": {**SALES, "carrier": "a", "trunk": "b"}}},
            "trunk and carrier exclude each other",
        ),
        ({"transfers": {"sales": SALES}, "sip": {}}, "needs a trunk with a server"),
        (
            {"transfers": {"sales": {**SALES, "music": "no.wav"}}},
            "no.wav cannot be read",
        ),
        ({"queues": {"support": {"members": ["1", "1"]}}}, "1 is in it twice"),
        ({"queues": {"support": {**SUPPORT, "callback_key": "55"}}}, "callback_key"),
        ({"agent": {"transfers": ["queue:no"]}}, "no queue is called 'no' (there: none)"),
        ({"agent": {"gives_up_to": "queue:no"}}, "agent.gives_up_to: no queue is called 'no'"),
    ],
)
def test_what_is_wrong_is_said(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        config(**tables)
