"""All transactions of one process, by what matches messages to them (RFC 3261 §17.1.3, §17.2.3)."""

from collections.abc import Iterable

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.transactions.matching import identity, server_key, weight
from offhook.telephony.sip.transactions.transaction import (
    ClientTransaction,
    Key,
    ServerTransaction,
    Transaction,
)

MAX_TRANSACTIONS = 10_000
"""Maximum client and server transactions; further requests are refused with 503 and Retry-After.
One lives for 32 s over UDP, so this is 150 calls a second, each with an INVITE and a BYE."""
MAX_BYTES = 64 * 1024 * 1024
"""Memory limit in bytes of the requests of server transactions; beyond it further requests are
refused with 503 and Retry-After."""


class TransactionTable:
    """Client and server transactions that have not terminated."""

    def __init__(self) -> None:
        self._clients: dict[Key, ClientTransaction] = {}
        self._servers: dict[Key, ServerTransaction] = {}
        self._by_flow: dict[Flow, dict[Transaction, None]] = {}
        self._seen: dict[Key, Key] = {}
        """Identity of requests outside dialogs (§8.2.2.2) → key of the first received."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._clients) + len(self._servers)

    def __contains__(self, transaction: ClientTransaction) -> bool:
        return transaction.key in self._clients

    @property
    def full(self) -> bool:
        """Whether no further request of a peer may be kept."""
        return len(self) >= MAX_TRANSACTIONS or self._bytes >= MAX_BYTES

    def client(self, response: Response) -> ClientTransaction | None:
        """Return the transaction of the request that a response is to."""
        transaction = self._clients.get((response.via.branch or "", response.cseq.method))
        if transaction is None or identity(response) != identity(transaction.request):
            return None
        return transaction

    def server(self, key: Key) -> ServerTransaction | None:
        return self._servers.get(key)

    def invite_of(self, key: Key) -> ServerTransaction | None:
        """Return the INVITE that a CANCEL with this key cancels."""
        return self._servers.get((*key[:-1], "INVITE"))

    def follows(self, request: Request, flow: Flow) -> bool:
        """Return whether this request retransmits or cancels a known one from the same host."""
        key = server_key(request)
        known = self._servers.get(key)
        if request.method == "CANCEL":
            known = known or self.invite_of(key)
        return known is not None and known.flow.remote[0] == flow.remote[0]

    def on_flow(self, flow: Flow) -> Iterable[Transaction]:
        """Return the transactions of a flow."""
        return tuple(self._by_flow.get(flow, ()))

    def add_client(self, transaction: ClientTransaction) -> None:
        self._clients[transaction.key] = transaction
        self._by_flow.setdefault(transaction.flow, {})[transaction] = None

    def add_server(
        self, request: Request, key: Key, flow: Flow, response_flow: Flow
    ) -> ServerTransaction:
        """Make the transaction of a peer's request."""
        transaction = ServerTransaction(request, flow, key, response_flow)
        transaction.weight = weight(request)
        self._bytes += transaction.weight
        self._servers[key] = transaction
        self._by_flow.setdefault(flow, {})[transaction] = None
        if not request.to.tag:
            transaction.merged = self._seen.setdefault(identity(request), key) != key
        return transaction

    def remove(self, transaction: Transaction) -> None:
        on_flow = self._by_flow[transaction.flow]
        del on_flow[transaction]
        if not on_flow:
            del self._by_flow[transaction.flow]
        if isinstance(transaction, ServerTransaction):
            del self._servers[transaction.key]
            self._bytes -= transaction.weight
            seen = identity(transaction.request)
            if self._seen.get(seen) == transaction.key:
                del self._seen[seen]
        elif isinstance(transaction, ClientTransaction):
            del self._clients[transaction.key]
