"""Vonage's REST: the Voice API, version 1. Each request is signed as the application.

Source: Vonage's "Voice API reference", "NCCO reference" and "Authentication".
"""

from offhook.telephony.carriers.rest.request import (
    Answer,
    Api,
    Application,
    Auth,
    Dial,
    RestRequest,
    destination,
    is_sip,
    path_id,
    readable,
)


class VonageApi(Api):
    title = "Vonage"
    default_url = "https://api.nexmo.com"
    credentials = "account (the application's id) and api_key (its private key)"

    def auth(self) -> Auth:
        return Application(self.need("account"), self.need("api_key"))

    def dial(self, call: Dial) -> RestRequest:
        body: dict[str, object] = {
            "to": [endpoint(call.to)],
            "from": endpoint("+" + call.caller.removeprefix("+")),
            "answer_url": [call.webhook_url],
            "answer_method": "POST",
            "ringing_timer": call.rings(1, 120),
        }
        if call.status_url:
            body |= {"event_url": [call.status_url], "event_method": "POST"}
        return self.request("POST", "v1", "calls", json_body=body)

    def hang_up(self, call_id: str) -> RestRequest:
        return self._update(call_id, {"action": "hangup"})

    def transfer(self, call_id: str, target: str) -> RestRequest:
        connect: dict[str, object] = {
            "action": "connect",
            "endpoint": [endpoint(destination(target))],
        }
        # Without a number of ours Vonage shows none, and some networks then take no call.
        if self.settings.number:
            connect["from"] = self.settings.number.removeprefix("+")
        where = {"type": "ncco", "ncco": [connect]}
        return self._update(call_id, {"action": "transfer", "destination": where})

    def _update(self, call_id: str, body: dict[str, object]) -> RestRequest:
        return self.request("PUT", "v1", "calls", path_id(call_id), json_body=body)

    def call_id(self, answer: Answer) -> object:
        return answer.get("uuid")

    def problem(self, answer: Answer) -> tuple[object, object]:
        """Its own shape ("error_title", "invalid_parameters") and that of RFC 7807."""
        title = answer.get("error_title") or answer.get("title", "")
        detail = answer.get("detail") or answer.get("invalid_parameters", "")
        words = [readable(part) for part in (title, detail)]
        return "", ": ".join(word for word in words if word)


def endpoint(address: str) -> dict[str, str]:
    """What Vonage calls the place that a number or SIP URI leads to."""
    if is_sip(address):
        return {"type": "sip", "uri": address}
    return {"type": "phone", "number": address.removeprefix("+")}
