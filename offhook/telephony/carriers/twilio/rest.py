"""Twilio's REST API, version 2010-04-01: the Call resource.

Source: Twilio's "Call resource" and "Error and warning dictionary".
"""

from typing import ClassVar
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

STATUS_EVENTS = ("initiated", "ringing", "answered", "completed")


class TwilioApi(Api):
    title = "Twilio"
    default_url = "https://api.twilio.com"
    credentials = "account (the SID, AC…) and secret (the auth token), or api_key (SK…:its secret)"
    error_messages: ClassVar = {
        "10001": "the account is not active: see Twilio's console",
        "10002": "a trial account cannot do this: upgrade it",
        "10004": "the account's call limit is reached: try again when a call has ended",
        "20005": "the account is not active: see Twilio's console",
        "21205": "Twilio cannot use our webhook's URL: check public_url",
        "21210": "the caller id is not a number of the account nor verified: check number",
        "21211": "the number to be called is not valid: check it and its country code",
        "21212": "the caller id is not valid: check number",
        "21214": "the number to be called cannot be reached",
        "21215": "the account may not call this country: enable it in Voice Geographic Permissions",
        "21216": "the account may not call this number",
        "21217": "the number to be called is not valid: check it and its country code",
        "21219": "a trial account calls verified numbers only: verify the number or upgrade",
    }
    ended_codes = frozenset(("20404", "21220"))

    def auth(self) -> Auth:
        if not self.settings.api_key:
            return BasicAuth(self.require("account"), self.require("secret"))
        user, _, secret = self.settings.api_key.partition(":")
        if not secret:
            raise RestError(0, f"{self.title}: write api_key as the key's SID, a colon, its secret")
        return BasicAuth(user, secret)

    def dial(self, call: DialRequest) -> RestRequest:
        form = [
            ("To", call.to),
            ("From", call.caller),
            ("Url", call.webhook_url),
            ("Method", "POST"),
            ("Timeout", str(call.ring_timeout(1, 600))),
        ]
        if call.status_url:
            form += [("StatusCallback", call.status_url), ("StatusCallbackMethod", "POST")]
            # One field each: several names in one value are accepted with 201 and ignored (error
            # 21626).
            form += [("StatusCallbackEvent", event) for event in STATUS_EVENTS]
        if call.detects:
            whole = call.detection == "message"
            form += [
                ("MachineDetection", "DetectMessageEnd" if whole else "Enable"),
                ("AsyncAmd", "true"),
                ("AsyncAmdStatusCallback", call.status_url),
                ("AsyncAmdStatusCallbackMethod", "POST"),
            ]
        return self.request("POST", *self._account(), "Calls.json", form=form)

    def hang_up(self, call_id: str) -> RestRequest:
        return self._update(call_id, "Status", "completed")

    def transfer(self, call_id: str, target: str, outcome_url: str = "") -> RestRequest:
        return self._update(call_id, "Twiml", dial_markup(target, outcome_url))

    def _update(self, call_id: str, name: str, value: str) -> RestRequest:
        path = (*self._account(), "Calls", path_id(call_id) + ".json")
        return self.request("POST", *path, form=[(name, value)])

    def _account(self) -> tuple[str, ...]:
        return "2010-04-01", "Accounts", path_id(self.require("account"), "an account")

    def call_id(self, answer: Response) -> object:
        return answer.get("sid")

    def read_error(self, answer: Response) -> tuple[object, object]:
        return answer.get("code", ""), answer.get("message", "")


def dial_markup(target: str, outcome_url: str = "") -> str:
    """Return TwiML that connects a call to a number or SIP URI, after which Twilio asks
    `outcome_url` what to do next. Raises RestError."""
    target = destination(target)
    noun = "Sip" if is_sip(target) else "Number"
    action = f' action={quoteattr(outcome_url)} method="POST"' if outcome_url else ""
    return f"<Response><Dial{action}><{noun}>{escape(target)}</{noun}></Dial></Response>"
