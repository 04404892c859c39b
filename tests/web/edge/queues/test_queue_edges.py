"""Several servers with one Redis have one queue, and the places outlive a server."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from offhook.web.edge.queues import queue as core
from offhook.web.edge.queues import store_io
from offhook.web.edge.queues.queue import Queue, Ticket
from offhook.web.edge.queues.store_io import PREFIX, RedisOrders
from tests.support.waiting import until
from tests.web.edge.resume.test_recovery_edges import calling, dies, pair, saved
from tests.web.edge.resume.test_resume import ResumableEdge

TRUNKS = [
    {"name": "pbx", "addresses": ["127.0.0.1"]},
    {"name": "people", "server": "127.0.0.2", "options_seconds": 0},
]
TABLE = {"queues": {"support": {"members": ["+4930"], "announce_seconds": 0}}}


@pytest.mark.usefixtures("loopback", "quick")
async def test_callers_of_a_server_that_dies_have_their_places_at_another(
    redis_url: str, tmp_path: Path
) -> None:
    async with pair(redis_url, tmp_path, TABLE, trunks=TRUNKS) as (first, second):
        await first.queues.pause("support", "+4930", True)
        waiting: list[asyncio.Task[None]] = []

        async def order(edge: ResumableEdge) -> list[tuple[str, str]]:
            def place(queue: Queue) -> list[tuple[str, str]]:
                return [(t.id, t.server) for t in queue.order]

            found: list[tuple[str, str]] = await edge.queues.change("support", place)
            return found

        async def waits(edge: ResumableEdge, count: int) -> None:
            (call,) = (c for c in edge.conversations.values() if not c.leg.place)  # type: ignore[union-attr]
            waiting.append(asyncio.create_task(call.transfer("queue:support")))  # type: ignore[union-attr]
            async with asyncio.timeout(45):
                while len(await order(edge)) < count:
                    await asyncio.sleep(0.05)

        async with calling(first) as one, calling(first) as two, calling(second) as three:
            for number, (edge, phone) in enumerate(
                ((first, one), (first, two), (second, three)), 1
            ):
                turns = len(edge.turns())
                phone.connect(await phone.call())
                await phone.speaks_to_us()
                await until(lambda edge=edge, turns=turns: len(edge.turns()) > turns)
                await waits(edge, number)
            before = await order(second)
            assert [server for _, server in before] == [
                *(first.queues._server, first.queues._server, second.queues._server)
            ]
            await saved(first)
            await dies(first)
            await asyncio.gather(one.moved(), two.moved())
            async with asyncio.timeout(45):
                while {server for _, server in await order(second)} != {second.queues._server}:
                    await asyncio.sleep(0.05)
            assert [ticket for ticket, _ in await order(second)] == [t for t, _ in before]
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


MEMBERS = ("a", "b", "c", "d", "e")


class Server:
    """One that has callers in a queue, whose people accept at once and speak for a moment."""

    def __init__(self, name: str, url: str, seed: int) -> None:
        self.name = name
        self.orders = RedisOrders(url)
        self.queue = Queue(MEMBERS, "longest_idle", 0)
        self.here: dict[str, Ticket] = {}
        self.speaking: dict[str, str] = {}
        self.served: list[str] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self._random = random.Random(seed)

    async def change(self, change: Any) -> Any:
        return await self.orders.change("busy", self.queue, change)

    async def joins(self, ticket: Ticket) -> None:
        ticket.server = self.name
        self.here[ticket.id] = ticket
        await self.change(lambda queue: queue.join(ticket, time.time()))

    async def leaves(self, ticket: Ticket) -> None:
        if self.here.pop(ticket.id, None) is not None:
            await self.change(lambda queue: queue.leave(ticket.id, time.time()))

    async def run(self) -> None:
        while True:
            offered = await self.change(self._assign)
            for ticket_id, address in offered:
                if ticket_id in self.here and await self.change(
                    lambda q, i=ticket_id, a=address: q.accepted(i, a, time.time())
                ):
                    del self.here[ticket_id]
                    self.served.append(ticket_id)
                    self.speaking[ticket_id] = address
                    self.tasks.add(asyncio.create_task(self._speaks(ticket_id, address)))
            await asyncio.sleep(0.02)

    def _assign(self, queue: Queue) -> list[tuple[str, str]]:
        now = time.time()
        queue.renew(self.name, self.here.values(), self.speaking, now)
        queue.assign(now)
        return [(t.id, t.offered[0]) for t in queue.order if t.server == self.name and t.offered]

    async def _speaks(self, ticket_id: str, address: str) -> None:
        await asyncio.sleep(self._random.uniform(0.05, 0.15))
        del self.speaking[ticket_id]
        await self.change(lambda queue: queue.released(address, ticket_id, time.time()))

    def dies(self, running: "asyncio.Task[None]") -> list[Ticket]:
        """Returns its callers, who come back elsewhere."""
        running.cancel()
        for task in self.tasks:
            task.cancel()
        left, self.here = list(self.here.values()), {}
        return left


async def test_sixty_callers_five_people_and_a_server_that_dies(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one order; nobody is lost or served twice, also of those who hang up."""
    monkeypatch.setattr(core, "LEASE_S", 3.0)
    monkeypatch.setattr(store_io, "EXCHANGE_S", 45.0)
    monkeypatch.setattr(store_io, "MAX_TRIES", 10_000)
    with Redis.from_url(redis_url) as redis:
        redis.delete(PREFIX + "busy")
    first, second = Server("first", redis_url, 1), Server("second", redis_url, 2)
    began = time.time()
    tickets = [Ticket(f"t{n:02}", f"c{n}", "+49", began + n / 1000) for n in range(60)]
    await first.change(lambda queue: [queue.pause(address, True) for address in MEMBERS])
    running = [asyncio.create_task(one.run()) for one in (first, second)]
    for number, ticket in enumerate(tickets):
        await (first if number % 2 else second).joins(ticket)
    await first.change(lambda queue: [queue.pause(address, False) for address in MEMBERS])
    impatient = tickets[50:54]
    for ticket in impatient:
        await (first if int(ticket.id[1:]) % 2 else second).leaves(ticket)
    await until(lambda: len(first.served) + len(second.served) >= 15)
    for ticket in first.dies(running[0]):
        await second.joins(ticket)
    await until(lambda: not second.here)
    running[1].cancel()
    await asyncio.gather(*running, *first.tasks, *second.tasks, return_exceptions=True)
    served = [*first.served, *second.served]
    wanted = {ticket.id for ticket in tickets} - {ticket.id for ticket in impatient}
    assert sorted(served) == sorted(wanted)
    for one in (first, second):
        until_death = one.served[: len(first.served)]
        assert until_death == sorted(until_death)
    after = second.served[len(second.served) - 30 :]
    assert after == sorted(after)
    for server in (first, second):
        await server.orders.close()


async def test_without_redis_each_server_goes_on_alone() -> None:
    orders, there = RedisOrders("redis://127.0.0.1:1"), Queue(MEMBERS, "longest_idle", 0)
    ticket = Ticket("t", "c", "+49", 1)
    for _ in range(2):
        await orders.change("alone", there, lambda queue: queue.join(ticket, 1))
    assert [t.id for t in there.order] == ["t"]
    await orders.close()


async def test_what_is_no_state_is_replaced(redis_url: str) -> None:
    with Redis.from_url(redis_url) as redis:
        redis.set(PREFIX + "odd", b'{"tickets": 7}')
        orders, there = RedisOrders(redis_url), Queue(MEMBERS, "longest_idle", 0)
        ticket = Ticket("t", "c", "+49", 1)
        await orders.change("odd", there, lambda queue: queue.join(ticket, 1))
        assert [t.id for t in there.order] == ["t"]
        await orders.close()
