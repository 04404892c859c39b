"""What strangers cannot do to the log, and what it does not say of callers."""

import ast
import json
import logging
import re
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp.multipart import parse_content_disposition
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

import offhook
from offhook.web.http import logs_io
from offhook.web.http.logs import (
    BURST,
    BURST_S,
    MINUTE_S,
    Log,
    Repeats,
    brief,
    escaped,
    for_log,
    for_recording,
    masked,
)
from offhook.web.http.logs_io import set_up

FORGED = "x\n12:00:00.000 INFO    call me at http://evil/\r\x1b[2J\x9b1m\u2028\u202e\ud800\x00"


@pytest.fixture
def lines(capsys):
    """The log's lines since it was set up."""
    yield lambda: capsys.readouterr().err.splitlines()
    logger.remove()
    logging.basicConfig(handlers=[logging.NullHandler()], force=True)
    logging.captureWarnings(False)


@pytest.mark.parametrize("json_lines", [True, False])
def test_nobody_can_write_a_line_of_their_own(lines, json_lines):
    set_up(Log(json_lines=json_lines))
    logger.bind(name={FORGED: [FORGED]}).warning("Unsupported type {}", FORGED)
    try:
        raise ValueError(FORGED)
    except ValueError:
        logging.getLogger("aiohttp.server").exception("handler failed")
    written = lines()
    heads = [line for line in written if not line.startswith("  ")]
    assert len(heads) == 2
    assert not any(line.startswith("12:00:00.000 INFO") for line in written)
    text = "\n".join(map(str, map(json.loads, written))) if json_lines else "\n".join(written)
    assert not set("\x1b\x9b\r\u2028\u202e\x00") & set(text)


def test_a_clock_that_is_set_back_silences_no_warning(lines, monkeypatch):
    set_up(Log())
    wall, elapsed = datetime.now(UTC), 0.0
    monkeypatch.setattr(logs_io, "monotonic", lambda: elapsed)
    told = logger.patch(lambda record: record.update(time=wall))

    def warn(text):
        told.warning(text)  # always from here

    for _ in range(BURST + 5):
        warn("again")
    assert len(lines()) == BURST
    wall, elapsed = wall - timedelta(days=365), elapsed + BURST_S
    warn("and anew")
    written = lines()
    assert "5 more like this" in written[0]
    assert "and anew" in written[1]


@given(st.text(st.characters(codec=None)))
def test_what_is_escaped_is_one_line_that_any_stream_takes(text):
    safe = escaped(text)
    safe.encode()
    assert len(safe.splitlines()) <= 1
    assert safe.isprintable() or not any(c < " " or "\x7f" <= c <= "\x9f" for c in safe)


def test_a_line_repeated_without_end_is_written_a_few_times_and_then_counted(lines, monkeypatch):
    now = 0.0
    monkeypatch.setattr(logs_io, "monotonic", lambda: now)
    set_up(Log())
    for number in range(500):
        logger.warning("malformed packet {}", number)
    logger.info("another line")
    logger.warning("another warning")
    written = lines()
    assert len(written) == BURST + 2
    assert "another line" in written[-2]
    assert "another warning" in written[-1]
    now += BURST_S
    logger.info("later")
    line, later = lines()
    assert f"{500 - BURST} more like this" in line
    assert "malformed packet 499" in line
    assert "later" in later
    for number in range(BURST + 3):
        logger.warning("malformed packet {}", number)
    logger.remove()
    assert "3 more like this" in lines()[-1]


def test_each_place_in_the_source_has_a_burst_of_its_own_and_gets_a_new_one():
    repeats, one, other = Repeats(), ("a", 1), ("a", 2)
    assert [repeats.admit(one, "x", 0.0) for _ in range(BURST + 5)] == [True] * BURST + [False] * 5
    assert repeats.admit(other, "y", 1.0)
    assert repeats.over(BURST_S - 0.1) == []
    ((level, said),) = repeats.over(BURST_S)
    assert level == "WARNING"
    assert said == f"5 more like this in {BURST_S:g} s (a:1): x"
    assert repeats.over(BURST_S + 1.5) == []
    assert repeats.admit(one, "x", BURST_S)


def test_what_strangers_cause_is_written_once_a_minute_for_each_kind(lines):
    set_up(Log())
    for _ in range(500):
        for kind in ("full", "idle"):
            logger.bind(a_minute=kind).info("refused: {}", kind)
    assert [line.split()[-1] for line in lines()] == ["full", "idle"]
    logger.remove()
    ends = lines()
    assert ["499 more like this in 60 s" in line for line in ends] == [True, True]


def test_the_next_minutes_line_counts_those_left_out():
    repeats, kind = Repeats(), ("a", 1, "full")
    assert [repeats.admit(kind, "x", now) for now in (0.0, 1.0, MINUTE_S - 1)] == [
        True,
        False,
        False,
    ]
    assert repeats.over(MINUTE_S - 0.5) == []
    assert repeats.over(MINUTE_S) == [("WARNING", "2 more like this in 60 s (a:1): x")]
    assert not repeats.admit(kind, "y", MINUTE_S + 1, "INFO")
    assert repeats.over(2 * MINUTE_S) == [("INFO", "1 more like this in 60 s (a:1): y")]
    assert repeats.over(3 * MINUTE_S) == []
    assert repeats.admit(kind, "z", 3 * MINUTE_S)


def test_the_standard_librarys_loggers_are_told_apart(lines):
    set_up(Log())
    for _ in range(3 * BURST):
        logging.getLogger("asyncio").error("one")
    logging.getLogger("aiortc").error("two")
    assert [line.split()[-1] for line in lines()] == ["one"] * BURST + ["two"]


def test_a_level_of_a_librarys_own_is_no_error(lines):
    set_up(Log())
    logging.getLogger("library").log(35, "between warning and error")
    assert "between warning and error" in lines()[-1]


PACKAGE = Path(offhook.__file__).parent


def test_every_module_logs_by_the_one_logger():
    """The standard library's is held at WARNING: an INFO of a module of ours would be lost."""
    using = re.compile(r"^ *(?:import|from) logging\b", re.MULTILINE)
    paths = [path for path in PACKAGE.rglob("*.py") if using.search(path.read_text())]
    assert paths == [Path(logs_io.__file__)]


def test_no_message_has_a_repr_of_python_or_a_mark_instead_of_a_word():
    levels = ("trace", "debug", "info", "warning", "error", "exception", "log")
    for path in PACKAGE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            for text in call.args[:2] if call.func.attr in levels else ():
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    words = text.value.removeprefix("{}: ")
                    assert "!r}" not in words, (path, words)
                    assert not words.startswith("x "), (path, words)


def test_a_line_has_its_date_and_an_events_fields_are_no_python(lines):
    set_up(Log())
    fields = {"text": 'It\'s "ok"\n', "sure": True, "language": None, "words": ["a"], "at_ms": 1}
    logger.info("a1: caller_turn {}", brief(fields))
    [line] = lines()
    date, time, level, *_ = line.split()
    assert datetime.fromisoformat(f"{date} {time}").date() == datetime.now().astimezone().date()
    assert level == "INFO"
    assert line.endswith(r"""caller_turn text="It's \"ok\"\n" sure=true words=["a"]""")


# --- keys ---


def test_a_recording_says_which_keys_were_pressed_only_where_it_was_asked_for():
    turn = {"turn": 1, "text": "my number is 12 [pressed 4929#] thanks"}
    assert for_recording(turn, has_keys=True) == turn
    masked = for_recording(turn, has_keys=False)
    assert masked == {"turn": 1, "text": "my number is 12 [pressed ****] thanks"}
    assert for_recording({"digit": "5"}, has_keys=False) == {"digit": "*"}
    assert for_recording({"digit": "5"}, has_keys=True) == {"digit": "5"}


# --- words ---

TURN = {"turn": 1, "text": "my card is 4929 1234 5678 9012"}


def test_words_are_in_the_log_only_where_it_was_asked_for():
    assert not Log().has_words
    assert Log(level="DEBUG").has_words
    assert not Log(level="DEBUG", words=False).has_words
    assert Log(words=True).has_words
    assert for_log(TURN, has_words=False) == {"turn": 1, "text": "(7 words)"}
    assert for_log(TURN, has_words=True) == {"turn": 1, "text": "my card is ****"}
    assert for_log({"digit": "5"}, has_words=True) == {"digit": "*"}


@pytest.mark.parametrize(
    ("said", "logged"),
    [
        ("[pressed 12]", "[pressed ****]"),
        ("my pin is 1234 thanks", "my pin is **** thanks"),
        ("4929-1234-5678-9012.", "****."),
        ("it is four nine two nine, one two three four", "it is ****"),
        ("double seven oh three is the code", "**** is the code"),
        ("two coffees and one tea for 3 at 18:30", "two coffees and one tea for 3 at 18:30"),
    ],
)
def test_numbers_that_may_be_secret_are_masked(said, logged):
    assert masked(said) == logged


def test_what_looks_like_a_key_is_not_in_the_log(lines):
    set_up(Log())
    logger.bind(api='{"api_key": "zelkova1"}').error("Bearer zelkova2 sk-proj-zelkova34567 refused")
    logger.warning("protocols ['realtime', 'openai-insecure-api-key.zelkova']")
    logger.warning("token offhook_zelk.ova0ova1ova2ova3ova4")
    try:
        raise RuntimeError("Incorrect API key provided: sk-zelkova-4567890. password=zelkova5")
    except RuntimeError:
        logger.exception("failed")
    written = "\n".join(lines())
    assert "refused" in written
    assert "zelkova" not in written
    assert "zelk.ova" not in written


def test_warnings_of_python_are_lines_of_the_log_like_others(lines):
    set_up(Log())
    warnings.warn(FORGED, RuntimeWarning, stacklevel=1)
    (line,) = [line for line in lines() if not line.startswith("  ")]
    assert "RuntimeWarning: x\\n12:00:00.000 INFO" in line


def test_a_form_that_aiohttp_warns_of_writes_nothing(lines):
    """Each text would be a line, and be kept."""
    set_up(Log())
    assert parse_content_disposition('form-data; name="x"; ' + FORGED) == (None, {})
    assert lines() == []
