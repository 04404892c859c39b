"""What a tenant's key may ask for in the body of a request."""

from offhook.media.leg import CallInfo
from offhook.web.config.config import Config
from offhook.web.config.people.tenants import owner, owner_of_agent, owner_of_number, tenant_of
from offhook.web.edge.placing.requests import CallOptions, outbound_routes
from offhook.web.http.access import Refusal, TokenRequest


def check_placed(config: Config, tenant: str, asked: CallOptions) -> None:
    """Checks that a tenant, "" being the operator, may have such a call placed: by an agent of its
    own, over a trunk or carrier of its own, or with a number of its own over one that is nobody's.
    Raises Refusal."""
    if not tenant:
        return
    _check_agent(config, tenant, asked.agent)
    way = asked.carrier or asked.trunk
    its = owner(config.tenants, "carriers" if asked.carrier else "trunks", way)
    shared = not its and way in outbound_routes(config)
    if its == tenant or (shared and owner_of_number(config.tenants, asked.caller) == tenant):
        return
    words = "name one of this tenant's; over a shared one, caller has to be one of its numbers"
    raise Refusal(403, f"trunk or carrier: {words}")


def tenant_placed(config: Config, asked: CallOptions) -> str:
    """Returns whose the calls are that are placed so."""
    edge, way = ("carrier", asked.carrier) if asked.carrier else ("sip", asked.trunk)
    info = CallInfo(edge, "outbound", caller=asked.caller, trunk=way)
    return tenant_of(config.tenants, info, asked.agent)


def check_token(config: Config, tenant: str, asked: TokenRequest) -> None:
    """Checks that a tenant may give somebody such a token: for calls to an agent of its own. Raises
    Refusal."""
    if tenant:
        _check_agent(config, tenant, asked.agent)
        if asked.scope != ("call",):
            raise Refusal(403, 'scope: ["call"] is what the key of a tenant may give')


def _check_agent(config: Config, tenant: str, agent: str) -> None:
    if owner_of_agent(config.tenants, agent) != tenant:
        its = config.tenants[tenant].agents if tenant in config.tenants else ()
        raise Refusal(403, f"agent: name one of this tenant's: {', '.join(its) or 'it has none'}")
