"""`[transfers.NAME]`: people to whom agents transfer callers with a briefing."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.uri import Uri
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
"""A number or SIP address, with the keys of an extension after a comma."""


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
    """Their numbers or SIP addresses; keys of an extension follow after a comma:
    "+4930123456,,12"."""
    ring: Literal["in_turn", "all"] = "in_turn"
    """Whether they are rung one after the other, or all at once; the first who accepts has the
    caller."""


def faults_of_ringing(
    where: str, ringing: Ringing, trunks: Mapping[str, str], carriers: Collection[str]
) -> list[str]:
    """Returns what is wrong with who is called; `trunks` are the servers of all by their names."""
    if ringing.trunk and ringing.carrier:
        return [f"{where}: trunk and carrier exclude each other"]
    if ringing.carrier:
        if ringing.carrier in carriers:
            return []
        return [f"{where}.carrier: no carrier is called {ringing.carrier!r}"]
    if ringing.trunk and not trunks.get(ringing.trunk):
        return [f"{where}.trunk: no trunk called {ringing.trunk!r} has a server"]
    if not any(trunks.values()):
        return [f"{where}: needs a trunk with a server, or carrier: people are called by it"]
    return []


def host_of(address: str) -> str:
    """Returns the host of a SIP address; "" for a number."""
    try:
        return Uri.parse(address).host
    except SipError:
        return ""
