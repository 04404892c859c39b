"""Telnyx' REST, version 2: calls by TeXML or by Call Control, commands to calls by Call Control.

A call placed by TeXML asks our webhook what to do, as Twilio's do; its CallSid is its
call_control_id. A call placed by Call Control is told at once where its sound goes.

Source: Telnyx' API reference ("TeXML REST commands", "Call commands") and "API error codes".
"""

from typing import ClassVar

from offhook.telephony.carriers.rest.request import (
    Answer,
    Api,
    Auth,
    Bearer,
    Dial,
    RestError,
    RestRequest,
    destination,
    path_id,
)

CODECS = {"pcmu": "PCMU", "pcma": "PCMA", "l16": "L16", "opus": "OPUS"}


class TelnyxApi(Api):
    title = "Telnyx"
    default_url = "https://api.telnyx.com"
    credentials = "api_key (the API key, KEY…) and account (the application's id)"
    problems: ClassVar = {
        "10002": "a number is not valid: check it and its country code",
        "10010": "the API key may not do this: check what it is allowed to do",
        "10016": "a number is not in the form +14155551212: check number too",
        "90015": "it does not know a call of this id",
    }
    ended = frozenset(("90018",))

    def auth(self) -> Auth:
        return Bearer(self.need("api_key"))

    def dial(self, call: Dial) -> RestRequest:
        if call.stream_url:
            return self._dial_to_stream(call)
        body: dict[str, object] = {
            "To": call.to,
            "From": call.caller,
            "Url": call.webhook_url,
            "Timeout": call.rings(5, 120),
        }
        if call.status_url:
            body["StatusCallback"] = call.status_url
        path = ("v2", "texml", "calls", path_id(self.need("account"), "an application"))
        return self.request("POST", *path, json_body=body)

    def _dial_to_stream(self, call: Dial) -> RestRequest:
        form = self.settings.format
        if form is None:
            raise RestError(0, "Telnyx must be told how sound is coded")
        body: dict[str, object] = {
            "connection_id": self.need("account"),
            "to": call.to,
            "from": call.caller,
            "timeout_secs": call.rings(5, 600),
            "stream_url": call.stream_url,
            "stream_track": "inbound_track",
            "stream_codec": CODECS[form.encoding],
            "stream_bidirectional_mode": "rtp",
            "stream_bidirectional_codec": CODECS[form.encoding],
            "stream_bidirectional_sampling_rate": form.rate,
        }
        if call.status_url:
            body |= {"webhook_url": call.status_url, "webhook_url_method": "POST"}
        return self.request("POST", "v2", "calls", json_body=body)

    def hang_up(self, call_id: str) -> RestRequest:
        return self._command(call_id, "hangup", {})

    def transfer(self, call_id: str, target: str) -> RestRequest:
        return self._command(call_id, "transfer", {"to": destination(target)})

    def _command(self, call_id: str, name: str, body: dict[str, object]) -> RestRequest:
        return self.request(
            "POST", "v2", "calls", path_id(call_id), "actions", name, json_body=body
        )

    def call_id(self, answer: Answer) -> object:
        data = answer.get("data", answer)
        if not isinstance(data, dict):
            return None
        return data.get("call_control_id") or data.get("call_sid")

    def problem(self, answer: Answer) -> tuple[object, object]:
        errors = answer.get("errors")
        first = errors[0] if isinstance(errors, list) and errors else None
        if not isinstance(first, dict):
            return "", ""
        return first.get("code", ""), first.get("detail") or first.get("title", "")
