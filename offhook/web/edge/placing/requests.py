"""Requests for outgoing calls, and a description of who may call."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from offhook.media.answer_status import Mode
from offhook.telephony.call_progress_io import CallProgress
from offhook.telephony.call_record import CallRecord
from offhook.telephony.carriers.providers import provider_called
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.web.config.agents import MAX_SPOKEN_CHARS
from offhook.web.config.config import Config
from offhook.web.http.access import is_loopback

MAX_RING_S = 600
"""Maximum of `ring_seconds` in s; more is refused with 400."""
MAX_TEXT = 256
"""Maximum characters of a number, of a name, or of a header with its value; a longer one is refused
with 400."""
MAX_HEADERS = 32
"""Maximum SIP headers for a call to be placed; more are refused with 400."""


class DialRequestError(ValueError):
    """Raised for an invalid body of `POST /calls`; the message names the field."""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


Text = Annotated[str, Field(max_length=MAX_TEXT), AfterValidator(_printable)]


class CallOptions(BaseModel):
    """How a call is placed, whoever is called."""

    model_config = ConfigDict(extra="forbid", strict=True)

    trunk: Text = ""
    """Name of a SIP trunk."""
    carrier: Text = ""
    """Name of a carrier, instead of a trunk."""
    caller: Text = ""
    caller_name: Text = ""
    agent: Text = ""
    ring_seconds: float | None = Field(None, gt=0, le=MAX_RING_S)
    machine_detection: Mode | None = None
    """What is done about who answers: nothing ("off"), the agent is told ("detect"), or `message`
    is left on a machine ("message"); by default as the trunk or the agent has it."""
    message: str = Field("", max_length=MAX_SPOKEN_CHARS)
    """What is left on an answering machine; by default the agent's."""
    headers: dict[str, str] = Field({}, max_length=MAX_HEADERS)
    """Headers of the INVITE, named X-Something."""

    @field_validator("headers")
    @classmethod
    def _are_short(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if len(name) + len(value) > MAX_TEXT:
                raise ValueError(f"{name[:40]} is over {MAX_TEXT} characters")
        return headers


class DialRequest(CallOptions):
    """The body of `POST /calls`."""

    to: Text = Field(min_length=1)
    """A number or a SIP URI."""
    variables: dict[str, Any] = {}
    """Variables for the agent."""


def parse_dial(body: bytes) -> DialRequest:
    """Parses the body. Raises DialRequestError."""
    try:
        asked = DialRequest.model_validate_json(body)
    except ValidationError as error:
        raise dial_fault(error) from error
    check_options(asked)
    return asked


def dial_fault(error: ValidationError) -> DialRequestError:
    """Returns what is wrong, with the name of each field."""
    faults = (
        f"{'.'.join(map(str, e['loc']))}: {e['msg'].removeprefix('Value error, ')}"
        for e in error.errors()
    )
    return DialRequestError("; ".join(f.removeprefix(": ") for f in faults))


def check_options(asked: CallOptions) -> None:
    """Checks what belongs together. Raises DialRequestError."""
    if asked.carrier and (asked.trunk or asked.headers or asked.caller_name):
        raise DialRequestError("trunk, headers and caller_name are of SIP, not of a carrier")
    if asked.message and asked.machine_detection != "message":
        raise DialRequestError('message: needs "machine_detection": "message"')


def by_sip(asked: DialRequest, usual_ring_s: float) -> Dial:
    """Converts the request to the endpoint's terms."""
    fields = asked.model_dump(exclude={"carrier"})
    fields["ring_seconds"] = asked.ring_seconds or usual_ring_s
    return Dial(**fields)


@dataclass(frozen=True)
class EndedCall:
    """What is kept of a phone call that has ended."""

    record: CallRecord
    progress: tuple[CallProgress, ...]
    caller_call: str
    """Id of the call whose caller it was placed for; its own if it was for itself."""


# --- who may call, and be called ---


def may_call(trunk: Trunk) -> str:
    """Describes whose calls a trunk accepts; empty for none."""
    ways = list(trunk.addresses)
    if trunk.server:
        ways += [f"its server {uri.host}" for uri in trunk.server_uris]
    if trunk.password and not trunk.register:
        ways.append(f"whoever has the password of {trunk.username!r}")
    return ", ".join(ways)


def callers_allowed(settings: SipSettings) -> str:
    """Describes who may call, for the log and for troubleshooting."""
    if settings.allow_anonymous:
        return "everybody who reaches this machine (allow_anonymous)"
    ways = [f"{trunk.name}: {ways}" for trunk in settings.trunks if (ways := may_call(trunk))]
    if settings.extensions:
        ways.append(f"extensions {', '.join(settings.extensions)}: phones with their passwords")
    others = "are refused (403)" if settings.unknown == "refuse" else "get no answer"
    if not ways:
        return f"nobody: no trunk has addresses, a server or a password; callers {others}"
    return f"{'; '.join(ways)}; others {others}"


def outbound_routes(config: Config) -> list[str]:
    """Returns the trunks and carriers over which this server can place calls."""
    trunks = [trunk.name for trunk in config.sip.trunks if trunk.server] if config.sip else []
    carriers = [c for c in config.carriers if provider_called(c.provider).api is not None]
    return trunks + [c.name for c in carriers if c.public_url]


def is_exposed(config: Config) -> bool:
    """Whether others than this machine can reach the server, according to the configuration."""
    urls = (urlsplit(carrier.public_url) for carrier in config.carriers if carrier.public_url)
    return (
        not config.server.local
        or bool(config.server.names)
        or any(not is_loopback(url.hostname or "") for url in urls)
    )


def fault_of_doors(config: Config) -> str:
    """Returns why this server must not start because strangers could place calls at the operator's
    cost; empty if it may."""
    server, ways = config.server, outbound_routes(config)
    if not ways or server.admin_key or server.admin_listen or not is_exposed(config):
        return ""
    return (
        f"server.admin_key: this server can call others (by {', '.join(ways)}) and is reached "
        "from elsewhere, so who places calls needs a key: set [server] admin_key, as by "
        "OFFHOOK_SERVER_ADMIN_KEY=$(openssl rand -hex 24), or give the operator's routes a "
        'listener of their own: [server] admin_listen = "unix:/run/offhook/admin.sock"'
    )


def operator_access(config: Config) -> str:
    """Describes who can access /calls and /sip/trace, for the log."""
    server = config.server
    where = f" at {server.admin_listen}" if server.admin_listen else ""
    if server.admin_key:
        own = " and, for what is its own, whoever has a tenant's key"
        return f"whoever has the admin_key{own if config.tenants else ''}{where}"
    if where:
        return f"whoever reaches{where.removeprefix(' at')}"
    return "this user and root, directly from this machine; others need [server] admin_key"


def is_risky(settings: SipSettings) -> bool:
    """Whether strangers from other machines may call."""
    return settings.allow_anonymous and not ip_address(settings.host).is_loopback
