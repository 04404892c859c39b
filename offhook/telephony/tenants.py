"""Whose a call is, where several customers share the server: asked of the edge."""

from typing import Protocol

from offhook.media.leg import CallInfo


class Tenants(Protocol):
    """The customers who share a server."""

    def named(self, info: CallInfo, agent: str | None) -> CallInfo:
        """Return a call to this agent, None for no agent, with its tenant."""

    def check(
        self, info: CallInfo, agent: str | None, call_id: str = "", extension: str = ""
    ) -> None:
        """Raises an exception whose text says why the call is refused: "tenant" if its tenant has
        as many lines as it may, apart from this call's, "foreign" if `is_foreign`."""

    def is_foreign(self, info: CallInfo, agent: str | None, extension: str) -> bool:
        """Return whether the agent or the extension that a call is to reach is another tenant's."""


class NoTenants:
    """Of a server that nobody shares."""

    def named(self, info: CallInfo, agent: str | None) -> CallInfo:
        return info

    def check(
        self, info: CallInfo, agent: str | None, call_id: str = "", extension: str = ""
    ) -> None:
        pass

    def is_foreign(self, info: CallInfo, agent: str | None, extension: str) -> bool:
        return False
