"""Twilio's REST: the Call resource of the API 2010-04-01.

Source: Twilio's "Call resource" and "Error and warning dictionary".
"""

from typing import ClassVar
from xml.sax.saxutils import escape

from offhook.telephony.carriers.rest.request import (
    Answer,
    Api,
    Auth,
    Basic,
    Dial,
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
    problems: ClassVar = {
        "10001": "the account is not active: look at it in Twilio's console",
        "10002": "a trial account cannot do this: upgrade it",
        "10004": "the account has as many calls as it may have: try again when one has ended",
        "20005": "the account is not active: look at it in Twilio's console",
        "21205": "it cannot call our webhook's URL: check public_url",
        "21210": "the caller id is not a number of the account nor verified: check number",
        "21211": "the number to be called is not valid: check it and its country code",
        "21212": "the caller id is not valid: check number",
        "21214": "the number to be called cannot be reached",
        "21215": "the account may not call this country: allow it in Voice Geographic Permissions",
        "21216": "the account may not call this number",
        "21217": "the number to be called is not valid: check it and its country code",
        "21219": "a trial account calls verified numbers only: verify the number or upgrade",
    }
    ended = frozenset(("20404", "21220"))

    def auth(self) -> Auth:
        if not self.settings.api_key:
            return Basic(self.need("account"), self.need("secret"))
        user, _, secret = self.settings.api_key.partition(":")
        if not secret:
            raise RestError(0, f"{self.title}: write api_key as the key's SID, a colon, its secret")
        return Basic(user, secret)

    def dial(self, call: Dial) -> RestRequest:
        form = [
            ("To", call.to),
            ("From", call.caller),
            ("Url", call.webhook_url),
            ("Method", "POST"),
            ("Timeout", str(call.rings(1, 600))),
        ]
        if call.status_url:
            form += [("StatusCallback", call.status_url), ("StatusCallbackMethod", "POST")]
            # Once for each: names in one value are taken with 201 and then ignored (error 21626).
            form += [("StatusCallbackEvent", event) for event in STATUS_EVENTS]
        return self.request("POST", *self._account(), "Calls.json", form=form)

    def hang_up(self, call_id: str) -> RestRequest:
        return self._update(call_id, "Status", "completed")

    def transfer(self, call_id: str, target: str) -> RestRequest:
        return self._update(call_id, "Twiml", dial_markup(target))

    def _update(self, call_id: str, name: str, value: str) -> RestRequest:
        path = (*self._account(), "Calls", path_id(call_id) + ".json")
        return self.request("POST", *path, form=[(name, value)])

    def _account(self) -> tuple[str, ...]:
        return "2010-04-01", "Accounts", path_id(self.need("account"), "an account")

    def call_id(self, answer: Answer) -> object:
        return answer.get("sid")

    def problem(self, answer: Answer) -> tuple[object, object]:
        return answer.get("code", ""), answer.get("message", "")


def dial_markup(target: str) -> str:
    """TwiML that connects a call with a number or SIP URI. Raises RestError."""
    target = destination(target)
    noun = "Sip" if is_sip(target) else "Number"
    return f"<Response><Dial><{noun}>{escape(target)}</{noun}></Dial></Response>"
