"""Vonage's REST API: the Voice API, version 1. Each request is signed as the application.

Source: Vonage's "Voice API reference", "NCCO reference" and "Authentication".
"""

from offhook.telephony.carriers.rest.request import (
    Api,
    ApplicationAuth,
    Auth,
    DialRequest,
    Response,
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
        return ApplicationAuth(self.require("account"), self.require("api_key"))

    def dial(self, call: DialRequest) -> RestRequest:
        body: dict[str, object] = {
            "to": [endpoint(call.to)],
            "from": endpoint("+" + call.caller.removeprefix("+")),
            "answer_url": [call.webhook_url],
            "answer_method": "POST",
            "ringing_timer": call.ring_timeout(1, 120),
        }
        if call.status_url:
            body |= {"event_url": [call.status_url], "event_method": "POST"}
        return self.request("POST", "v1", "calls", json_body=body)

    def hang_up(self, call_id: str) -> RestRequest:
        return self._update(call_id, {"action": "hangup"})

    def transfer(self, call_id: str, target: str, outcome_url: str = "") -> RestRequest:
        connect: dict[str, object] = {
            "action": "connect",
            "endpoint": [endpoint(destination(target))],
        }
        if outcome_url:  # whose answer replaces this NCCO if the target cannot be reached
            connect |= {"eventType": "synchronous", "eventUrl": [outcome_url]}
        # Without a number Vonage shows none, and some networks then reject the call.
        if self.settings.number:
            connect["from"] = self.settings.number.removeprefix("+")
        where = {"type": "ncco", "ncco": [connect]}
        return self._update(call_id, {"action": "transfer", "destination": where})

    def _update(self, call_id: str, body: dict[str, object]) -> RestRequest:
        return self.request("PUT", "v1", "calls", path_id(call_id), json_body=body)

    def call_id(self, answer: Response) -> object:
        return answer.get("uuid")

    def read_error(self, answer: Response) -> tuple[object, object]:
        """Read Vonage's own error format ("error_title", "invalid_parameters") or RFC 7807's."""
        title = answer.get("error_title") or answer.get("title", "")
        detail = answer.get("detail") or answer.get("invalid_parameters", "")
        words = [readable(part) for part in (title, detail)]
        return "", ": ".join(word for word in words if word)


def endpoint(address: str) -> dict[str, str]:
    """Return Vonage's endpoint object for a number or SIP URI."""
    if is_sip(address):
        return {"type": "sip", "uri": address}
    return {"type": "phone", "number": address.removeprefix("+")}
