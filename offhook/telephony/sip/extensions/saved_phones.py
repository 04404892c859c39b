"""The phones of an extension as they are saved, so that those by UDP ring at once after a restart.

A phone that came by a connection is not saved: that ends with the server, and the phone registers
again by itself. The password is not saved either, but for a byte by which a new one is noticed.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from offhook.telephony.sip.extensions.registrar import (
    MAX_CONTACTS,
    MAX_EXPIRES_S,
    Binding,
    Bindings,
)
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.headers import MAX_SEQUENCE_NUMBER
from offhook.telephony.sip.messages.uri import Uri

MAX_SAVED_CHARACTERS = 4000
"""Limit of a phone's values together; one beyond it is not saved, and rings after a restart once it
has registered again."""

Line = Annotated[str, Field(pattern=r"^[^\r\n]*$")]
"""Text that may stand in a header: none of it begins another one."""
Address = tuple[Line, Annotated[int, Field(ge=1, le=65_535)]]


class _Phone(BaseModel):
    """The form in which a phone is saved. Times are seconds since 1970."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    key: str
    contact: Line
    remote: Address
    local: Address
    path: tuple[Line, ...]
    call_id: str
    cseq: Annotated[int, Field(ge=0, le=MAX_SEQUENCE_NUMBER)]
    expires: float
    since: float
    user_agent: Line


class _Extension(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    v: Literal[1] = 1
    check: int
    phones: tuple[_Phone, ...] = Field(max_length=MAX_CONTACTS)


@dataclass(frozen=True)
class SavedPhones:
    """The phones of one extension, as text, and when the last of them expires."""

    text: str
    expires: float
    """In seconds since 1970."""


def pack(number: str, password: str, phones: Bindings, epoch: float) -> SavedPhones | None:
    """Return what is saved of an extension's phones; None if there is nothing. `epoch` is the time
    since 1970 at which the monotonic clock was 0."""
    kept = tuple(_kept(phones, epoch))
    if not kept:
        return None
    text = _Extension(check=_check(number, password), phones=kept).model_dump_json()
    return SavedPhones(text, max(phone.expires for phone in kept))


def _kept(phones: Bindings, epoch: float) -> Iterator[_Phone]:
    for key, binding in phones:
        phone = _Phone(
            key=key,
            contact=str(replace(binding.contact, password=None)),
            remote=binding.flow.remote,
            local=binding.flow.local,
            path=binding.path,
            call_id=binding.call_id,
            cseq=binding.cseq,
            expires=epoch + binding.expires_at,
            since=epoch + binding.since,
            user_agent=binding.user_agent,
        )
        if len(phone.model_dump_json()) <= MAX_SAVED_CHARACTERS:
            yield phone


def unpack(
    number: str, password: str, text: str, local: Iterable[Address], epoch: float, now: float
) -> Bindings:
    """Return the phones that are still there: those at an address `local` at which we listen. There
    are none once the password is another one. Raises ValueError for what was not saved by us."""
    saved = TypeAdapter(_Extension).validate_json(text)
    if saved.check != _check(number, password):
        return ()
    listening = set(local)
    found = []
    for phone in saved.phones:
        ip_address(phone.remote[0].partition("%")[0])
        contact = Uri.parse(phone.contact)
        flow = Flow("UDP", phone.remote, phone.local)
        expires_at = min(phone.expires - epoch, now + MAX_EXPIRES_S)
        binding = Binding(
            *(contact, flow, phone.path, phone.call_id, phone.cseq, expires_at),
            since=min(phone.since - epoch, now),
            user_agent=phone.user_agent,
        )
        if now < expires_at and phone.local in listening:
            found.append((phone.key, binding))
    return tuple(found)


def _check(number: str, password: str) -> int:
    """Return a byte that is another one with another password, in all but one case of 256. More
    would help whoever reads the store to guess it."""
    return hashlib.sha256(f"{number}:{password}".encode()).digest()[0]
