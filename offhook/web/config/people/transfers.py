"""`[transfers.NAME]`: people to whom agents transfer callers with a briefing."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.trunks.extension import PREFIX
from offhook.telephony.sip.trunks.trunks import SipSettings
from offhook.web.config.section import Section
from offhook.web.config.targets import checked_target

MAX_PEOPLE = 32
"""Maximum people of one transfer; more are a fault of the configuration."""
EXTENSION_KEYS = frozenset("0123456789*#ABCD,")


def split_extension(address: str) -> tuple[str, str]:
    """Returns the address that is called, and the keys that are pressed after the answer; each
    comma among them waits half a second."""
    number, comma, keys = address.partition(",")
    return (number.strip(), keys.strip()) if comma else (address, "")


def _person(address: str) -> str:
    number, keys = split_extension(address)
    if unknown := set(keys) - EXTENSION_KEYS:
        raise ValueError(
            f"{address!r}: {sorted(unknown)[0]!r} is no key: after the comma stand the keys of the "
            'extension, as in "+4930123456,,12"'
        )
    return ",".join(filter(None, (checked_target(number), keys)))


Person = Annotated[str, AfterValidator(_person)]
"""A number, an extension of this server or a SIP address, with the keys of a menu after a comma."""


class Ringing(Section):
    """How people are called who are to speak with a caller."""

    ring_seconds: float = Field(20, gt=0, le=600)
    """Time in s for which the phone of each rings."""
    brief_seconds: float = Field(60, ge=5, le=600)
    """Time in s from the answer in which a person has to accept or decline."""
    music: str = ""
    """Sound file, 10 minutes at most, that the caller hears meanwhile; empty: quiet tones."""
    meanwhile: Literal["music", "agent"] = "music"
    """What the caller has until somebody accepts: music, or the agent, which goes on with the
    conversation if it is a language model."""
    trunk: str = ""
    """Trunk by which they are called; empty: the one whose server is in their address, or else the
    caller's, or the first with a server."""
    carrier: str = ""
    """Carrier by which they are called, in place of a trunk."""

    def extension_of(self, number: str, extensions: Collection[str]) -> str:
        """Returns the extension that somebody is called at: "ext:101" always, and "101" unless
        numbers go over a trunk or carrier; "" for none."""
        bare = number.removeprefix(PREFIX)
        is_ours = bare != number or not (self.trunk or self.carrier)
        return bare if is_ours and bare in extensions else ""

    @field_validator("music")
    @classmethod
    def _is_there(cls, music: str) -> str:
        if music:
            try:
                Path(music).expanduser().open("rb").close()
            except OSError as error:
                raise ValueError(f"{music} cannot be read: {error.strerror}") from error
        return music


class BriefedTransfer(Ringing):
    """People who are rung, are told who calls and why, and accept or decline."""

    to: tuple[Person, ...] = Field(min_length=1, max_length=MAX_PEOPLE, examples=[["+4930123456"]])
    """Their numbers or SIP addresses, or extensions of this server, "ext:101"; keys of a menu
    follow after a comma: "+4930123456,,12"."""
    ring: Literal["in_turn", "all"] = "in_turn"
    """Whether they are rung one after the other, or all at once; the first who accepts has the
    caller."""


def faults_of_ringing(
    where: str,
    ringing: Ringing,
    people: Iterable[str],
    sip: SipSettings | None,
    carriers: Collection[str],
) -> list[str]:
    """Returns what is wrong with how `people` are called."""
    extensions = sip.extensions if sip is not None else {}
    trunks = {trunk.name: trunk.server for trunk in sip.trunks} if sip is not None else {}
    numbers = [split_extension(address)[0] for address in people]
    for number in numbers:
        if number.startswith(PREFIX) and not ringing.extension_of(number, extensions):
            there = ", ".join(extensions) or "none"
            bare = number.removeprefix(PREFIX)
            return [f"{where}: there is no [sip.extensions.{bare}] (there: {there})"]
    if ringing.trunk and ringing.carrier:
        return [f"{where}: trunk and carrier exclude each other"]
    if ringing.carrier:
        if ringing.carrier in carriers:
            return []
        return [f"{where}.carrier: no carrier is called {ringing.carrier!r}"]
    if ringing.trunk and not trunks.get(ringing.trunk):
        return [f"{where}.trunk: no trunk called {ringing.trunk!r} has a server"]
    outside = [number for number in numbers if not ringing.extension_of(number, extensions)]
    if outside and not any(trunks.values()):
        return [f"{where}: needs a trunk with a server, or carrier: {outside[0]} is called by it"]
    return []


def host_of(address: str) -> str:
    """Returns the host of a SIP address; "" for a number."""
    try:
        return Uri.parse(address).host
    except SipError:
        return ""
