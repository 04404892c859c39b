"""What is saved of a phone call, so that another edge continues it: JSON of 16 kB at most. Its
conversation is saved apart, see `saved_call`."""

from dataclasses import dataclass
from datetime import datetime

from pydantic import AwareDatetime, BaseModel, ConfigDict

from offhook.media.leg import CallInfo
from offhook.telephony.sip.sessions.saved_dialog import SavedDialog
from offhook.web.edge.resume.saved_call import MAX_BYTES, TooLargeError

VERSION = 1
"""Another version's calls are not continued."""
MAX_PHONE_CALL_BYTES = 8 * MAX_BYTES
"""Maximum size of a saved phone call, usually 2 kB; a larger one is not continued. One that grows
larger is no longer saved, its older state is deleted, and a warning is logged."""


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid")

    v: int
    token: str
    agent: str
    began: AwareDatetime
    answered: AwareDatetime
    info: CallInfo
    dialog: SavedDialog


@dataclass(frozen=True)
class SavedPhoneCall:
    """A SIP call as another edge continues it."""

    token: str
    """Token of its conversation."""
    agent: str
    """Name of the agent; "" for the default."""
    began: datetime
    """When its INVITE was sent or received."""
    answered: datetime
    info: CallInfo
    dialog: SavedDialog

    def pack(self) -> bytes:
        """Returns the call as JSON. Raises TooLargeError and, for variables that are no JSON,
        ValueError."""
        stored = _Stored(v=VERSION, **vars(self))
        data = stored.model_dump_json().encode()
        if len(data) > MAX_PHONE_CALL_BYTES:
            raise TooLargeError(f"the saved call has {len(data)} bytes")
        return data


def unpack(data: bytes) -> SavedPhoneCall:
    """Returns a saved phone call. Raises ValueError for anything else, another version's
    included."""
    if len(data) > MAX_PHONE_CALL_BYTES:
        raise ValueError(f"a saved phone call of {len(data)} bytes")
    try:
        stored = _Stored.model_validate_json(data)
    except RecursionError as error:
        raise ValueError("a saved phone call that is nested too deeply") from error
    if stored.v != VERSION:
        raise ValueError(f"a saved phone call of version {stored.v}")
    values = {name: getattr(stored, name) for name in type(stored).model_fields if name != "v"}
    return SavedPhoneCall(**values)
