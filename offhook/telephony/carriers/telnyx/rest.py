"""Telnyx's REST API, version 2: calls by TeXML, commands by Call Control.

A call placed by TeXML requests our webhook; its CallSid is its call_control_id.

Source: Telnyx's API reference ("TeXML REST commands", "Call commands") and "API error codes".
"""

from base64 import b64encode
from typing import ClassVar

from offhook.telephony.carriers.rest.request import (
    Api,
    Auth,
    BearerAuth,
    DialRequest,
    Response,
    RestRequest,
    destination,
    path_id,
)
from offhook.telephony.carriers.streams.stream import Format

TRANSFER_STATE = "offhook:"
"""What the `client_state` of the call to a transfer's target begins with, before the id of the call
that was transferred."""


class TelnyxApi(Api):
    title = "Telnyx"
    default_url = "https://api.telnyx.com"
    credentials = "api_key (the API key, KEY…) and account (the application's id)"
    error_messages: ClassVar = {
        "10002": "a number is not valid: check it and its country code",
        "10010": "permission denied: check what the API key is allowed to do",
        "10016": "a number is not in the form +14155551212: check number too",
        "90015": "no call has this id",
    }
    ended_codes = frozenset(("90018",))
    connects = True

    def auth(self) -> Auth:
        return BearerAuth(self.require("api_key"))

    def dial(self, call: DialRequest) -> RestRequest:
        body: dict[str, object] = {
            "To": call.to,
            "From": call.caller,
            "Url": call.webhook_url,
            "Timeout": call.ring_timeout(5, 120),
        }
        if call.status_url:
            body["StatusCallback"] = call.status_url
        if call.detects:
            whole = call.detection == "message"
            body |= {
                "MachineDetection": "DetectMessageEnd" if whole else "Enable",
                "AsyncAmd": True,
                "AsyncAmdStatusCallback": call.status_url,
                "AsyncAmdStatusCallbackMethod": "POST",
            }
        path = ("v2", "texml", "calls", path_id(self.require("account"), "an application"))
        return self.request("POST", *path, json_body=body)

    def hang_up(self, call_id: str) -> RestRequest:
        return self._command(call_id, "hangup", {})

    def transfer(self, call_id: str, target: str, outcome_url: str = "") -> RestRequest:
        body: dict[str, object] = {"to": destination(target)}
        if outcome_url:
            state = b64encode((TRANSFER_STATE + path_id(call_id)).encode()).decode()
            body |= {"webhook_url": outcome_url, "target_leg_client_state": state}
        return self._command(call_id, "transfer", body)

    def connect(self, call_id: str, stream_url: str, form: Format) -> RestRequest:
        body: dict[str, object] = {
            "stream_url": stream_url,
            "stream_track": "inbound_track",
            "stream_codec": form.encoding.upper(),
            "stream_bidirectional_mode": "rtp",
            "stream_bidirectional_codec": form.encoding.upper(),
            "stream_bidirectional_sampling_rate": form.rate,
        }
        return self._command(call_id, "streaming_start", body)

    def _command(self, call_id: str, name: str, body: dict[str, object]) -> RestRequest:
        return self.request(
            "POST", "v2", "calls", path_id(call_id), "actions", name, json_body=body
        )

    def call_id(self, answer: Response) -> object:
        data = answer.get("data", answer)
        if not isinstance(data, dict):
            return None
        return data.get("call_control_id") or data.get("call_sid")

    def read_error(self, answer: Response) -> tuple[object, object]:
        errors = answer.get("errors")
        first = errors[0] if isinstance(errors, list) and errors else None
        if not isinstance(first, dict):
            return "", ""
        return first.get("code", ""), first.get("detail") or first.get("title", "")
