"""Plivo's REST API, version 1: the Call resource.

Plivo accepts no markup with a transfer but fetches it from a URL of ours, `transfer_url`, which
responds with `transfer_markup`.

Source: Plivo's "Call API reference".
"""

from collections.abc import Mapping
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from offhook.telephony.carriers.rest.request import (
    Api,
    Auth,
    BasicAuth,
    DialRequest,
    Response,
    RestError,
    RestRequest,
    destination,
    is_sip,
    path_id,
)

TRANSFER_PARAMETER = "target"
"""Query parameter of `transfer_url`."""


class PlivoApi(Api):
    title = "Plivo"
    default_url = "https://api.plivo.com"
    credentials = "account (the auth id) and secret (the auth token)"

    def auth(self) -> Auth:
        return BasicAuth(self.require("account"), self.require("secret"))

    def dial(self, call: DialRequest) -> RestRequest:
        body: dict[str, object] = {
            "from": call.caller.removeprefix("+"),
            "to": call.to.removeprefix("+"),
            "answer_url": call.webhook_url,
            "answer_method": "POST",
            "ring_timeout": call.ring_timeout(1, 600),
        }
        if call.status_url:
            body |= {"hangup_url": call.status_url, "hangup_method": "POST"}
            body |= {"ring_url": call.status_url, "ring_method": "POST"}
        if call.detects:
            body |= {
                "machine_detection": "true",
                "machine_detection_url": call.status_url,
                "machine_detection_method": "POST",
            }
        return self._request("POST", json_body=body)

    def hang_up(self, call_id: str) -> RestRequest:
        return self._request("DELETE", path_id(call_id))

    def transfer(self, call_id: str, target: str, outcome_url: str = "") -> RestRequest:
        body = {
            "legs": "aleg",
            "aleg_url": transfer_url(outcome_url, target),
            "aleg_method": "POST",
        }
        request = self._request("POST", path_id(call_id), json_body=body)
        if not outcome_url:
            raise RestError(0, "Plivo fetches the transfer target from us: set public_url")
        return request

    def _request(
        self, method: str, *call: str, json_body: Mapping[str, object] | None = None
    ) -> RestRequest:
        account = path_id(self.require("account"), "an account")
        path = ("v1", "Account", account, "Call", *call, "")  # ends with a slash
        return self.request(method, *path, json_body=json_body)

    def call_id(self, answer: Response) -> object:
        """For a single call the request id is the call id."""
        return answer.get("request_uuid")

    def read_error(self, answer: Response) -> tuple[object, object]:
        return "", answer.get("error", "")


def transfer_url(outcome_url: str, target: str) -> str:
    """Return the URL at which Plivo asks what to do with a transferred call. Raises RestError."""
    return f"{outcome_url}?{TRANSFER_PARAMETER}={quote(destination(target), safe='')}"


def transfer_markup(target: str, outcome_url: str) -> str:
    """Return Plivo XML that connects a call to a number or SIP URI, after which Plivo asks
    `outcome_url` what to do next. Raises RestError."""
    target = destination(target)
    noun = "User" if is_sip(target) else "Number"
    to = escape(target.removeprefix("+"))
    action = f'action={quoteattr(outcome_url)} method="POST"'
    return f"<Response><Dial {action}><{noun}>{to}</{noun}></Dial></Response>"
