"""What `offhook doctor` says of carriers."""

from offhook.telephony.carriers.auth.signatures import url_token
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.web.app.doctor.carriers import examine_carriers


def said(**settings):
    carrier = CarrierSettings(**settings)
    return [str(finding) for finding in examine_carriers((carrier,), "0.0.0.0")]


def test_the_url_that_a_carrier_is_to_call_is_told():
    known = {"provider": "twilio", "secret": "x" * 32, "public_url": "https://voice.example.org/"}
    first, second = said(**known)
    assert first == "   ok  carrier twilio: https://voice.example.org/carriers/twilio/voice"
    assert second == " note  carrier twilio: calls nobody: it has no account, no number"
    whole = said(**known, account="AC1", number="+4930")
    assert whole[1] == "   ok  carrier twilio: calls others, as +4930"


def test_who_opens_the_stream_at_once_is_told_its_url():
    url = "https://voice.example.org"
    assert said(provider="genesys", secret="eA==", api_key="k", public_url=url) == [
        "   ok  carrier genesys: wss://voice.example.org/carriers/genesys/stream"
    ]
    (told,) = said(provider="audiosocket", port=9019)
    assert "0.0.0.0:9019, from 127.0.0.0/8" in told


def test_exotel_is_told_a_url_with_its_token_and_no_secret():
    known = {"provider": "exotel", "secret": "s3cret", "api_key": "key"}
    first, _ = said(**known)
    assert first.endswith(f"/carriers/exotel/voice?token={url_token(CarrierSettings(**known))}")
    assert "s3cret" not in first


def test_what_is_not_verified_is_noted():
    assert "nothing is verified" in said(provider="twilio", insecure=True)[0]
