"""SIP signalling of all callers of a process: one socket, one user agent."""

import socket
from collections.abc import Callable, Sequence
from time import monotonic

from benchmarks.processes.own_server import HOST
from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.network.timer_io import CoreTimer
from offhook.telephony.sip.network.udp_io import UdpSocket
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import Ended
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.telephony.sip.user_agent import SessionHappened, UserAgent

Happened = Callable[[object], None]
"""Called with a session's events."""


def address_towards(server: str) -> str:
    """Returns the address of this machine from which packets to an IPv4 address leave."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect((server, 9))
        address: str = route.getsockname()[0]
    return address


class Signalling:
    """Places calls over UDP to `servers`, IPv4 addresses; `on_data` is called with every datagram
    received."""

    def __init__(
        self,
        on_data: Callable[[bytes], None] = lambda data: None,
        servers: Sequence[str] = (HOST,),
        lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """`lost` returns whether the next datagram, of ours or theirs, gets lost."""
        self._on_data = on_data
        self._lost = lost
        self.host = address_towards(servers[0])
        """Our own address."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.bind((self.host, 0))
        self._socket = UdpSocket(sock, self._received)
        self._trunk = Trunk("server", addresses=tuple(servers))
        settings = SipSettings(udp=0, tcp=None, trunks=(self._trunk,), user_agent="offhook bench")
        self._agent = UserAgent(settings, lambda flow: flow.local, self._flow_to)
        self._calls: dict[Session, Happened] = {}
        self._timer = CoreTimer(self._agent.get_timer, self._due)

    @property
    def sessions(self) -> int:
        return self._agent.sessions

    def place(
        self, server: tuple[str, int], sdp: str, happened: Happened, caller: str = "caller"
    ) -> Session:
        """Sends an INVITE with this offer; `happened` gets its events until it has ended."""
        source, target = Uri("sip", caller, self.host), Uri("sip", "100", *server)
        session = self._agent.call(
            target,
            self._flow_to("UDP", *server),
            self._trunk,
            NameAddr(source),
            NameAddr(target),
            sdp,
            monotonic(),
        )
        self._calls[session] = happened
        self._work()
        return session

    def answer(self, session: Session, sdp: str) -> None:
        """Accepts a re-INVITE's offer."""
        session.answer_offer(sdp, monotonic())
        self._agent.session_changed(session, monotonic())
        self._work()

    def hang_up(self, session: Session) -> None:
        session.hang_up(monotonic())
        self._agent.session_changed(session, monotonic())
        self._work()

    def close(self) -> None:
        self._timer.cancel()
        self._socket.close()

    def _flow_to(self, transport: TransportName, host: str, port: int) -> Flow:
        return Flow(transport, (host, port), self._socket.local)

    def _received(self, data: bytes, flow: Flow) -> None:
        if self._lost():
            return
        self._on_data(data)
        self._agent.receive(data, flow, monotonic())
        self._work()

    def _work(self) -> None:
        while True:
            for data, flow in self._agent.messages_to_send():
                if not self._lost():
                    self._socket.send(data, flow.remote)
            event = self._agent.next_event()
            if event is None:
                break
            if not isinstance(event, SessionHappened):
                continue
            happened = self._calls.get(event.session)
            if isinstance(event.event, Ended):
                self._calls.pop(event.session, None)
            if happened is not None:
                happened(event.event)
        self._timer.update()

    def _due(self) -> None:
        self._agent.handle_timer(monotonic())
        self._work()
