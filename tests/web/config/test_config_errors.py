"""What an operator reads of each mistake: its place, what was meant, and what to do."""

import datetime
import os
import types
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from offhook.web.config.config import Config, ConfigError, load
from offhook.web.config.reading.faults import faults_of, fields_of
from offhook.web.config.reading.other_names import OTHERS
from offhook.web.config.reading.toml_text import read_toml


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OFFHOOK_")]:
        monkeypatch.delenv(name)


def errors_of(text: str | bytes, environment: dict[str, str] | None = None) -> list[str]:
    Path("offhook.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load(None, environment or {})
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        # Keys and sections
        ("[sip]\nport = 5060", ["2: sip.port: there is no such key; did you mean udp or tcp?"]),
        (
            "[agent]\nprompt = 'Be kind.'",
            ["2: agent.prompt: there is no such key; did you mean instructions?"],
        ),
        (
            "[webrtc]\nstun = 'stun:a'",
            ["2: webrtc.stun: there is no such key; did you mean [[webrtc.ice_servers]]?"],
        ),
        ("[stt]\nengine = 'a'", ["1: stt: there is no such section; did you mean [asr]?"]),
        (
            "[sip.extensions.101]\nsecret = 'a'",
            ["2: sip.extensions.101.secret: there is no such key; did you mean password?"],
        ),
        ("[server]\nprot = 1", ["2: server.prot: there is no such key; did you mean port?"]),
        (
            "[agent]\nkind = 'openai'\n[agent.collect.'full name']\nrequired = true",
            [
                "3: agent.collect.full name: cannot be a name: it has letters, digits, _ and -, "
                "64 at most"
            ],
        ),
        (
            "[agent]\nkind = 'openai'\n[agent.collect.full.name]\nrequired = true",
            ["3: agent.collect.full.name: a name has no dot: write [agent.collect.full_name]"],
        ),
        (
            "[[agent.collect]]\nname = 'order'",
            ["1: agent.collect: is no list: each has a name, write [agent.collect.order]"],
        ),
        (
            "[prices.m-4.1]\ninput = 2\noutput = 8\n[prices.m-4.1-mini]\ninput = 1\noutput = 2",
            [
                '1: prices.m-4.1: a name with a dot needs quotes: write [prices."m-4.1"]',
                '4: prices.m-4.1-mini: a name with a dot needs quotes: write [prices."m-4.1-mini"]',
            ],
        ),
        (
            "[hours]\nagents = ['agent']\nopen = ['daily 09:00-18:00']\notherwise = 'night'",
            ["1: hours: each has a name: write [hours.NAME]"],
        ),
        (
            "[agent]\nkind = 'openai'\n[agent.collect.pin]\ntype = 'digits'\nlength = [4]",
            ["5: agent.collect.pin.length: must be [fewest, most]: write length = [4, 4]"],
        ),
        (
            "[agent]\nkind = 'openai'\n[agent.collect.pin]\nrepeat = 'yes'\nask = 'Of {{callr}}'",
            [
                '4: agent.collect.pin.repeat: must be true or false, not "yes"',
                "5: agent.collect.pin.ask has {{callr}}, which is none of caller, caller_name, "
                "called, trunk, direction, now, date, time, weekday, header.NAME",
            ],
        ),
        (
            "[agent]\nkind = 'openai'\n[agent.collect.day]\ntype = 'choice'\n"
            "choices = ['Monday', 'monday']",
            ["5: agent.collect.day.choices has 'monday' twice: remove one"],
        ),
        (
            "[agent]\nkind = 'openai'\ngives_up_to = 'the office'",
            [
                "3: agent.gives_up_to: 'the office' is neither a number, as \"+4930123456\", nor a "
                'SIP address, as "sip:anna@pbx.example"'
            ],
        ),
        ("[sever]\nport = 1", ["1: sever: there is no such section; did you mean [server]?"]),
        (
            "port = 7860",
            [
                "1: port: there is no such key; it belongs below [server], [webrtc], "
                "[[carriers]] or [smtp]"
            ],
        ),
        (
            "[server]\nmax-calls = 3",
            ["2: server.max-calls: there is no such key; did you mean max_calls?"],
        ),
        (
            "[turn]\nmodel = 'smartturn'",
            [
                '2: turn.model: must be "smart-turn", "words", a file that ends in .onnx, or '
                "package.module:Name, not \"smartturn\""
            ],
        ),
        (
            "[server]\nend_silence = 3",
            ["2: server.end_silence: there is no such key; it belongs below [turn]"],
        ),
        (
            "[recording]\nformat = 'mp3'",
            [
                "2: recording.format: there is no such key: remove it; "
                "docs/reference/configuration.md lists all keys"
            ],
        ),
        (
            "[turn]\nend_silense = 1\nend_silence = 'long'",
            [
                "2: turn.end_silense: there is no such key; did you mean end_silence?",
                '3: turn.end_silence: must be a whole number, not "long"',
            ],
        ),
        (
            '[frontdesk]\nname = "a"\naddress = "b"\nhours = { mon = "9-17" }',
            ["4: frontdesk.hours.mon: is unknown; did you mean monday?"],
        ),
        ("[frontdesk]\nname = 'a'", ["1: frontdesk.address: is missing"]),
        ("[engines]\nasr = 'nemotron'", ["2: engines: asr is now [asr] engine"]),
        # Lists and tables
        (
            "[sip.trunks]\nname = 'a'",
            ["1: sip.trunks: is a list of tables: write [[sip.trunks]] above each"],
        ),
        (
            "[sip.trunk]\nname = 'a'",
            ["1: sip.trunk: there is no such key; did you mean [[sip.trunks]]?"],
        ),
        (
            "[[trunks]]\nname = 'a'",
            ["1: trunks: there is no such section; did you mean [[sip.trunks]]?"],
        ),
        (
            "[carriers.twilio]\naccount = 'x'",
            ["1: carriers: is a list of tables: write [[carriers]] above each"],
        ),
        ("[[server]]\nport = 1", ["1: server: is one table: write [server], once"]),
        ("server = 3", ["1: server: must be a table: write [server], and its keys below it"]),
        (
            "[agents]\nkind = 'openai'",
            [
                "2: agents.kind: must be a table: write [agents.NAME]; keys of the default agent "
                "are below [agent]"
            ],
        ),
        (
            "[server]\nnames = 'voice.example.org'",
            ['2: server.names: must be a list: write names = ["voice.example.org"]'],
        ),
        (
            "[webrtc]\nice_servers = ['stun:stun.example.org']",
            [
                "2: webrtc.ice_servers.0: must be a table: write [[webrtc.ice_servers]], and its "
                "keys below it"
            ],
        ),
        (
            "[sip]\nrtp_ports = '16384-32767'",
            ['2: sip.rtp_ports: must be a list of 2 values, not "16384-32767"'],
        ),
        (
            "[[sip.trunks]]\nserver = 'sip.example.net'\n\n[[sip.trunks]]\nname = 'b'\npasword=''",
            [
                "1: sip.trunks.0.name: is missing",
                "6: sip.trunks.1.pasword: there is no such key; did you mean password?",
            ],
        ),
        # Types, units and limits
        (
            "[server]\nport = 'x'\nhost = 3",
            [
                '2: server.port: must be a whole number from 0 to 65535, not "x"',
                '3: server.host: must be a text in quotes: write host = "3"',
            ],
        ),
        (
            "[server]\nport = true",
            ["2: server.port: must be a whole number from 0 to 65535, not true"],
        ),
        (
            "[server]\nmax_calls = 3.5",
            ["2: server.max_calls: must be a whole number from 1 to 256, not 3.5"],
        ),
        (
            "[server]\ndrain_seconds = '30s'",
            [
                '2: server.drain_seconds: must be a number of at least 0, not "30s": write the '
                "number of seconds, without a unit"
            ],
        ),
        (
            "[opus]\nbitrate = '48 kbit/s'\nfec = 'ja'\ncomplexity = 11",
            [
                '2: opus.bitrate: must be a whole number from 6000 to 128000, not "48 kbit/s"',
                '3: opus.fec: must be true or false, not "ja"',
                "4: opus.complexity: must be a whole number from 0 to 10, not 11",
            ],
        ),
        (
            "[log]\nlevel = 'warn'",
            [
                '2: log.level: must be one of "TRACE", "DEBUG", "INFO", "WARNING" or "ERROR", '
                'not "warn"; did you mean "WARNING"?'
            ],
        ),
        ("[server]\napi_key = 12345", ["2: server.api_key: must be a text in quotes"]),
        (
            "[agent]\nkind = 'webhook'\nurl = 'ftp://x'",
            ['3: agent.url: must be like "https://app.example/hook", not "ftp://x"'],
        ),
        (
            '[queues.a]\nmembers = ["ext:1"]\ncallback_key = "55"',
            ['3: queues.a.callback_key: must be like "5", not "55"'],
        ),
        (
            "[tenants.a]\nnumbers = ['030 1']",
            ['2: tenants.a.numbers.0: must be like "+4930222" or "+4930222*", not "030 1"'],
        ),
        # Values that do not go together
        (
            "[agent]\nkind = 'openai'\nfallback = 'bob'\n[[sip.routes]]\nagent = 'nobody'",
            [
                "3: agent.fallback: no agent is called 'bob'",
                "5: sip.routes.0.agent: no agent is called 'nobody'",
            ],
        ),
        (
            "[asr]\naligner = 'a'\nprecision = 'bf16'\nlanguage = 'de'",
            [
                "2: asr.aligner is for qwen3-asr and qwen3-asr-official, not for small",
                "3: asr.precision is for qwen3-asr and nemotron, not for small",
            ],
        ),
        # Syntax
        (
            "[server]\nhost = localhost",
            ['2: host must have its text in quotes: write host = "localhost"'],
        ),
        ("[server]\nport: 80", ["2: is YAML: write port = 80"]),
        ("[server]\nport = 80s", ["2: port must be a number without a unit: write 80"]),
        ("[server]\nport = 080", ["2: port must not begin with 0: write 80"]),
        ("[server]\nport =", ["2: port has no value"]),
        ("[server]\nport = 1;", ["2: port must not end with ;: write port = 1"]),
        (
            "[server]\nshare_per_key = 0,5",
            ["2: share_per_key must have a decimal point: write 0.5"],
        ),
        ("[server]\nhost = “::”", ['2: has typographic quotes: use "']),
        ("[server]\nhost = 'x", ["2: host begins a text that is not closed: ' is missing"]),
        ("[server]\nmax calls = 3", ['2: "max calls" has a space: write max_calls = 3']),
        ("[server]\n// a comment", ["2: is not TOML: comments begin with #"]),
        ("[recording]\nenabled = True", ["2: enabled must be true, in lower case"]),
        ("[recording]\nenabled = yes", ["2: enabled must be true or false, not yes"]),
        (
            '[recording]\ndirectory = "C:\\recordings\\x"',
            [
                "2: directory has a backslash in double quotes: write it twice, or use single "
                "quotes"
            ],
        ),
        ("[agent]\nmodel = none", ["2: model has no value: TOML has no null; leave the key out"]),
        (
            "[server\nport = 1\n[sip]\nhots = '::'",
            [
                "1: is not a header: write [server], or [[server]] for an entry of a list",
                "4: sip.hots: there is no such key; did you mean host?",
            ],
        ),
        (
            "[server]\nport = 1\nport = 2",
            ["3: port has a value in line 2 already: remove one"],
        ),
        (
            "[server]\nport = 1\n[sip]\n[server]\nprot = 2",
            ["4: [server] is in line 1 already: keep one, with the keys of both"],
        ),
        (
            "[server]\nnames = [\n  'a.example',\n  'b.example'\nport = 1\nprot = 2",
            [
                "2: names begins a list that is not closed: ] is missing",
                "6: server.prot: there is no such key; did you mean port?",
            ],
        ),
        (
            "[speech.aliases]\nx = {\na = 1 }\nb = 2",
            [
                "2: x begins a table, which is written in one line, that is not closed: } is "
                "missing",
                "4: speech.aliases.b: must be a text in quotes: write b = \"2\"",
            ],
        ),
        (b"\xff\xfes\x00", ["is UTF-16: save it as UTF-8"]),
        (b"[agent]\nmodel = '\xe4'", ["2: is not UTF-8: save it as UTF-8"]),
    ],
)  # fmt: skip
def test_each_mistake_has_its_line_its_meaning_and_its_remedy(text, errors):
    places = [f"offhook.toml:{' ' * (not e[0].isdigit())}{e}" for e in errors]
    assert errors_of(text) == places


def test_the_mistakes_of_a_file_and_its_environment_come_at_once_in_order():
    text = "[server]\nport = 1x\nhost = 3\n[sever]\n[log]\nlevel = 'LOUD'\njson_lines = True\n"
    environment = {"OFFHOOK_SERVER_PROT": "1", "OFFHOOK_SEVER_PORT": "2", "OFFHOOK_ASR_URL": "[1"}
    lines = errors_of(text, environment)
    assert [line.split(" ")[0] for line in lines] == [
        *(f"offhook.toml:{number}:" for number in (2, 3, 4, 6, 7)),
        *("OFFHOOK_SEVER_PORT:", "OFFHOOK_ASR_URL:", "OFFHOOK_SERVER_PROT:"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        (
            "OFFHOOK_SERVER_PROT",
            "1",
            "OFFHOOK_SERVER_PROT: server.prot: there is no such key; did you mean port?",
        ),
        (
            "OFFHOOK_SEVER_PORT",
            "1",
            "OFFHOOK_SEVER_PORT: there is no section [sever]; did you mean OFFHOOK_SERVER_PORT?",
        ),
        (
            "OFFHOOK_PORT",
            "8080",
            "OFFHOOK_PORT: there is no section [port]; did you mean OFFHOOK_SERVER_PORT?",
        ),
        (
            "OFFHOOK_DEBUG",
            "1",
            "OFFHOOK_DEBUG: there is no section [debug]: OFFHOOK_SERVER_PORT is port of [server]",
        ),
        (
            "OFFHOOK_SERVER",
            "{}",
            "OFFHOOK_SERVER: names no key of [server]",
        ),
        (
            "OFFHOOK_SERVER_PORT",
            "80 80",
            'OFFHOOK_SERVER_PORT: server.port: must be a whole number from 0 to 65535, not "80 80"',
        ),
        (
            "OFFHOOK_WEBRTC_ADDRESSES",
            "::1",
            'OFFHOOK_WEBRTC_ADDRESSES: webrtc.addresses: must be a list: write addresses = ["::1"]',
        ),
        (
            "OFFHOOK_WEBRTC_ADDRESSES",
            "[1",
            'OFFHOOK_WEBRTC_ADDRESSES: is not JSON, as ["a", "b"] or {"a": 1}: ',
        ),
        (
            "OFFHOOK_CARRIERS_X",
            "{}",
            "OFFHOOK_CARRIERS_X: carriers: is a list of tables: write [[carriers]] above each",
        ),
    ],
)
def test_a_variable_that_means_nothing_is_refused(name, value, error):
    (line,) = errors_of("[server]\nport = 1", {name: value})
    assert line.startswith(error)


def test_variables_of_others_are_left_alone():
    environment = {
        "OFFHOOK_PORT": "tcp://10.0.0.1:7860",
        "OFFHOOK_PORT_7860_TCP_ADDR": "10.0.0.1",
        "OFFHOOK_SERVER_PORT": "tcp://10.0.0.1:7860",
        "OFFHOOK_ASR_SERVICE_HOST": "10.0.0.1",
        "OFFHOOK_REDIS_SERVICE_PORT_CLIENT": "6379",
        "OFFHOOK_WORKER_API_KEY": "key",
        "OFFHOOK_COMPILED": "0",
    }
    assert load(None, environment) == Config()


def test_a_byte_order_mark_is_accepted():
    Path("offhook.toml").write_bytes(b"\xef\xbb\xbf[server]\r\nport = 1\r\n")
    assert load(None, {}).server.port == 1


def test_secrets_are_not_shown():
    key = "zelkova"
    for text in (
        f"[server]\napi_key = {key}",
        f"[server]\napi_key: {key}",
        f"[server]\napi key = {key}",
        f"[server]\napi_key = ['{key}']",
        f"[agent]\nsecrets = '{key}'",
        f"[server]\nredis = {{ url = '{key}' }}",
        f"[speech]\nkeys = ['{key}']",
        f"[[sip.trunks]]\nname = 'a'\npassword = ['{key}']",
        f"[[speech.keys]]\nname = 'a'\nkey = {{ x = '{key}' }}",
    ):
        assert not any(key in line for line in errors_of(text)), text


# --- every key, every wrong type ---

PYDANTIC = (
    *("Input should", "inputs are", "Value error", "Field required", "Unexpected", "validat"),
    *("unable to", "instance of", "argument", "tuple", "frozenset", "dictionary", "mapping"),
    *("NoneType", "int_", "_type", "<class", "typing", "should have", "String should"),
)
WRONG: tuple[Any, ...] = (
    *("x y/z", "", "a" * 2_000, -(10**30), 3.5, float("nan"), float("inf"), True, False),
    *([], [[]], [{"a": 1}], {}, {"a": {"b": []}}, ["x", 1], datetime.date(2026, 1, 1)),
    *(datetime.time(1, 2), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
)


def places_in(kind: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of every key that a section takes, one entry of each list and table included."""
    if get_origin(kind) is Annotated:
        return places_in(get_args(kind)[0], path)
    if get_origin(kind) in (Union, types.UnionType):
        return [place for part in get_args(kind) for place in places_in(part, path)]
    found = [path] if path else []
    for name, known in fields_of(kind).items():
        found += places_in(known.kind, (*path, name))
    if get_origin(kind) is dict:
        found += places_in(get_args(kind)[1], (*path, "monday"))
    elif get_origin(kind) in (list, tuple, frozenset):
        found += places_in(get_args(kind)[0], (*path, 0))
    return found


def with_value(path: tuple[str | int, ...], value: Any) -> Any:
    for step in reversed(path):
        value = [value] if isinstance(step, int) else {step: value}
    return value


def test_no_wrong_value_of_any_key_is_described_by_pydantic():
    places = places_in(Config)
    assert len(places) > 200
    for path in places:
        for value in WRONG:
            try:
                Config.model_validate(with_value(path, value))
            except ValidationError as error:
                for line in faults_of(error, Config):
                    assert not any(words in line for words in PYDANTIC), (path, value, line)
                    assert len(line) < 500


def test_a_key_with_a_pattern_has_an_example_to_show():
    sections = [known.kind for known in fields_of(Config).values()]
    for section in filter(None, sections):
        for name, known in fields_of(section).items():
            has_pattern = any(getattr(limit, "pattern", None) for limit in known.limits)
            assert known.examples or not has_pattern, (section, name)


@given(st.text(st.sampled_from("ab[]{}='\"\\#\n ,.1:xé"), max_size=40))
def test_any_text_is_read_or_has_errors(text):
    read = read_toml(text)
    assert read.faults or isinstance(read.table, dict)
    assert all(1 <= line <= text.count("\n") + 1 for line, _ in read.faults)


def test_every_name_from_elsewhere_leads_to_keys_that_there_are() -> None:
    kinds, there = [Config], set()
    for kind in kinds:
        for name, known in fields_of(kind).items():
            there.add(name)
            parts = [part for each in known.kinds for part in (each, *get_args(each))]
            plain = (get_args(p)[0] if get_origin(p) is Annotated else p for p in parts)
            kinds += [one for one in plain if fields_of(one) and one not in kinds]
    assert {key for keys in OTHERS for key in keys.split()} <= there
