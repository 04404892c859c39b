"""Exotel's REST API, version 1, which can only place calls.

A call connects directly to our stream, or to a flow made in Exotel's dashboard whose Voicebot
applet connects to us. Calls cannot be ended or redirected: a call ends with its stream, or
continues with the next applet of its flow.

Source: Exotel's "Connect Voice AI API", "Connect number to call flow" and "Error code dictionary".
"""

from offhook.telephony.carriers.rest.request import (
    Api,
    Auth,
    BasicAuth,
    DialRequest,
    Response,
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
        return BasicAuth(self.require("api_key"), self.require("secret"))

    def dial(self, call: DialRequest) -> RestRequest:
        if is_sip(call.to):
            raise RestError(0, "Exotel calls telephone numbers only, not SIP URIs")
        form = [
            ("From", call.to),  # the one called first, and alone
            ("CallerId", call.caller),
            ("TimeOut", str(call.ring_timeout(5, 120))),
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
            path_id(self.require("account"), "an account"),
            "Calls",
            "connect.json",
        )
        return self.request("POST", *path, form=form)

    def hang_up(self, call_id: str) -> RestRequest:
        raise RestError(0, "Exotel cannot end calls by REST: close the stream instead")

    def transfer(self, call_id: str, target: str, outcome_url: str = "") -> RestRequest:
        raise RestError(
            0,
            "Exotel's REST API cannot transfer calls: put a Connect applet after the Voicebot "
            "applet, where the call continues when its stream is closed",
        )

    def call_id(self, answer: Response) -> object:
        call = answer.get("Call")
        return call.get("Sid") if isinstance(call, dict) else None

    def read_error(self, answer: Response) -> tuple[object, object]:
        error = answer.get("RestException")
        if not isinstance(error, dict):
            return "", ""
        return error.get("Code", ""), error.get("Message", "")
