"""Recipients wait in the store, are called once, and are settled with the record of their call."""

import csv
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from threading import Barrier, Thread
from typing import Any

import pytest

from offhook.web.campaigns.errors import CampaignError, UnknownCampaign, WrongState
from offhook.web.campaigns.pacing import Lines
from offhook.web.campaigns.recipients import recipient
from offhook.web.records.campaigns.calling import LONGEST_S, NO_LINE_S, DueCall
from offhook.web.records.entries import Recorded
from offhook.web.records.store import CallStore, Writer
from offhook.web.records.webhooks import Receiver
from tests.web.records.made_calls import HERE, NOON, RECORD

CRM = Receiver(
    "http://crm.example/hook", ("a secret of some length",), frozenset(("campaign.completed",))
)
THERE = Writer("there:7860")
UNSEEN_S = 60.0


@pytest.fixture
def store(url: str) -> Iterator[CallStore]:
    store = CallStore(url, [CRM])
    store.prepare()
    yield store
    store.close()


IDS = itertools.count()


def new_id() -> str:
    return f"call{next(IDS)}"


def begin(store: CallStore, *numbers: str, name: str = "spring", **settings: Any) -> None:
    some = [recipient(number, variables={"name": f"n{number}"}) for number in numbers]
    store.campaigns.add(name, {"at_once": 100, "per_second": 50, **settings}, some, NOON)


def claimed(
    store: CallStore, now: float = NOON, free: int = 100, who: Writer = HERE
) -> list[DueCall]:
    lines = Lines(free, {"": free, "carrier:twilio": free})
    return store.calling.claim(lines, who.server, who.process, new_id, now)


def end(store: CallStore, due: DueCall, now: float = NOON + 20, **record: Any) -> None:
    """The record of a call is written; by default, a person has answered."""
    fields = {"direction": "outbound", "call_id": due.call, "called": due.to, **record}
    store.write([Recorded(replace(RECORD, **fields), "whatever")], HERE, now)


BUSY = {"answered": None, "status": 486, "end_reason": "busy"}


def states(store: CallStore, campaign: str = "spring") -> dict[str, int]:
    return {name: n for name, n in store.campaigns.show(campaign)["states"].items() if n}


def told(store: CallStore) -> list[dict[str, Any]]:
    """The webhooks that wait."""
    return [json.loads(each.body) for each in store.outbox.claim(CRM.url, NOON + 1e6)]


# --- called once ---


def test_each_is_called_once_and_the_campaign_is_completed(store: CallStore) -> None:
    begin(store, "+49301", "+49302")
    calls = claimed(store)
    assert [(due.to, due.variables) for due in calls] == [
        ("+49301", {"name": "n+49301"}),
        ("+49302", {"name": "n+49302"}),
    ]
    assert states(store) == {"dialling": 2}
    assert claimed(store) == []
    end(store, calls[0])
    assert store.campaigns.show("spring")["state"] == "running"
    end(store, calls[1], answered_by="machine_end")
    found = store.campaigns.show("spring")
    assert (found["state"], found["outcomes"], found["calls"]) == (
        "running",
        {"answered": 1},
        2,
    ), "the machine is called again later"
    [again] = claimed(store, NOON + 4 * 3600)
    end(store, again, NOON + 5 * 3600, answered_by="human")
    found = store.campaigns.show("spring")
    assert (found["state"], found["outcomes"], found["calls"]) == ("completed", {"answered": 2}, 3)
    [webhook] = told(store)
    assert webhook["type"] == "campaign.completed"
    assert webhook["data"]["campaign_id"] == "spring"
    assert webhook["data"]["outcomes"] == {"answered": 2}


def test_a_record_that_comes_twice_counts_once(store: CallStore) -> None:
    begin(store, "+49301", retries={"busy": {"times": 1, "after_minutes": 1}})
    [due] = claimed(store)
    end(store, due, **BUSY)
    end(store, due, **BUSY)
    [again] = claimed(store, NOON + 100)
    end(store, due, **BUSY)  # once more, from a spool
    assert states(store) == {"dialling": 1}
    end(store, again, **BUSY)
    assert states(store) == {"done": 1}
    assert store.campaigns.show("spring")["outcomes"] == {"busy": 1}


def test_two_servers_share_the_recipients(url: str, store: CallStore) -> None:
    begin(store, *(f"+4930{n}" for n in range(100, 160)), at_once=50)
    other = CallStore(url)
    stores, ready = [store, other], Barrier(2)
    found: list[DueCall] = []

    def claim(one: CallStore, who: Writer) -> None:
        ready.wait()
        for _ in range(5):
            found.extend(claimed(one, free=7, who=who))

    threads = [Thread(target=claim, args=each) for each in zip(stores, (HERE, THERE), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert Counter(due.to for due in found).most_common(1)[0][1] == 1
    assert len({due.call for due in found}) == len(found) == states(store)["dialling"] <= 50
    times = sorted(due.at for due in found)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert min(gaps) > 1 / 50 - 1e-6


# --- limits ---


def test_no_more_at_once_than_the_campaign_and_the_lines_allow(store: CallStore) -> None:
    begin(store, *(f"+4930{n}" for n in range(100, 120)), at_once=5)
    assert len(claimed(store, free=3)) == 3
    assert len(claimed(store)) == 2
    assert claimed(store, NOON + 1) == []


def test_lines_are_divided_among_campaigns(store: CallStore) -> None:
    begin(store, "+49301", "+49302", name="one", per_second=1)
    begin(store, "+49303", "+49304", name="two", per_second=1)
    calls = [due for second in range(4) for due in claimed(store, NOON + second, free=1)]
    assert [due.campaign for due in calls] == ["one", "two", "one", "two"]


def test_a_campaign_of_another_server_s_trunk_is_left_to_it(store: CallStore) -> None:
    begin(store, "+49301", name="here")
    begin(store, "+49302", name="elsewhere", trunk="other")
    begin(store, "+49303", name="by carrier", carrier="twilio")
    assert {due.campaign for due in claimed(store)} == {"here", "by carrier"}


def test_one_without_a_line_waits_and_loses_no_attempt(store: CallStore) -> None:
    begin(store, "+49301")
    store.calling.release(claimed(store), NOON)
    assert claimed(store, NOON + 1) == []
    [due] = claimed(store, NOON + NO_LINE_S)
    end(store, due)
    assert store.campaigns.show("spring")["calls"] == 1


def test_windows_are_those_of_the_recipients(store: CallStore) -> None:
    """NOON is a Monday, 14:13 in UTC."""
    some = [
        recipient("+49301", time_zone="Europe/Berlin"),
        recipient("+12121", time_zone="America/New_York"),
        recipient("+91111", time_zone="Asia/Kolkata"),
    ]
    settings = {"windows": ["daily 09:00-18:00"], "time_zone": "UTC", "per_second": 50}
    store.campaigns.add("spring", settings, some, NOON)
    assert {due.to for due in claimed(store)} == {"+49301", "+12121"}
    assert claimed(store, NOON + 3600) == []
    [late] = claimed(store, NOON + 14 * 3600)  # 09:43 in Kolkata
    assert late.to == "+91111"


def test_a_window_that_closes_before_somebody_was_called_opens_again(store: CallStore) -> None:
    windows = {"windows": ["daily 09:00-16:14"], "time_zone": "Europe/Berlin"}
    begin(store, "+49301", "+49302", "+49303", per_second=0.01, **windows)
    first = claimed(store)  # at 16:13:20
    assert len(first) == 1
    assert claimed(store, NOON + 110) == []
    found = store.campaigns.show("spring")
    assert found["next_call"] == "2026-09-22T07:00:00.000+00:00"


# --- settled otherwise ---


def test_a_call_that_cannot_be_placed_is_settled(store: CallStore) -> None:
    begin(store, "+49301")
    [due] = claimed(store)
    store.calling.refuse(due, "refused", "'+49301' is not a number", NOON)
    found = store.campaigns.show("spring")
    assert (found["state"], found["outcomes"]) == ("completed", {"refused": 1})


def test_a_server_that_dies_leaves_unknown_who_is_not_called_again(store: CallStore) -> None:
    begin(store, "+49301", "+49302")
    store.seen(HERE, NOON)
    store.seen(THERE, NOON)
    [mine] = claimed(store, free=1)
    [theirs] = claimed(store, NOON + 1, free=1, who=THERE)
    store.close_lost(NOON + 5, UNSEEN_S, HERE)  # we start again
    assert states(store) == {"unknown": 1, "dialling": 1}
    assert claimed(store, NOON + 1e6) == []
    assert store.campaigns.show("spring")["state"] == "running"
    store.seen(HERE, NOON + 100)
    store.close_lost(NOON + 100, UNSEEN_S)  # the other one was not seen any more
    assert states(store) == {"unknown": 2}
    found = store.campaigns.show("spring")
    assert (found["state"], found["outcomes"]) == ("completed", {"unknown": 2})
    end(store, theirs, NOON + 200)  # it had only lost the store
    assert store.campaigns.show("spring")["outcomes"] == {"answered": 1, "unknown": 1}
    end(store, mine, **BUSY)  # from its spool; the campaign is over
    assert states(store) == {"done": 2}
    assert len(told(store)) == 1


def test_who_is_unknown_can_be_called_again_by_wish_unless_the_record_comes(
    store: CallStore,
) -> None:
    begin(store, "+49301", "+49302", retries={"unknown": {"times": 1, "after_minutes": 10}})
    store.seen(HERE, NOON)
    first, second = claimed(store)
    store.close_lost(NOON + 5, UNSEEN_S, HERE)
    assert states(store) == {"waiting": 2}
    end(store, first)
    assert states(store) == {"waiting": 1, "done": 1}
    [again] = claimed(store, NOON + 700)
    assert again.to == second.to
    assert again.call != second.call


def test_a_call_without_an_end_is_given_up_at_last(store: CallStore) -> None:
    begin(store, "+49301")
    store.seen(HERE, NOON)
    claimed(store)
    later = NOON + LONGEST_S + 10
    store.seen(HERE, later)
    store.close_lost(later, UNSEEN_S)
    assert states(store) == {"unknown": 1}


# --- asked for ---


def test_ids_are_called_once_however_often_they_are_sent(store: CallStore) -> None:
    some = [recipient("+49301", "ada"), recipient("+49302", "ada"), recipient("+49303")]
    assert store.campaigns.add("spring", {}, some, NOON) == {"added": 2, "known": 1}
    assert store.campaigns.append("spring", some, NOON) == {"added": 0, "known": 3}
    more = [recipient("0049303"), recipient("+49304")]
    assert store.campaigns.append("spring", more, NOON) == {"added": 1, "known": 1}
    assert store.campaigns.show("spring")["recipients"] == 3


def test_a_second_campaign_of_the_same_id_is_refused(store: CallStore) -> None:
    begin(store, "+49301")
    with pytest.raises(CampaignError, match="there is a campaign 'spring'"):
        begin(store, "+49302")


def test_pause_resume_append_and_cancel(store: CallStore) -> None:
    begin(store, "+49301", "+49302", "+49303")
    [due] = claimed(store, free=1)
    assert store.campaigns.act("spring", "pause", NOON) == "paused"
    assert claimed(store, NOON + 5) == []
    end(store, due, **BUSY)  # a call in progress has gone on, and may be repeated
    assert states(store) == {"waiting": 3}
    assert store.campaigns.act("spring", "resume", NOON) == "running"
    [second] = claimed(store, NOON + 5, free=1)
    assert store.campaigns.act("spring", "cancel", NOON) == "cancelled"
    assert states(store) == {"dialling": 1, "cancelled": 2}
    assert claimed(store, NOON + 1e5) == []
    assert told(store) == []
    end(store, second, **BUSY)
    assert states(store) == {"done": 1, "cancelled": 2}
    [webhook] = told(store)
    assert webhook["data"]["state"] == "cancelled"
    for action in ("pause", "resume"):
        with pytest.raises(WrongState, match="is cancelled"):
            store.campaigns.act("spring", action, NOON)  # type: ignore[arg-type]
    with pytest.raises(WrongState, match="is cancelled: it cannot append"):
        store.campaigns.append("spring", [recipient("+49304")], NOON)
    with pytest.raises(UnknownCampaign):
        store.campaigns.act("winter", "pause", NOON)


def test_a_completed_campaign_goes_on_with_more_recipients(store: CallStore) -> None:
    begin(store, "+49301")
    end(store, claimed(store)[0])
    assert store.campaigns.show("spring")["state"] == "completed"
    store.campaigns.append("spring", [recipient("+49302")], NOON + 30)
    assert store.campaigns.show("spring")["state"] == "running"
    end(store, claimed(store, NOON + 30)[0])
    assert store.campaigns.show("spring")["state"] == "completed"
    assert len(told(store)) == 1  # of a campaign, one after the other
    with pytest.raises(UnknownCampaign):
        store.campaigns.show("winter")


# --- not called ---


def test_numbers_on_the_list_are_not_called_however_they_are_written(store: CallStore) -> None:
    begin(store, "+49 30 111", "0049 30 222", "+4930333")
    assert store.do_not_call.add(["004930111"], "asked us to", NOON) == 1
    assert store.do_not_call.add(["+4930111"], "", NOON) == 0
    assert states(store) == {"waiting": 2, "blocked": 1}
    store.campaigns.append("spring", [recipient("+4930444")], NOON)
    with store._begin() as connection:  # as of a server that has appended meanwhile
        connection.exec_driver_sql("INSERT INTO do_not_call VALUES ('+4930444', '', '', 0, '')")
    calls = claimed(store)
    assert [due.to for due in calls] == ["0049 30 222", "+4930333"]
    assert states(store) == {"dialling": 2, "blocked": 2}
    numbers, total = store.do_not_call.listed()
    assert (numbers[0]["number"], numbers[0]["reason"], total) == ("004930111", "asked us to", 2)
    assert store.do_not_call.remove("+49 30 111")
    assert not store.do_not_call.remove("+49 30 111")
    with pytest.raises(CampaignError, match="number: 'ann' is no number"):
        store.do_not_call.add(["ann"], "", NOON)


def test_a_tenants_list_is_for_its_campaigns_alone(store: CallStore) -> None:
    store.do_not_call.add(["+4930111"], "", NOON, "acme")
    store.do_not_call.add(["+4930222"], "", NOON)
    for tenant in ("acme", "beta"):
        some = [recipient("+4930111"), recipient("+4930222"), recipient("+4930333")]
        store.campaigns.add(tenant, {"at_once": 9, "per_second": 9}, some, NOON, tenant=tenant)
    assert sorted(due.to for due in claimed(store)) == ["+4930111", "+4930333", "+4930333"]
    assert not store.do_not_call.remove("+4930111", "beta")
    assert [one["tenant"] for one in store.do_not_call.listed()[0]] == ["", "acme"]
    assert store.do_not_call.listed("beta") == ([], 0)


def test_a_campaign_of_which_all_are_blocked_is_completed(store: CallStore) -> None:
    begin(store, "+4930111")
    store.do_not_call.add(["+4930111"], "", NOON)
    assert claimed(store) == []
    assert store.campaigns.show("spring")["state"] == "completed"


# --- reports, and what is deleted ---


def test_the_report_has_all_recipients_and_no_formulas(store: CallStore) -> None:
    some = [
        recipient("+49301", "=HYPERLINK(1)", variables={"name": "@SUM(1)", "n": 3}),
        recipient("4711", variables={"a list": [1, 2]}),
    ]
    store.campaigns.add("spring", {"per_second": 50}, some, NOON)
    first, second = claimed(store)
    end(store, first, **{**BUSY, "end_reason": "=cmd|' /C calc'!A0"})
    end(store, second)
    lines = list(csv.reader("".join(store.campaigns.report("spring")).splitlines()))
    header = lines[0]
    found = [dict(zip(header, line, strict=True)) for line in lines[1:]]
    assert header[-3:] == ["name", "n", "a list"]
    assert [row["outcome"] for row in found] == ["busy", "answered"]
    assert [row["state"] for row in found] == ["waiting", "done"]
    assert found[0]["id"] == "'=HYPERLINK(1)"
    assert found[0]["name"] == "'@SUM(1)"
    assert found[0]["reason"] == "'=cmd|' /C calc'!A0"
    assert (found[0]["call_id"], found[0]["n"], found[1]["a list"]) == (first.call, "3", "[1, 2]")
    assert not [cell for line in lines for cell in line if cell[:1] in ("=", "+", "-", "@")]
    with pytest.raises(UnknownCampaign):
        next(store.campaigns.report("winter"))


def test_a_person_is_forgotten_in_campaigns_too(store: CallStore) -> None:
    begin(store, "+49 30 111", "+4930222")
    assert store.deletion.forget_number("4a9-30c111", NOON).recipients == 0
    assert store.deletion.forget_number("004930111", NOON).recipients == 1
    assert states(store) == {"waiting": 1, "cancelled": 1}
    assert "30111" not in "".join(store.campaigns.report("spring")).replace(" ", "")
    assert [due.to for due in claimed(store)] == ["+4930222"]


def test_old_campaigns_are_deleted(store: CallStore) -> None:
    begin(store, "+4930111")
    begin(store, "+4930222", name="running")
    for due in claimed(store):
        if due.campaign == "spring":
            end(store, due)
    assert store.campaigns.expire(NOON) == 0
    assert store.campaigns.expire(NOON + 1e6) == 1
    assert [each["campaign_id"] for each in store.campaigns.listed()] == ["running"]
