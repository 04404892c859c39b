"""Exotel's REST, version 1: calls are placed by it, and that is all.

A call goes to a stream of ours at once, or to a flow that was made in Exotel's dashboard, whose
Voicebot applet then leads to us. No call can be ended or redirected: it ends with its stream, or
goes on to the next applet of its flow.

Source: Exotel's "Connect Voice AI API", "Connect number to call flow" and "Error code dictionary".
"""

from offhook.telephony.carriers.rest.request import (
    Answer,
    Api,
    Auth,
    Basic,
    Dial,
    RestError,
    RestRequest,
    is_sip,
    path_id,
)


class ExotelApi(Api):
    title = "Exotel"
    default_url = "https://api.exotel.com"
    credentials = "account (the SID), api_key (the API key) and secret (the API token)"
    ends_calls = False

    def auth(self) -> Auth:
        return Basic(self.need("api_key"), self.need("secret"))

    def dial(self, call: Dial) -> RestRequest:
        if is_sip(call.to):
            raise RestError(0, "Exotel calls telephone numbers only, not SIP URIs")
        form = [
            ("From", call.to),  # the one who is called first, and alone
            ("CallerId", call.caller),
            ("TimeOut", str(call.rings(5, 120))),
        ]
        if call.stream_url:
            form += [("StreamUrl", call.stream_url), ("StreamType", "bidirectional")]
        else:
            form += [("Url", call.webhook_url)]
        if call.status_url:
            form += [
                ("StatusCallback", call.status_url),
                ("StatusCallbackContentType", "application/json"),
                ("StatusCallbackEvents[0]", "terminal"),
                ("StatusCallbackEvents[1]", "answered"),
            ]
        path = (
            "v1",
            "Accounts",
            path_id(self.need("account"), "an account"),
            "Calls",
            "connect.json",
        )
        return self.request("POST", *path, form=form)

    def hang_up(self, call_id: str) -> RestRequest:
        raise RestError(0, "Exotel's REST ends no calls: a call ends when its stream is closed")

    def transfer(self, call_id: str, target: str) -> RestRequest:
        raise RestError(
            0,
            "Exotel's REST transfers no calls: put a Connect applet after the Voicebot applet, "
            "where the call goes on when its stream is closed",
        )

    def call_id(self, answer: Answer) -> object:
        call = answer.get("Call")
        return call.get("Sid") if isinstance(call, dict) else None

    def problem(self, answer: Answer) -> tuple[object, object]:
        error = answer.get("RestException")
        if not isinstance(error, dict):
            return "", ""
        return error.get("Code", ""), error.get("Message", "")
