"""A member who is not heard raises the hand by keys of his phone."""

from pathlib import Path

from tests.support.waiting import until
from tests.web.edge.rooms.ends import desk_phone
from tests.web.edge.rooms.test_conferences import conference, rooms, until_members
from tests.web.edge.rooms.test_supervision import calling

HANDS = ("member_raised_hand", "member_lowered_hand")


async def test_a_listener_raises_a_hand_and_may_speak(tmp_path: Path) -> None:
    async with desk_phone() as (phone, port), calling(tmp_path, phone=port) as call:
        boss = await call.ends.dialled(call.id, "boss", 1500, phone, role="listen")
        boss.leg.send_dtmf("*5")
        await until(lambda: call.events(*HANDS))
        assert (await call.ends.members(call.id))["boss"]["hand"]
        boss.leg.send_dtmf("*5")
        await until(lambda: len(call.events(*HANDS)) == 2)
        assert not (await call.ends.members(call.id))["boss"]["hand"]
        boss.leg.send_dtmf("1*55*5")  # once
        await until(lambda: len(call.events(*HANDS)) == 4)
        boss.leg.send_dtmf("*5")
        await until(lambda: len(call.events(*HANDS)) == 5)
        await call.ends.change(call.id, "boss", role="speak")
        assert not (await call.ends.members(call.id))["boss"]["hand"]
        boss.leg.send_dtmf("*5")  # is heard, and needs none
        await call.keys("7")
        found = [(event["event"], event["member"]) for event in call.events(*HANDS)]
        assert found == [(HANDS[n % 2], "boss") for n in range(6)]


async def test_a_muted_caller_of_a_conference_raises_a_hand(tmp_path: Path) -> None:
    async with conference(tmp_path) as ends:
        for name in ("a", "b"):
            await ends.by_sip(name, 450)
            ends.by_name[name].leg.send_dtmf("4711#")
        await until_members(ends, 2)
        [room] = rooms(ends)
        muted = next(iter(await ends.members(room)))
        await ends.change(room, muted, muted=True)
        for end in ends.by_name.values():
            end.leg.send_dtmf("*5")
        while not (await ends.members(room))[muted]["hand"]:
            await ends.by_name["a"].listens(1)
        assert [one["hand"] for one in (await ends.members(room)).values()].count(True) == 1
        await ends.change(room, muted, muted=False)
        assert not (await ends.members(room))[muted]["hand"]
