"""Has a request with a tenant's key concern only what is the tenant's.

What is another's is answered as what does not exist: by the same handler, which is given an id that
nobody has.
"""

from aiohttp import web

from offhook.web.config.people.tenants import owner
from offhook.web.edge.calls_io import UnknownCall, found
from offhook.web.edge.history_io import ask, store_of
from offhook.web.edge.http_io import EDGE
from offhook.web.edge.placing.requests import EndedCall
from offhook.web.edge.queues.queues_io import UnknownQueue
from offhook.web.http.access_io import GRANT

NOBODYS_ID = ""
"""Stands in the place of an id that is another tenant's."""


async def restrict(request: web.Request) -> None:
    """Checks all ids in the path of an admitted request. One that is unknown here stays as it is: a
    sibling may know it, which then checks it too. Raises NoRecords, UnknownQueue."""
    tenant, ids = request[GRANT].tenant, request.match_info
    if not tenant:
        return
    if "call" in ids and await _tenant_of_call(request, ids["call"]) not in (None, tenant):
        ids["call"] = NOBODYS_ID
    if "campaign" in ids:
        its = await ask(request, store_of(request).campaigns.tenant_of, ids["campaign"])
        ids["campaign"] = ids["campaign"] if its == tenant else NOBODYS_ID
    tenants = request.app[EDGE].config.tenants
    if "name" in ids and owner(tenants, "queues", ids["name"]) != tenant:
        raise UnknownQueue("there is no such queue")


async def _tenant_of_call(request: web.Request, call_id: str) -> str | None:
    """Returns whose a call is, one in progress or one that is kept; None if it is unknown here."""
    edge = request.app[EDGE]
    if (held := edge.calls.get(call_id)) is not None:
        return held.leg.info.tenant
    try:
        call = found(edge, call_id)
    except UnknownCall:
        if edge.records.kept is None:
            return None
        kept = await ask(request, store_of(request).show, call_id)
        return None if kept is None else str(kept["tenant"])
    if isinstance(call, EndedCall):
        return call.record.tenant
    return call.info.tenant
