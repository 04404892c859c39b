"""A phone's call that somebody forgot to hang up."""

import asyncio

from offhook.web.config.config import Config
from offhook.web.edge.edge_io import Edge
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.scripted_peer import udp_peer
from tests.telephony.sip.scripted_sound import sound


async def test_a_call_that_reached_its_longest_duration_is_hung_up_with_that_reason():
    trunk = {"name": "pbx", "addresses": ["127.0.0.1"]}
    table = {
        "server": {"port": 0, "max_call_minutes": 0.5 / 60, "drain_seconds": 0},
        "webrtc": {"addresses": ["127.0.0.1"]},
        "agent": {"kind": "silent"},
        "sip": {"udp": free_port(), "tcp": None, "trunks": [trunk]},
    }
    edge = Edge(Config.model_validate(table))
    await edge.start()
    try:
        await until(lambda: edge.ready)
        async with udp_peer(edge.sip) as far:
            with sound() as line:
                line.aim(await far.call(line.sdp()))
                await line.says(0.3)
                assert "BYE" not in far.came
                await until(lambda: "BYE" in far.came)  # once it was told so
                bye = await far.is_hung_up()
                assert "the call reached its longest duration" in bye.headers.get("Reason")
        await until(lambda: edge.records.ended)
        [(record, _)] = [(ended.record, ended) for ended in edge.records.ended.values()]
        assert (record.end_reason, record.ended_by) == (
            "the call reached its longest duration",
            "local",
        )
        assert record.duration_seconds > 0
    finally:
        await asyncio.wait_for(edge.close(), HANGS_S)
