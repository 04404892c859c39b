"""What well-known services require of the trunk that leads to them, beyond what SIP does.

Sources: Microsoft Teams, "Direct Routing - SIP protocol"; WhatsApp Business Platform, "SIP
Configuration Guide - WhatsApp Business Calling". The settings themselves know no service.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk

Check = Callable[[Trunk, SipSettings], bool]


@dataclass(frozen=True, slots=True)
class _Service:
    name: str
    domain: str
    """Of its servers."""
    rules: Sequence[tuple[Check, str]]
    """Whether a trunk fulfils it, and the setting that does."""


SERVICES = (
    _Service(
        "Microsoft Teams",
        "pstnhub.microsoft.com",
        (
            (lambda trunk, sip: trunk.transport == "TLS", 'transport = "TLS"'),
            (
                lambda trunk, sip: bool(trunk.public_name),
                "public_name, the name of this machine in Teams (an address gets 403)",
            ),
            (lambda trunk, sip: sip.tls is not None, "[sip] tls = 5061, where Teams calls us"),
            (
                lambda trunk, sip: bool(trunk.addresses),
                'addresses = ["52.112.0.0/14", "52.122.0.0/15"], where Teams calls from',
            ),
            (lambda trunk, sip: trunk.srtp == "required", 'srtp = "required"'),
            (
                lambda trunk, sip: any(codec != "opus" for codec in trunk.codecs),
                "codecs with G.722 or G.711",
            ),
        ),
    ),
    _Service(
        "WhatsApp",
        "meta.vc",
        (
            (lambda trunk, sip: trunk.transport == "TLS", 'transport = "TLS"'),
            (
                lambda trunk, sip: trunk.username.isdigit() and bool(trunk.password),
                "username, the number without +, and Meta's password for it",
            ),
            (
                lambda trunk, sip: (
                    trunk.caller_id == f"+{trunk.username}" and trunk.caller_id_header == "from"
                ),
                'caller_id, the number with +, and caller_id_header = "from"',
            ),
            (
                lambda trunk, sip: bool(trunk.public_name),
                "public_name, the SIP server that the number is set to",
            ),
            (lambda trunk, sip: sip.tls is not None, "[sip] tls = 5061, where WhatsApp calls us"),
            (
                lambda trunk, sip: trunk.webrtc or trunk.srtp == "required",
                'webrtc = true, or srtp = "required" for a number that is set to SDES',
            ),
            (lambda trunk, sip: "opus" in trunk.codecs, 'codecs with "opus"'),
            (lambda trunk, sip: not trunk.reinvites, "reinvites = false"),
            (lambda trunk, sip: not trunk.register, "register = false"),
        ),
    ),
)


def unmet_requirements(trunk: Trunk, settings: SipSettings) -> tuple[str, list[str]]:
    """Return the service that a trunk's server belongs to, and the settings that it lacks for it;
    "" and none for any other server."""
    hosts = [uri.host.lower() for uri in trunk.server_uris] if trunk.server else []
    for service in SERVICES:
        if any(h == service.domain or h.endswith(f".{service.domain}") for h in hosts):
            unmet = [words for fulfils, words in service.rules if not fulfils(trunk, settings)]
            return service.name, unmet
    return "", []
