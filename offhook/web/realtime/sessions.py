"""The session object of requests over HTTP."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from offhook.web.realtime.protocol.conversation_session import full_session
from offhook.web.realtime.protocol.session_object import EventError, Session
from offhook.web.realtime.protocol.validation_errors import event_error
from offhook.web.speech_api.errors import ApiError

MAX_SESSION_BYTES = 256 << 10
"""Maximum size of a session object as JSON, with instructions and tools; a larger one is refused
with 400."""


def validated_session(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the session object as given, with its type ("realtime" if none is given), and in full
    as it is shown to clients. Raises ApiError 400."""
    table = {"type": "realtime", **given}
    if len(json.dumps(table)) > MAX_SESSION_BYTES:
        raise ApiError(400, f"the session is over {MAX_SESSION_BYTES} bytes", "session")
    try:
        if table["type"] == "transcription":
            return table, _transcription(table)
        shown = full_session(table).as_dict()
    except EventError as error:
        raise ApiError(400, str(error), error.param, error.code) from error
    return table, {"object": "realtime.session", **shown}


def _transcription(table: dict[str, Any]) -> dict[str, Any]:
    try:
        session = Session.model_validate(table)
    except ValidationError as error:
        raise event_error(error, table, "session", Session.model_fields) from error
    return {"object": "realtime.transcription_session", **session.model_dump(mode="json")}
