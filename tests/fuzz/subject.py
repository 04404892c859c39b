"""An end of the network with a user agent under test; what must be so after every message."""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.headers import MAX_HEADERS, MAX_LINE_BYTES
from offhook.telephony.sip.messages.message import MAX_MESSAGE_BYTES, MessageError, parse_message
from offhook.telephony.sip.trace import Trace
from offhook.telephony.sip.trunks.keep_alive import KEEP_ALIVE
from offhook.telephony.sip.trunks.trunks import SipSettings
from offhook.telephony.sip.user_agent import UserAgent, UserAgentEvent
from tests.fuzz.network import Network, way
from tests.fuzz.result import MAX_MESSAGE_MS, Result

REPEATED = 3
"""What is repeated of a message may have become so many times longer by its escapes."""


class Subject(ABC):
    """It must not raise, answer in time, and send nothing but messages."""

    def __init__(
        self,
        network: Network,
        host: str,
        settings: SipSettings,
        result: Result,
        number: Callable[[], int],
    ) -> None:
        """`number`: of the message that comes next, over all ends."""
        self.host = host
        self.agent = UserAgent(settings, lambda flow: flow.local, self._flow_to)
        self.watched: Collection[int] = ()
        """Numbers of messages whose times are noted in any case."""
        self.times: dict[int, float] = {}
        """ms that messages took, by their number: those that took too long."""
        self.trace = Trace(500)
        network.ends[host] = self
        self._network = network
        self._result = result
        self._number = number
        self._chance: random.Random = network.chance
        self._asked: object = None
        """What came last, to be told with an exception."""
        self._readable = True
        """What is sent in answer to it must be a message."""

    @property
    def _now(self) -> float:
        return self._network.now

    def _flow_to(self, transport: TransportName, host: str, port: int) -> Flow:
        return way(transport, self.host, host, port)

    def receive(self, data: bytes, flow: Flow) -> None:
        number, agent, now = self._number(), self.agent, self._now
        self._asked = data
        malformed = agent.counts.malformed
        started = time.thread_time()
        try:
            self.trace.record(data, flow, False, now)
            agent.receive(data, flow, now)
        except Exception as error:
            self._result.raised(error, data)
        took = time.thread_time() - started
        self._result.spent += took
        if took * 1000 > MAX_MESSAGE_MS or number in self.watched:
            self.times[number] = round(took * 1000, 3)
        self._result.slowest_ms = max(self._result.slowest_ms, round(took * 1000, 3))
        self._readable = agent.counts.malformed == malformed
        self.work()
        self._readable = True

    def flow_failed(self, flow: Flow) -> None:
        self._do(lambda: self.agent.flow_failed(flow, self._now), flow)

    def get_timer(self) -> float | None:
        return self.agent.get_timer()

    def handle_timer(self) -> None:
        timer = self.agent.get_timer()
        if timer is not None and timer <= self._now:
            self._do(lambda: self.agent.handle_timer(self._now), "a timer")

    def _do(self, action: Callable[[], object], about: object) -> None:
        """Something that must not raise, and what comes of it."""
        try:
            action()
        except Exception as error:
            self._result.raised(error, (about, self._asked))
        self.work()

    def work(self) -> None:
        agent = self.agent
        while True:
            for data, flow in agent.messages_to_send():
                self._check(data)
                self.trace.record(data, flow, True, self._now)
                self._network.send(data, flow, self.host)
            for flow in agent.upkeep.keep_alives_to_send(self._now):
                self._network.send(KEEP_ALIVE, flow, self.host)
            event = agent.next_event()
            if event is None:
                return
            try:
                self._happened(event)
            except Exception as error:
                self._result.raised(error, (event, self._asked))

    def _check(self, data: bytes) -> None:
        """We send what we would read ourselves, unless what it repeats is at the limits."""
        if not self._readable:
            return
        try:
            parse_message(data)
        except MessageError as error:
            head = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
            longest = max(map(len, head))
            if longest > MAX_LINE_BYTES / REPEATED or len(head) > MAX_HEADERS:
                return
            if len(data) < MAX_MESSAGE_BYTES:
                self._result.raised(error, (data, self._asked))

    @abstractmethod
    def _happened(self, event: UserAgentEvent) -> None:
        """What the user agent tells."""
