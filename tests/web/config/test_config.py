"""One file, one environment, and one clear line when either is wrong."""

import json
import logging
import os
import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from offhook.pipeline.conversation.agents.frontdesk_business import DEMO
from offhook.pipeline.conversation.agents.model_options import ModelOptions
from offhook.web.app.cli import main as cli
from offhook.web.config.config import Config, ConfigError, Log, load
from offhook.web.config.server import MAX_CALLS
from offhook.web.http.logs_io import set_up
from offhook.web.workers import local_worker_io
from offhook.web.workers.engines.abilities_io import check_engines, fault_of_lexicon


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """No offhook.toml of the one who runs the tests, and none of their environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OFFHOOK_")]:
        monkeypatch.delenv(name)


def written(directory, text, name="offhook.toml"):
    path = directory / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_without_a_file_everything_has_a_default():
    config = load(None, {})
    assert (config.server.host, config.server.port) == ("127.0.0.1", 7860)
    assert config == Config()


def test_the_file_of_the_working_directory_is_read_unless_another_is_named(tmp_path):
    written(tmp_path, "[server]\nport = 1")
    other = written(tmp_path, "[server]\nport = 2", "other.toml")
    assert load(None, {}).server.port == 1
    assert load(other, {}).server.port == 2


def test_the_environment_comes_last_and_numbers_are_numbers(tmp_path):
    path = written(tmp_path, "[server]\nport = 1\nmax_calls = 3\n[opus]\nfec = true")
    environment = {"OFFHOOK_SERVER_PORT": "8080", "OFFHOOK_OPUS_FEC": "false"}
    config = load(path, environment)
    assert (config.server.port, config.server.max_calls, config.opus.fec) == (8080, 3, False)


def test_lists_and_tables_come_as_json_in_the_environment():
    servers = [{"urls": "turn:t.example", "username": "u", "credential": "c"}]
    environment = {
        "OFFHOOK_WEBRTC_ADDRESSES": '["127.0.0.1", "::1"]',
        "OFFHOOK_WEBRTC_ICE_SERVERS": json.dumps(servers),
        "OFFHOOK_TURN_END_SILENCE": "300",
        "OFFHOOK_TURN_MODEL": "models/eou.onnx",
    }
    config = load(None, environment)
    assert config.webrtc.addresses == ["127.0.0.1", "::1"]
    assert config.webrtc.ice_servers[0].credential == "c"
    assert config.turn.end_silence == 300
    assert config.turn.model == "models/eou.onnx"


def test_what_is_set_for_others_passes():
    environment = {"OFFHOOK_PORT_7860_TCP": "tcp://10.0.0.1", "OFFHOOK_SPEECH": "/s", "PATH": "/"}
    assert load(None, environment) == Config()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[server]\nprot = 1", "server.prot"),
        ("[sever]\nport = 1", "sever"),
        ("[server]\nport = 70000", "server.port"),
        ("[server]\nport = 'x'", "server.port"),
        (f"[server]\nmax_calls = {MAX_CALLS + 1}", "server.max_calls"),
        ("server = 3", "server"),
        ("[agent]\nkind = 'robot'", "agent.kind"),
        ("[webrtc]\nice_servers = [{urls = 3}]", "webrtc.ice_servers.0.urls"),
        ("[opus]\nbitrate = 1", "opus.bitrate"),
        ("[turn]\nend_silense = 1", "end_silense"),
        ("[turn]\nend_silence = 'long'", "turn.end_silence"),
        ("[frontdesk]\nhorus = 1", "frontdesk.horus"),
        ("[frontdesk.hours]\nmonday = '9-17'", "frontdesk.hours.monday: must be like"),
        ("[server]\nport = x", "toml:2: "),
        (b"\xff\xff", "UTF-8"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, names):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert names in str(caught.value)


def test_the_demo_business_can_be_copied_as_it_is(tmp_path):
    file = resources.files("offhook.pipeline.conversation.agents") / "frontdesk.toml"
    assert load(written(tmp_path, file.read_text()), {}).frontdesk == DEMO == Config().frontdesk


def test_all_faults_are_named_at_once(tmp_path):
    path = written(tmp_path, "[server]\nprot = 1\nport = -1\n[log]\nlevel = 'LOUD'")
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        "server.prot",
        "server.port",
        "log.level",
    ]


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({"OFFHOOK_SERVER_PROT": "1"}, "server.prot"),
        ({"OFFHOOK_SERVER_PORT": "many"}, "server.port"),
        ({"OFFHOOK_WEBRTC_ADDRESSES": "[1"}, "OFFHOOK_WEBRTC_ADDRESSES"),
        ({"OFFHOOK_WEBRTC_ADDRESSES": "127.0.0.1"}, "webrtc.addresses"),
    ],
)
def test_a_wrong_environment_is_named(environment, names):
    with pytest.raises(ConfigError, match=names):
        load(None, environment)


def test_a_table_that_is_none_is_no_traceback_with_an_environment(tmp_path):
    path = written(tmp_path, "server = 3")
    with pytest.raises(ConfigError, match="server"):
        load(path, {"OFFHOOK_SERVER_PORT": "1"})


@given(
    st.dictionaries(
        st.sampled_from([f"OFFHOOK_{n.upper()}_{k}" for n in Config.model_fields for k in "AB"])
        | st.sampled_from(["OFFHOOK_SERVER_PORT", "OFFHOOK_TURN_END_SILENCE", "OFFHOOK_LOG_LEVEL"]),
        st.text(max_size=12) | st.sampled_from(["[", "{}", '{"a": 1}', "[[[]]]", "nan", "1e999"]),
        max_size=4,
    )
)
def test_any_environment_is_a_configuration_or_a_config_error(environment):
    try:
        config = load(None, environment)
    except ConfigError as error:
        assert str(error)  # noqa: PT017
    else:
        assert isinstance(config, Config)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[server]\nprot = 1", "offhook.toml:2: server.prot: there is no such key"),
        ("[server]\nport = true\nhost = 1", "server.host"),
    ],
)
def test_the_command_line_says_it_in_one_line(tmp_path, capsys, text, line):
    code = cli.main(["serve", "--config", str(written(tmp_path, text))])
    captured = capsys.readouterr()
    assert code == 1
    assert line in captured.err
    assert "Traceback" not in captured.err


def test_a_config_file_that_is_not_there_is_said_so(tmp_path, capsys):
    assert cli.main(["serve", "--config", str(tmp_path / "no.toml")]) == 1
    assert capsys.readouterr().err.strip().endswith("no.toml: No such file or directory")


# --- [log] ---


@pytest.fixture
def lines(capsys, monkeypatch):
    """The log's lines since it was set up."""
    yield lambda: capsys.readouterr().err.splitlines()
    logger.remove()
    monkeypatch.undo()
    logging.basicConfig(handlers=[logging.NullHandler()], force=True)


def test_json_lines_hold_what_was_bound_and_the_whole_traceback(lines):
    set_up(Log(json_lines=True))
    logger.bind(call="abc", text='"ü"\n').info("{}: hello", "abc")
    try:
        raise KeyError("gone")
    except KeyError:
        logging.getLogger("aiohttp.server").exception("handler failed {x}")
    first, second = map(json.loads, lines())
    assert (first["call"], first["text"], first["level"]) == ("abc", '"ü"\\n', "INFO")
    assert first["message"] == "abc: hello"
    assert second["message"] == "handler failed {x}"
    assert "KeyError: 'gone'" in second["exception"]
    assert "test_config.py" in second["exception"]


def test_a_message_is_one_line_and_levels_hold(lines):
    set_up(Log(level="WARNING"))
    logger.info("not shown")
    logging.getLogger("aioice.ice").info("nor this")
    logger.warning("shown <red>{as it is}</red>")
    assert [line[24:].strip() for line in lines()] == ["WARNING shown <red>{as it is}</red>"]


@pytest.mark.parametrize("json_lines", [True, False])
def test_a_traceback_tells_no_secret(lines, json_lines):
    key = "zelkova"
    config = Config.model_validate(
        {
            "server": {"api_key": key},
            "webrtc": {"ice_servers": [{"urls": "turn:turn.example", "credential": key}]},
            "asr": {"api_key": key},
            "tts": {"api_key": key},
            "agent": {"api_key": key},
            "speech": {"keys": [{"name": "bot", "key": key}], "translate_api_key": key},
        }
    )
    set_up(Log(json_lines=json_lines))

    def handler(config, given):
        raise KeyError("gone")

    try:
        handler(config, f"Bearer {key}")
    except KeyError:
        logging.getLogger("aiohttp.server").exception("handler failed")
    logger.info("with {}", config)
    logged = "\n".join(lines())
    assert "KeyError: 'gone'" in logged
    assert "ice_servers" in logged
    assert key not in logged


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[asr]\nengine = 'whisper'", "asr.engine: "),
        ("[asr]\nurl = 'gpu:7870'", "asr.url: not http://host:port or unix:PATH"),
        ("[asr]\nprecision = 'int4'", "asr.precision: "),
        ("[asr]\nupdate_ms = 20", "asr.update_ms: "),
        ("[asr]\nupdate_ms = 1121", "asr.update_ms: "),
        ("[asr]\nmax_batch_latency_ms = -1", "asr.max_batch_latency_ms: "),
        ("[asr]\nlanguage = 'English'", "asr.language is 'English', not a code such as 'en'"),
        ("[tts]\nengine = 'festival'", "tts.engine: "),
        ("[tts]\nurl = 'gpu'", "tts.url: not http://host:port or unix:PATH"),
        ("[tts]\nspeed = 3", "tts.speed: "),
        ("[tts]\nlanguage = 'de-DE'", "tts.language is 'de-DE', not a code such as 'en'"),
        (
            "[asr]\nengine = 'nemotron'\naligner = 'a'",
            "asr.aligner is for qwen3-asr and qwen3-asr-official, not for nemotron",
        ),
        (
            "[asr]\nprecision = 'fp8-weights'",
            "asr.precision is for qwen3-asr and nemotron, not for small",
        ),
        ("[asr]\ndevice = 'cuda'", "asr.device is for engines that can use a GPU, not for small"),
        ("[asr]\nmodel = 'x/y'", "asr.model is for an engine that is named, not for small"),
        ("[tts]\nmax_requests = 2", "tts.max_requests is for openai, not for embedded"),
    ],
)
def test_engines_that_cannot_be_say_so(tmp_path, line, says):
    with pytest.raises(ConfigError, match=r"^\S+:\d: " + says):
        load(written(tmp_path, line), {})


def test_keys_of_before_name_those_of_today(tmp_path):
    old = 'hub = ""\nasr = "nemotron"\nasr_max_batch_latency_ms = 2\ntts_voice = "Ryan"'
    with pytest.raises(ConfigError) as refused:
        load(written(tmp_path, f"[engines]\n{old}"), {})
    assert str(refused.value).partition(": ")[2] == (
        "engines: asr is now [asr] engine, "
        "asr_max_batch_latency_ms is now [asr] max_batch_latency_ms, tts_voice is now [tts] voice"
    )
    with pytest.raises(ConfigError, match=r"engines: .*asr_url is now \[asr\] url$"):
        load(None, {"OFFHOOK_ENGINES_ASR_URL": "http://gpu:7870"})


def test_what_kubernetes_says_of_services_is_passed_over():
    names = ("SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_7870_TCP_ADDR")
    assert load(None, {f"OFFHOOK_ASR_{name}": "tcp://10.0.0.1:7870" for name in names}) == Config()


@pytest.mark.parametrize(
    ("kind", "engine"), [("asr", "qwen3-asr"), ("asr", "nemotron"), ("tts", "qwen3-tts")]
)
async def test_another_engine_is_all_that_is_changed_for_a_worker_of_this_machine(
    monkeypatch, kind, engine
):
    monkeypatch.setattr(local_worker_io, "check_engine", lambda kind, engine: None)
    config = load(None, {f"OFFHOOK_{kind.upper()}_ENGINE": engine})
    async with local_worker_io.local_workers(config) as served:
        section = getattr(served, kind)
        assert section.url.startswith("unix:/")
        assert (section.preload, section.engine) == (False, engine)
        other = getattr(served, {"asr": "tts", "tts": "asr"}[kind])
        assert (other.url, other.preload) == ("", None)
    elsewhere = {f"OFFHOOK_{kind.upper()}_URL": "http://gpu:7870"}
    for environment in ({}, elsewhere, {f"OFFHOOK_{kind.upper()}_ENGINE": engine, **elsewhere}):
        config = load(None, environment)
        async with local_worker_io.local_workers(config) as served:
            assert served is config


async def test_two_engines_have_two_workers(monkeypatch):
    monkeypatch.setattr(local_worker_io, "check_engine", lambda kind, engine: None)
    speaking = {"engine": "qwen3-tts", "preload": True, "voice": "Ryan"}
    config = Config.model_validate({"asr": {"engine": "qwen3-asr"}, "tts": speaking})
    async with local_worker_io.local_workers(config) as served:
        assert len({served.asr.url, served.tts.url, ""}) == 3
        assert (served.asr.preload, served.tts.preload) == (False, True)
        assert served.tts.options().voice == "Ryan"


def test_where_models_come_from_reaches_the_workers(tmp_path):
    for hub in ("https://mirror.example/hf", "modelscope"):
        engines = {"OFFHOOK_ASR_ENGINE": "qwen3-asr", "OFFHOOK_TTS_ENGINE": "qwen3-tts"}
        config = load(None, {"OFFHOOK_ENGINES_HUB": hub, **engines})
        asr, tts = local_worker_io._wanted(config)
        assert asr.models.hub == tts.models.hub == hub
    with pytest.raises(ConfigError, match=r"engines\.hub"):
        load(written(tmp_path, '[engines]\nhub = "modelscape"'), {})


def test_how_long_nemotron_waits_for_company_reaches_its_worker():
    nemotron = {"OFFHOOK_ASR_ENGINE": "nemotron"}
    config = load(None, {"OFFHOOK_ASR_MAX_BATCH_LATENCY_MS": "2.5", **nemotron})
    assert config.asr.models("").max_batch_latency_ms == 2.5
    assert Config().asr.models("").max_batch_latency_ms == 0
    assert Config().asr.options().update_ms == 400


def test_the_cache_of_replies_has_a_size(tmp_path):
    config = load(written(tmp_path, "[tts]\naudio_cache_mb = 8"), {})
    models = config.tts.models("hub")
    assert (models.audio_cache_mb, models.hub, models.precision) == (8, "hub", "auto")
    with pytest.raises(ConfigError, match=r"tts\.audio_cache_mb"):
        load(written(tmp_path, "[tts]\naudio_cache_mb = 0"), {})


def test_the_example_is_the_defaults():
    text = (Path(__file__).parents[3] / "offhook.example.toml").read_text()
    assert Config.model_validate(tomllib.loads(text)) == Config()


PROGRAM = 'kind = "webhook"\nurl = "https://app.example/hook"\nsecrets = ["0123456789abcdef"]\n'


def test_a_program_is_an_agent(tmp_path):
    desk = '[agents.desk]\nkind = "frontdesk"\n'
    text = f'{desk}[agents.program]\n{PROGRAM}fallback = "desk"\n[realtime]\nfrozen = ["tools"]\n'
    config = load(written(tmp_path, text), {})
    program = config.agents["program"]
    assert (program.accept_seconds, program.fallback) == (20, "desk")
    assert config.realtime.frozen == {"tools"}
    assert "0123456789abcdef" not in repr(config)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[agents.p]\nkind = "webhook"', "needs url and secrets"),
        (f"[agents.p]\n{PROGRAM.replace('https', 'ftp')}", "agents.p.url"),
        (f"[agents.p]\n{PROGRAM.replace('0123456789abcdef', 'short')}", "too short"),
        (f"[agents.p]\n{PROGRAM.replace('0123456789abcdef', 'whsec_%')}", "not base64"),
        (f"[agents.p]\n{PROGRAM}accept_seconds = 61", "accept_seconds"),
        (f"[agents.p]\n{PROGRAM}[sip]\nring_seconds = 10", "longer than phones ring"),
        (f'[agents.p]\n{PROGRAM}fallback = "q"\n[agents.q]\n{PROGRAM}', "cannot answer"),
        ('[agents.p]\nurl = "https://app.example"', 'kind = "webhook"'),
        ('[realtime]\nfrozen = ["audio/voice"]', "is not a field"),
    ],
)
def test_a_program_that_cannot_be_asked_is_a_fault(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says):
        load(written(tmp_path, text), {})


def test_the_example_of_a_team_starts_and_is_reached_from_this_machine_alone() -> None:
    config = load(Path(__file__).parents[3] / "examples" / "team.toml", {})
    assert config.server.local
    assert config.sip is not None
    assert config.sip.host == "127.0.0.1"


def test_a_realtime_model_is_an_agent():
    config = load(Path(__file__).parents[3] / "examples" / "realtime_trunk.toml", {})
    assert (config.agent.kind, config.agent.model, config.agent.voice) == (
        *("realtime", "gpt-realtime", "marin"),
    )
    assert config.agents[config.agent.fallback].kind == "frontdesk"


AZURE = """
[agent]
kind = "openai"
base_url = "https://desk.openai.azure.com/openai/deployments/desk"
model = "gpt-4o"
temperature = 0.3
top_p = 0.9
max_tokens = 200
reasoning_effort = "low"
headers = {api-key = "0123456789abcdef"}
query = {api-version = "2024-10-21", sig = "fedcba9876543210"}
extra_body = {chat_template_kwargs = {enable_thinking = false}}
[agents.plain]
kind = "openai"
"""


def test_a_model_can_be_tuned_and_addressed_per_agent(tmp_path):
    config = load(written(tmp_path, AZURE), {"OFFHOOK_AGENT_EXTRA_BODY": '{"seed": 1}'})
    options = config.agent.options
    assert options.parameters() == {
        "temperature": 0.3,
        "top_p": 0.9,
        "max_tokens": 200,
        "reasoning_effort": "low",
    }
    assert options.extra_body == {"seed": 1}
    assert options.headers == {"api-key": "0123456789abcdef"}
    assert options.query["api-version"] == "2024-10-21"
    assert options.secrets() == ("0123456789abcdef", "fedcba9876543210")
    assert config.agents["plain"].options == ModelOptions()
    for text in (repr(config), repr(options)):
        assert "0123456789abcdef" not in text
        assert "fedcba9876543210" not in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('base_url = "localhost:8000/v1"\nmodel = "m"', "begins with http:// or https://"),
        ('base_url = "http:///v1"\nmodel = "m"', "begins with http:// or https://"),
        ('base_url = "ws://gpu/v1"\nmodel = "m"', "does not begin with http://"),
        ('base_url = "https://a/v1?api-version=1"\nmodel = "m"', "given by query"),
        ('base_url = "http://gpu:8000/v1"', "needs model"),
        ("temperature = 3", "agent.temperature"),
        ("top_p = 0", "agent.top_p"),
        ("max_tokens = 0", "agent.max_tokens"),
        ('reasoning_effort = "Very much"', "agent.reasoning_effort"),
        ('headers = {"api key" = "x"}', "'api key' is no header"),
        ('headers = {Content-Type = "text/plain"}', "'Content-Type' is no header"),
        ('headers = {api-key = "\\n"}', "the value of api-key"),
        ("extra_body = {messages = []}", "messages cannot be set"),
        ('api_key = "k"\nheaders = {authorization = "Basic x"}', "exclude each other"),
        (
            'kind = "realtime"\nmodel = "m"\ntemperature = 1',
            'temperature: only for kind = "openai"',
        ),
        ('kind = "frontdesk"\nheaders = {a = "b"}', 'headers: only for kind = "openai" or'),
    ],
)
def test_a_model_that_cannot_be_queried_so_is_a_fault(tmp_path, text, says):
    kind = "" if text.startswith("kind") else 'kind = "openai"\n'
    with pytest.raises(ConfigError, match=re.escape(says)):
        load(written(tmp_path, f"[agent]\n{kind}{text}"), {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[agents.r]\nkind = "realtime"', "needs model"),
        (
            '[agents.r]\nkind = "realtime"\nmodel = "m"\ngoodbye = "Bye."',
            'goodbye: only for kind = "frontdesk" or "openai"',
        ),
        (
            '[agents.r]\nkind = "realtime"\nmodel = "m"\n'
            '[agents.o]\nkind = "openai"\nfallback = "r"',
            "agents.o.fallback: 'r' cannot answer",
        ),
    ],
)
def test_what_is_wrong_with_a_realtime_agent_is_named(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says):
        load(written(tmp_path, text), {})


def test_instructions_of_a_file_are_those_of_the_agent(tmp_path):
    (tmp_path / "desk.md").write_bytes(b"\xef\xbb\xbfYou sell bicycles.\n")
    config = load(written(tmp_path, '[agent]\ninstructions_file = "desk.md"'), {})
    assert config.agent.instructions == "You sell bicycles."


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('instructions_file = "none.md"', "none.md: No such file or directory"),
        ('instructions_file = "bad.md"', "bad.md: is not UTF-8"),
        (
            'instructions_file = "odd.md"',
            "instructions_file has {{nobody}}, which is none of caller",
        ),
        ('instructions_file = "odd.md"\ninstructions = "x"', "exclude each other"),
        ('instructions = "{{plan}} {{caller}}"', "instructions has {{plan}}, which is none of"),
        ('greeting = "{{name}}"\nvariables = {nam = "you"}', "greeting has {{name}}"),
        ('silence = [{after = 5, say = "{{x}}"}]', "agent.silence.0.say has {{x}}"),
        ('sentences = {trouble = "{{x}}"}', "agent.sentences.trouble has {{x}}"),
        ('goodbye = "{{x}}"\nmessage = "{{y}}"', ":3: agent.message has {{y}}"),
        ("silence = [{after = 5}]", "needs say"),
        (
            'silence = [{after = 5, hang_up = true}, {after = 5, say = "?"}]',
            "no step comes after hang_up",
        ),
        ('variables = {caller = "x"}', "'caller' cannot be a variable"),
        ('variables = {"my plan" = "x"}', "'my plan' cannot be a variable"),
        ('greeting = "{{header.}} {{header.X Foo}}"', "{{header.}}, {{header.X Foo}}, which"),
        ('greeting = "{{plam}}"\nvariables = {plan = "x"}', "header.NAME, plan"),
        ('silence = [{after = 0, say = "?"}]', "agent.silence.0.after"),
        ('time_zone = "Berlin"', "'Berlin' is no time zone, such as Europe/Berlin"),
        ('time_zone = "../etc/passwd"', "is no time zone"),
        ('language = "german!"', "agent.language"),
        ("speed = 9", "agent.speed"),
        ('kind = "silent"\ngreeting = "Hello."', 'greeting: only for kind = "frontdesk", "op'),
    ],
)
def test_what_an_agent_cannot_say_is_a_fault_at_the_start(tmp_path, text, says):
    (tmp_path / "bad.md").write_bytes(b"\xff")
    (tmp_path / "odd.md").write_text("Hello {{nobody}}")
    with pytest.raises(ConfigError, match=re.escape(says)):
        load(written(tmp_path, f"[agent]\n{text}"), {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('kind = "frontdesk"\nlanguages = ["en", "de"]', 'languages: only for kind = "openai"'),
        ('kind = "openai"\nlanguages = ["en", "de"]\nlanguage = "en"', "exclude each other"),
        ('kind = "openai"\nlanguages = ["en", "en"]', "languages: at least two"),
        ('kind = "openai"\nlanguages = ["en", "german"]', "languages: 'german' is none of ar, cs"),
        ('kind = "openai"\nvoices = {de = "anna"}', "voices: 'de' is none of the languages"),
    ],
)
def test_languages_that_an_agent_cannot_follow_are_faults(tmp_path, text, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        load(written(tmp_path, f"[agents.a]\n{text}"), {})


@pytest.mark.parametrize(
    ("engines", "more", "faults"),
    [
        (
            '[asr]\nengine = "pocketsphinx"\n[tts]\nengine = "qwen3-tts"',
            "",
            ["agents.a.languages: pocketsphinx hears en, not 'de'"],
        ),
        (
            '[asr]\nengine = "qwen3-asr"\n[tts]\nengine = "flite"',
            "",
            ["agents.a.languages: flite speaks en, not 'de'"],
        ),
        (
            '[asr]\nengine = "qwen3-asr"\n[tts]\nengine = "espeak"',
            'voices = {de = "en-us"}',
            ["agents.a.languages: the voice en-us of espeak speaks en, not 'de'"],
        ),
        ('[asr]\nengine = "qwen3-asr"\n[tts]\nengine = "qwen3-tts"', "", []),
        (
            '[asr]\nengine = "qwen3-asr"\n[tts]\nengine = "espeak"',
            'voice = "en-us"\nvoices = {de = "de"}',
            [],
        ),
    ],
)
def test_each_engine_must_have_each_language_of_an_agent(tmp_path, engines, more, faults):
    text = f'{engines}\n[agents.a]\nkind = "openai"\nlanguages = ["en", "de"]\n{more}'
    config = load(written(tmp_path, text), {})
    if not faults:
        check_engines(config)
        return
    with pytest.raises(ConfigError) as fault:
        check_engines(config)
    for line, words in zip(str(fault.value).splitlines(), faults, strict=True):
        assert line.startswith(f"{tmp_path / 'offhook.toml'}:7: {words}")


def test_a_lexicon_is_read_from_its_file(tmp_path):
    (tmp_path / "l.toml").write_text('Kia = "kee-ah"\nQatar = {ipa = "ˈkʌtə"}\n', "utf-8")
    config = load(
        written(tmp_path, '[tts]\nlexicon = "l.toml"\n[agents.a]\nlexicon = "l.toml"'), {}
    )
    assert [entry.say for entry in config.tts.pronunciations.entries] == ["kee-ah", ""]
    assert config.agents["a"].pronunciations == config.tts.pronunciations
    assert not config.agent.pronunciations.entries


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[tts]\nlexicon = "none.toml"', "lexicon none.toml: No such file or directory"),
        ('[tts]\nlexicon = "bad.toml"', "lexicon bad.toml: "),
        ('[agents.a]\nlexicon = "odd.toml"', "lexicon odd.toml: 'Kia' needs say"),
        ('[agent]\nkind = "silent"\nlexicon = "l.toml"', "lexicon: only for kind = "),
    ],
)
def test_a_lexicon_that_cannot_be_used_is_a_fault_at_the_start(tmp_path, text, says):
    (tmp_path / "bad.toml").write_text("Kia")
    (tmp_path / "odd.toml").write_text("Kia = {}")
    (tmp_path / "l.toml").write_text('Kia = "kee-ah"')
    with pytest.raises(ConfigError, match=re.escape(says)):
        load(written(tmp_path, text), {})


@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        ("flite", "the lexicon has Qatar in IPA only, which flite does not take: add say"),
        ("espeak", ""),
        ("kokoro", ""),
        ("qwen3-tts", "Qatar in IPA only, which qwen3-tts does not take"),
        ("auto", ""),
    ],
)
def test_phonemes_that_an_engine_does_not_take_are_named(tmp_path, engine, fault):
    (tmp_path / "l.toml").write_text('Kia = "kee-ah"\nQatar = {ipa = "ˈkʌtə"}\n', "utf-8")
    text = f'[tts]\nengine = "{engine}"\n[agent]\nlexicon = "l.toml"'
    found = fault_of_lexicon(load(written(tmp_path, text), {}))
    assert fault in found
    assert bool(found) == bool(fault)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("wyoming = 10300", ("127.0.0.1", 10300)),
        ('wyoming = "localhost:10300"', ("localhost", 10300)),
        ('wyoming = "[::1]:10300"', ("::1", 10300)),
        (
            'wyoming = "0.0.0.0:10300"\nwyoming_networks = ["192.168.1.0/24", "fd00::/8"]',
            ("0.0.0.0", 10300),
        ),
    ],
)
def test_wyoming_clients_are_of_this_machine_or_of_named_networks(tmp_path, text, address):
    config = load(written(tmp_path, f"[speech]\n{text}"), {})
    assert config.speech.wyoming_address == address


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('wyoming = "0.0.0.0:10300"', "the protocol has no keys: set wyoming_networks"),
        ('wyoming = "192.168.1.5:10300"', "the protocol has no keys: set wyoming_networks"),
        ('wyoming = "[::]:10300"', "the protocol has no keys: set wyoming_networks"),
        ('wyoming_networks = ["0.0.0.0/0"]', "0.0.0.0/0 is not a private network"),
        ('wyoming_networks = ["::/0"]', "::/0 is not a private network"),
        ('wyoming_networks = ["10.0.0.0/7"]', "10.0.0.0/7 is not a private network"),
        ('wyoming_networks = ["1.1.1.1"]', "1.1.1.1 is not a private network"),
        ('wyoming_networks = ["192.168.1.5/24"]', "has host bits set"),
        ('wyoming_networks = ["home"]', "does not appear to be"),
        ("wyoming = 70000", "70000 is no port"),
        ("wyoming = true", "speech.wyoming"),
        ('wyoming = "unix:/run/w"', "speech.wyoming"),
    ],
)
def test_nothing_lets_strangers_speak_wyoming(tmp_path, text, says):
    with pytest.raises(ConfigError, match="speech") as caught:
        load(written(tmp_path, f"[speech]\n{text}"), {})
    assert says in str(caught.value)
