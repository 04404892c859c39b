"""The connections of a session: sockets and data channels that its events are sent to."""

from itertools import count
from typing import Protocol

from offhook.web.realtime.conversation.actions import Send


class Client(Protocol):
    """Where events are sent: a socket or a data channel."""

    def send(self, text: str) -> None: ...

    def close(self, code: int, reason: str) -> None: ...


class Clients:
    """The clients of one session by number. One of them may own it: the one that has begun it."""

    def __init__(self) -> None:
        self._by_number: dict[int, Client] = {}
        self._numbers = count(1)
        self.owner: int | None = None
        """The client that has begun the session, to which its audio is sent; None if all have
        joined it."""

    def attach(self, client: Client, *, owner: bool) -> int:
        """Adds a client and returns its number."""
        number = next(self._numbers)
        self._by_number[number] = client
        if owner:
            self.owner = number
        return number

    def detach(self, number: int) -> None:
        self._by_number.pop(number, None)

    def send(self, send: Send) -> None:
        """Sends an event to the client that it is for, audio to the owner, others to all."""
        to = self.owner if send.audio else send.to
        if to is None and not send.audio:
            for client in tuple(self._by_number.values()):
                client.send(send.event)
        elif to in self._by_number:
            self._by_number[to].send(send.event)

    def close(self, code: int, reason: str, to: int | None = None) -> None:
        """Closes the connection of one client, or of all."""
        for number in tuple(self._by_number) if to is None else (to,):
            self._by_number[number].close(code, reason)
