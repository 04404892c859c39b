"""What a carrier's settings take, and what they say of a mistake."""

import base64

import pytest
from pydantic import BaseModel

from offhook.telephony.carriers.providers import checked, provider_names, provider_of
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.carriers.streams.stream import Format

TOKEN = "5a5c1f2b9be5bd3d7eccbd8c5c5b1f55"
KEY = base64.b64encode(bytes(32)).decode()


def carrier(provider="twilio", **values):
    secrets = {"telnyx": KEY, "genesys": KEY}
    api_keys = {"exotel": "abc", "genesys": "abc"}
    given = {"secret": secrets.get(provider, TOKEN), "api_key": api_keys.get(provider, "")}
    return checked(CarrierSettings(provider=provider, **(given | values)))


@pytest.mark.parametrize("provider", provider_names())
def test_every_provider_needs_no_more_than_its_secrets(provider):
    made = carrier(provider)
    assert made.name == provider
    assert made.addresses == ("127.0.0.0/8", "::1")


@pytest.mark.parametrize(
    ("values", "format"),
    [
        ({"provider": "twilio"}, Format("pcmu", 8000)),
        ({"provider": "telnyx"}, Format("pcmu", 8000)),
        ({"provider": "telnyx", "encoding": "l16"}, Format("l16", 16000)),
        ({"provider": "telnyx", "encoding": "opus"}, Format("opus", 48000)),
        ({"provider": "plivo", "encoding": "l16", "rate": 8000}, Format("l16", 8000)),
        ({"provider": "vonage"}, Format("l16", 16000)),
        ({"provider": "exotel", "rate": 24000}, Format("l16", 24000)),
    ],
)
def test_a_provider_is_asked_for_what_it_does_best_unless_told(values, format):
    assert provider_of(carrier(**values)).format == format


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"provider": "tvilio"}, "unknown provider 'tvilio'"),
        ({"name": "My Carrier"}, "use a-z"),
        ({"name": "a/../b"}, "use a-z"),
        ({"account": "AC\n1"}, "account"),
        ({"secret": ""}, "secret is required"),
        ({"provider": "exotel", "api_key": ""}, "api_key"),
        ({"provider": "genesys", "api_key": ""}, "api_key"),
        ({"provider": "genesys", "secret": "not base64!"}, "base64"),
        ({"provider": "telnyx", "secret": "KEY0123"}, "base64"),
        ({"provider": "telnyx", "secret": "c2hvcnQ="}, "32 bytes"),
        ({"encoding": "opus"}, "encoding must be one of pcmu"),
        ({"provider": "plivo", "rate": 44100}, "rate must be one of 8000"),
        ({"provider": "genesys", "encoding": "pcmu"}, "sets the encoding"),
        ({"provider": "audiosocket", "rate": 16000}, "sets the encoding"),
        ({"public_url": "voice.example.org"}, "public_url"),
        ({"public_url": "http://voice.example.org"}, "must be https"),
        ({"public_url": "https://voice.example.org/?a=b"}, "public_url"),
        ({"public_url": "https://voice.example.org:port"}, "public_url"),
        ({"public_url": "https://[::1"}, "public_url"),
        ({"public_url": "wss://voice.example.org"}, "public_url"),
        ({"rest_url": "http://api.example.org"}, "must be https"),
        ({"max_calls": -1}, "max_calls"),
        ({"port": 65536}, "port"),
        ({"addresses": ("10.0.0.256",)}, "addresses"),
        ({"insecure": True, "public_url": "https://voice.example.org"}, "insecure"),
    ],
)
def test_a_mistake_is_named(values, says):
    with pytest.raises(ValueError, match=says):
        carrier(**values)


@pytest.mark.parametrize("url", ["http://localhost:8080", "http://127.0.0.1:1", "http://[::1]:80"])
def test_a_test_on_this_machine_needs_neither_tls_nor_secrets(url):
    made = carrier(secret="", insecure=True, public_url=url, rest_url=url)
    assert made.insecure


def test_no_secret_is_shown():
    made = carrier(provider="exotel", secret="s3cr3t", api_key="k3y", account="me")
    assert "s3cr3t" not in repr(made)
    assert "k3y" not in str(made)
    assert "me" in repr(made)


@pytest.mark.parametrize("name", ["public_url", "rest_url"])
def test_a_password_in_a_url_is_refused_without_being_repeated(name):
    with pytest.raises(ValueError, match="must not contain a password") as caught:
        carrier(**{name: "https://user:s3cr3t@voice.example.org"})
    assert "s3cr3t" not in str(caught.value)


def test_settings_come_from_a_table():
    class Config(BaseModel):
        carriers: tuple[CarrierSettings, ...] = ()

    table = {"carriers": [{"provider": "twilio", "secret": TOKEN, "addresses": ["10.0.0.0/8"]}]}
    made = Config.model_validate(table).carriers[0]
    assert (made.name, made.secret, made.addresses) == ("twilio", TOKEN, ("10.0.0.0/8",))
