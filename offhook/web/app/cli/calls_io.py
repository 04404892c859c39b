"""`offhook calls`: the calls that are kept, read from the store itself: no server need run."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from offhook.media.sealing.files_io import LocalFile, NewFile, Source, StoredFile
from offhook.media.sealing.keyring import KeyFault
from offhook.media.sealing.names import SUFFIX
from offhook.media.sealing.sealed import SealFault
from offhook.web.config.config import Config
from offhook.web.records.bucket.client_io import Bucket, BucketFile
from offhook.web.records.bucket.faults import BucketFault, NotInBucket
from offhook.web.records.bucket.places import in_bucket, is_encrypted, name_of, timeline_of
from offhook.web.records.csv_cells import csv_line
from offhook.web.records.errors import StoreError
from offhook.web.records.search import Search
from offhook.web.records.store import CallStore

PLAYERS = (
    ("ffplay", "-nodisp", "-autoexit", "-loglevel", "error"),
    ("mpv", "--no-video", "--really-quiet"),
    ("play", "-q"),
)
"""Programs that play a recording, the first that is there."""

EXPORTED = (
    *("call_id", "state", "edge", "direction", "caller", "called", "trunk", "agent"),
    *("started", "answered", "ended", "seconds", "end_reason", "ended_by", "turns"),
    *("interruptions", "failures", "latency_ms", "latency_max_ms", "mos", "input_tokens"),
    *("output_tokens", "cost", "transferred_to", "recording", "outcome", "analysis_cost", "tenant"),
)
"""Columns of a CSV file."""

COPIED_BYTES = 1 << 20
"""Of a recording that are in memory at once."""

JOINERS = "\u200c\u200d"
"""Of ordinary Persian, Hindi and emoji."""

SPOKEN = {"caller_turn": "caller", "caller_typed": "caller (typed)", "agent_turn": "agent"}


def opened(config: Config) -> CallStore:
    """Returns the store of a configuration. Raises StoreError."""
    url = config.records.url
    if not url:
        raise StoreError("calls are not kept: [records] url is empty")
    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not path.exists():
        raise StoreError(
            f"there is no {path} here: run this in the folder that the server was started in, or "
            "name its configuration with --config and an absolute path in [records] url"
        )
    store = CallStore(url, config.receivers, config.analysed_by)
    store.prepare()
    return store


def in_this_zone(text: str) -> str:
    """Returns a time without a zone with that of this machine, in which lists show times."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    return text if time.tzinfo else time.astimezone().isoformat()


def table(calls: list[dict[str, Any]]) -> Iterator[str]:
    """Yields a line a call, times as they are here."""
    if not calls:
        yield "no calls"
        return
    yield (
        f"{'CALL':<18} {'STARTED':<19} {'LASTED':>7}  {'FROM':<18} {'TO':<14} {'AGENT':<12} "
        f"{'TURNS':>5} {'SLOWEST':>8}  ENDED"
    )
    for call in calls:
        slowest = "" if call["latency_max_ms"] is None else f"{call['latency_max_ms']} ms"
        ended = "in progress" if call["state"] == "live" else call["end_reason"]
        yield (
            f"{call['call_id']:<18} {_here(call['started'])} {_lasted(call['seconds']):>7}  "
            f"{_short(call['caller'] or call['edge'], 18)} {_short(call['called'], 14)} "
            f"{_short(call['agent'], 12)} {call['turns']:>5} {slowest:>8}  {_clean(ended)}"
        )


def story(call: dict[str, Any], timeline: list[dict[str, Any]]) -> Iterator[str]:
    """Yields what is known of a call, for people."""
    who = f"{call['caller'] or 'somebody'} called {call['called'] or 'us'}"
    if call["direction"] == "outbound":
        who = f"we called {call['called']}"
    yield f"{call['call_id']}: {_clean(who)} by {call['edge']}, {_here(call['started'])}"
    if call["forgotten"] is not None:
        yield "who it was and what was said has been deleted"
    agents = ", ".join(call["agents"])
    if call["state"] == "live":
        yield f"in progress, agents: {agents}"
    else:
        yield f"{_lasted(call['seconds'])}, agents: {agents}, ended: {_clean(call['end_reason'])}"
    for name in ("mos", "cost", "transferred_to", "recording"):
        if isinstance(call[name], float):
            yield f"{name}: {call[name]:.4g}"
        elif call[name]:
            yield f"{name.replace('_', ' ')}: {_clean(str(call[name]))}"
    for name in ("variables", "collected"):
        if call.get(name):
            yield f"{name}: {json.dumps(call[name], ensure_ascii=False)}"
    yield from _analysis(call.get("analysis"))
    for note in call.get("notes", ()):
        yield _clean(f"note of {note['by']}, {_here(note['at'])}: {note['text']}")
    yield ""
    for look in call["looks"]:
        yield f"{look['what']} opened by {look['who']}, {_here(look['at'])}"
    for event in timeline:
        yield f"{_clock(event['at_ms'])}  {_event_line(event)}"


def _analysis(found: dict[str, Any] | None) -> Iterator[str]:
    """Yields what a model has said of a call."""
    if found is None:
        return
    fault = f": {found['fault']}" if found.get("fault") else ""
    yield _clean(f"analysis: {found['outcome']}{fault}")
    if found.get("summary"):
        yield _clean(f"  {found['summary']}")
    for one in found.get("criteria", ()):
        at = "" if one["at_ms"] is None else f" ({_clock(one['at_ms']).strip()})"
        yield _clean(f"  {one['name']}: {one['verdict']}{at}, {one['reason']}")
    for name, value in found.get("extracted", {}).items():
        yield _clean(f"  {name} = {json.dumps(value, ensure_ascii=False)}")
    if found.get("left_out"):
        yield f"  the model was not told {found['left_out']} lines in the middle of the call"


def webhooks(waiting: list[dict[str, Any]]) -> Iterator[str]:
    """Yields a line a webhook."""
    if not waiting:
        yield "no webhook waits"
        return
    about = f"{'EVENT':<18} {'CALL OR TRUNK':<18} {'TO':<40}"
    yield f"{about} {'STATE':<8} {'TRIED':>5}  {'SINCE':<19}  FAULT"
    for one in waiting:
        since = datetime.fromtimestamp(one["created"]).astimezone()
        yield (
            f"{one['event']:<18} {_short(one['call'], 18)} "
            f"{_short(one['url'].partition('://')[2], 40)} {one['state']:<8} {one['attempts']:>5}  "
            f"{since:%Y-%m-%d %H:%M:%S}  {_clean(one['fault'])}"
        )


def exported(store: CallStore, search: Search, *, as_csv: bool) -> Iterator[str]:
    """Yields the lines of a file: CSV of the calls, or a JSON object a call with its timeline."""
    if not as_csv:
        for call in store.export(search):
            yield json.dumps(call, ensure_ascii=False)
        return
    yield ",".join(EXPORTED)
    for call in store.export(search):
        yield csv_line([call.get(name) for name in EXPORTED]).rstrip("\r\n")


def bucket_of(config: Config) -> Bucket | None:
    """Returns the bucket of a configuration; None if it has none. Raises StoreError."""
    if not config.s3.bucket:
        return None
    try:
        return Bucket(config.s3.settings)
    except ValueError as error:
        raise StoreError(f"s3: {error}") from error


class Opener:
    """Opens recordings by what a configuration knows: its keys, and its bucket."""

    def __init__(self, config: Config) -> None:
        """Raises StoreError."""
        self._recording, self._bucket = config.recording, bucket_of(config)

    def play(self, call: dict[str, Any]) -> bool:
        """Plays the recording of a call; returns whether it has its end. Raises StoreError."""
        place = self._sound_of(call)
        player, *options = next((one for one in PLAYERS if shutil.which(one[0])), ("",))
        if not player:
            programs = ", ".join(program for program, *_ in PLAYERS)
            raise StoreError(f"none of {programs} is installed here; the recording is {place}")
        whole = True
        with TemporaryDirectory(prefix="offhook-") as folder:  # of this user alone
            path = Path(place)
            if in_bucket(place) or is_encrypted(place):
                path = Path(folder) / "recording.ogg"
                whole = self._open_to(place, path)
            subprocess.run((player, *options, str(path)), check=False)
        return whole

    def save(self, call: dict[str, Any], folder: Path) -> dict[Path, bool]:
        """Writes the sound and the timeline of a call into a folder, opened if they are sealed;
        returns their files, and whether each has its end. Raises StoreError."""
        sound = self._sound_of(call)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror}") from error
        timeline = timeline_of(sound)
        places = (sound, timeline) if self._is_there(timeline) else (sound,)
        names = {folder / name_of(place).removesuffix(SUFFIX): place for place in places}
        return {to: self._open_to(place, to) for to, place in names.items()}

    def _sound_of(self, call: dict[str, Any]) -> str:
        place = str(call["recording"])
        if not place:
            raise StoreError("this call was not recorded: see [recording] enabled")
        if not self._is_there(place):
            where = "in the bucket any more" if in_bucket(place) else "on this machine"
            raise StoreError(f"{place} is not {where}: the call was at {call['server']}")
        return place

    def _is_there(self, place: str) -> bool:
        """Raises StoreError."""
        if not in_bucket(place):
            return Path(place).is_file()
        try:
            self._of_bucket().size(place)
        except NotInBucket:
            return False
        except BucketFault as fault:
            raise StoreError(f"{place}: {fault}") from fault
        return True

    def _of_bucket(self) -> Bucket:
        if self._bucket is None:
            raise StoreError("the recording is in a bucket, and none is configured: see [s3]")
        return self._bucket

    def _open_to(self, place: str, to: Path) -> bool:
        """Writes a file as it was before it was sealed; returns whether it has its end."""
        try:
            source: Source
            if in_bucket(place):
                source = BucketFile(self._of_bucket(), place)
            else:
                source = LocalFile(Path(place))
            stored = StoredFile(source, self._recording.keyring())
            try:
                file = NewFile(to, None)
                try:
                    for start in range(0, stored.length, COPIED_BYTES):
                        file.write(stored.read(start, start + COPIED_BYTES))
                    file.finish()
                except BaseException:
                    file.abandon()
                    to.unlink()
                    raise
            finally:
                stored.close()
        except FileExistsError as error:
            raise StoreError(f"{to} is there already") from error
        except (KeyFault, SealFault, ValueError, OSError) as fault:
            raise StoreError(f"{place}: {fault}") from fault
        return stored.complete


def _event_line(event: dict[str, Any]) -> str:
    kind = event["event"]
    if kind in SPOKEN or kind == "member_turn":
        cut = " (interrupted)" if event.get("interrupted") else ""
        who = event["member"] if kind == "member_turn" else SPOKEN[kind]
        return _clean(f"{who}: {event.get('text', '(not kept)')}{cut}")
    if kind == "turn_latency":
        spans = ", ".join(f"{name} {ms}" for name, ms in event["spans"])
        return f"  answered after {event['total_ms']} ms: {spans}"
    rest = {k: v for k, v in event.items() if k not in ("at_ms", "event") and v not in ("", None)}
    told = json.dumps(rest, ensure_ascii=False) if rest else ""
    return _clean(f"  {kind.replace('_', ' ')} {told}")


def _clean(text: str) -> str:
    """Returns a text without what controls a terminal."""
    return "".join(c if c.isprintable() or c in JOINERS else "�" for c in text)


def _short(text: str, width: int) -> str:
    text = _clean(text)
    return f"{text if len(text) <= width else text[: width - 1] + '…':<{width}}"


def _here(iso: str) -> str:
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M:%S}"


def _lasted(seconds: float | None) -> str:
    return "" if seconds is None else f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _clock(at_ms: int) -> str:
    return f"{at_ms // 60_000:3}:{at_ms % 60_000 / 1000:04.1f}"
