"""Sends copies of SIP messages and RTCP reports to a HEP collector over UDP.

Nothing waits for the collector: what cannot be sent at once is dropped.
"""

import asyncio
import errno
import socket
from ipaddress import ip_address
from time import time

from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.telephony.sip.capture.hep import RTCP, SIP, encode, reports_as_json
from offhook.telephony.sip.capture.hep_settings import HepSettings
from offhook.telephony.sip.capture.packet import Address, Captured
from offhook.telephony.sip.trace import TraceEntry

RESOLVE_INTERVAL_S = 60.0
"""Interval of looking up the collector's name, also after a failure. Until its address is known
nothing is sent."""


class HepExport:
    """Sends to one collector, or none."""

    def __init__(self) -> None:
        self.dropped = 0
        """Packets that were not sent: no address yet, no room in the kernel, no collector there."""
        self._settings: HepSettings | None = None
        self._socket: socket.socket | None = None
        self._connected: Address | None = None
        self._tasks = TaskSet()
        """The look-up of the collector's name."""

    @property
    def on(self) -> bool:
        """Whether there is a collector."""
        return self._settings is not None

    def use(self, settings: HepSettings | None) -> None:
        """Send to this collector from now on; None: to none. Needs a running event loop."""
        if settings == self._settings:
            return
        self._settings = settings
        self._disconnect()
        if settings is None:
            return
        host, port = settings.address
        try:
            ip_address(host)
        except ValueError:
            self._tasks.spawn(self._resolve(host, port), "hep collector")
        else:
            self._connect(host, port)

    async def close(self) -> None:
        self._settings = None
        self._disconnect()
        await self._tasks.close()

    def _disconnect(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._socket is not None:
            self._socket.close()
        self._socket = self._connected = None

    def send_message(self, entry: TraceEntry) -> None:
        """Send a SIP message."""
        self._send(entry.captured(), SIP, entry.call_id)

    def send_rtcp(
        self, data: bytes, sent: bool, local: Address, remote: Address, call_id: str
    ) -> None:
        """Send the reports of an RTCP datagram of the call with this Call-ID. `data` is
        unencrypted."""
        source, destination = (local, remote) if sent else (remote, local)
        for report in reports_as_json(data):
            self._send(Captured(time(), "UDP", source, destination, report), RTCP, call_id)

    def _send(self, packet: Captured, kind: int, call_id: str) -> None:
        if self._settings is None:
            return
        if self._socket is None:
            self.dropped += 1
            return
        try:
            self._socket.send(encode(packet, kind, call_id, self._settings))
        except OSError as error:
            self.dropped += 1
            if error.errno != errno.EAGAIN:
                self._warn(str(error.strerror))

    async def _resolve(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
                self._connect(*found[0][4][:2])
            except OSError as error:
                self._warn(str(error.strerror))
            await asyncio.sleep(RESOLVE_INTERVAL_S)

    def _connect(self, host: str, port: int) -> None:
        if self._connected == (host, port):
            return
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.setblocking(False)
        try:
            sock.connect((host, port))  # an absent collector is then reported (ICMP)
        except OSError as error:
            sock.close()
            self._warn(str(error.strerror))
            return
        if self._socket is not None:
            self._socket.close()
        self._socket, self._connected = sock, (host, port)

    def _warn(self, why: str) -> None:
        where = self._settings.collector if self._settings is not None else ""
        logger.bind(a_minute="hep").warning("HEP collector {}: {}", where, why)
