"""`offhook calls`: the calls that are kept."""

import json
import os
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offhook.web.app.cli.terminal import Terminal
from offhook.web.http.loop_io import run

if TYPE_CHECKING:
    from offhook.web.config.config import Config
    from offhook.web.records.search import Search
    from offhook.web.records.store import CallStore


def kept_calls(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.app.cli import calls_io
    from offhook.web.config import config as configuration
    from offhook.web.records.errors import SearchError, StoreError

    a = arguments
    if a.action == "key":
        from offhook.media.sealing.keyring import new_key

        terminal.show(new_key())
        return 0
    try:
        config = configuration.load(a.config)
        store = calls_io.opened(config)
        if a.action in ("list", "export"):
            return _list_calls(store, a, terminal)
        if a.action == "analyze":
            return _analyze_calls(store, config, a, terminal)
        if a.action == "forget":
            return _forget_calls(store, config, a, terminal)
        if a.action == "webhooks":
            return _list_webhooks(store, a, terminal)
        call = store.show(a.call)
        if call is None:
            raise StoreError(f"there is no call {a.call}: see offhook calls list")
        if a.action in ("play", "save"):
            return _open_recording(store, call, config, a, terminal)
        if a.json:
            terminal.show(
                json.dumps({**call, "timeline": store.timeline(a.call)}, ensure_ascii=False)
            )
        else:
            terminal.show("\n".join(calls_io.story(call, store.timeline(a.call))))
    except (SearchError, StoreError) as error:
        terminal.warn(error)
        return 1
    return 0


def _open_recording(
    store: "CallStore",
    call: dict[str, Any],
    config: "Config",
    arguments: Namespace,
    terminal: Terminal,
) -> int:
    """Plays or saves a recording, which is noted in the store as a look at it."""
    from offhook.web.app.cli import calls_io

    opener = calls_io.Opener(config)
    who = f"uid {os.getuid()} by offhook calls {arguments.action}"
    if arguments.action == "save":
        found = opener.save(call, arguments.folder)
        terminal.show("\n".join(map(str, found)))
    else:
        found = {Path(call["recording"]): opener.play(call)}
    store.look(call["call_id"], "recording", who, time.time())
    cut = [path for path, whole in found.items() if not whole]
    for path in cut:
        terminal.warn(f"{path}: its end is missing: the call goes on, or it was cut off")
    return 1 if cut else 0


def _analyze_calls(
    store: "CallStore", config: "Config", arguments: Namespace, terminal: Terminal
) -> int:
    from offhook.web.app.cli.analyze_io import analyze, in_words

    a = arguments
    calls = [a.call]
    if not a.call:
        search = _search_of(a)
        if search == type(search)(limit=search.limit):
            terminal.warn("which calls? write an id, or what is looked for: --from 7d")
            return 1
        calls = [call["call_id"] for call in store.find(search)[0]]
    elif store.show(a.call) is None:
        terminal.warn(f"there is no call {a.call}: see offhook calls list")
        return 1

    def show(found: dict[str, Any]) -> None:
        terminal.show(json.dumps(found, ensure_ascii=False) if a.json else in_words(found))

    return int(not run(analyze(store, config, calls, show)))


def _search_of(arguments: Namespace) -> "Search":
    """Raises SearchError."""
    from offhook.web.app.cli import calls_io
    from offhook.web.records.search import Search

    a = arguments
    named = {"min_latency": a.min_latency}
    for name, when in (("from", a.start), ("to", a.end)):
        named[name] = calls_io.in_this_zone(when) if when else ""
    named |= {
        name: getattr(a, name)
        for name in (
            *("number", "agent", "trunk", "edge", "state", "reason", "text"),
            *("analysis", "criterion", "tenant"),
        )
    }
    query = {name: value for name, value in named.items() if value}
    query |= {name: "true" for name in ("failed", "interrupted") if getattr(a, name)}
    return Search.of({**query, "limit": a.limit})


def _list_calls(store: "CallStore", arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.app.cli import calls_io

    a, search = arguments, _search_of(arguments)
    if a.action == "export":
        for line in calls_io.exported(store, search, as_csv=a.csv):
            terminal.show(line)
        return 0
    calls, cursor = store.find(search)
    if a.json:
        terminal.show(json.dumps({"calls": calls, "cursor": cursor}, ensure_ascii=False))
        return 0
    for line in calls_io.table(calls):
        terminal.show(line)
    if cursor:
        terminal.show(f"… and more: --limit, or --to {calls[-1]['started']}")
    return 0


def _list_webhooks(store: "CallStore", arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.app.cli import calls_io

    a = arguments
    if a.replay is not None:
        terminal.show(f"tried again now: {store.outbox.replay(time.time(), a.replay)} webhooks")
        return 0
    waiting = store.outbox.waiting()
    for line in map(json.dumps, waiting) if a.json else calls_io.webhooks(waiting):
        terminal.show(line)
    return 0


def _forget_calls(
    store: "CallStore", config: "Config", arguments: Namespace, terminal: Terminal
) -> int:
    from offhook.web.app.cli import calls_io

    a, bucket = arguments, calls_io.bucket_of(config)
    if not a.yes and not sys.stdin.isatty():
        terminal.warn("nobody can be asked here: add --yes to delete for ever")
        return 1
    if not a.yes and input(f"Delete what is known of {a.number_or_id} for ever? [y/N] ") != "y":
        return 1
    deletion, now = store.deletion, time.time()
    is_call = store.show(a.number_or_id) is not None
    forget = deletion.forget_call if is_call else deletion.forget_number
    forgotten = forget(a.number_or_id, now)
    faults, waiting = deletion.finish(forgotten, now, bucket)
    if not forgotten.calls and not forgotten.recipients:
        terminal.warn(
            f"nothing is known of {a.number_or_id} in calls that are over: is it a whole number as "
            "in offhook calls list, or the id of a call that is over?"
        )
        return 1
    for fault in faults:
        terminal.warn(fault)
    terminal.show(f"forgotten: {forgotten.calls} calls, {len(forgotten.recordings)} recordings")
    if waiting:
        terminal.warn(
            f"{waiting} of them are still in the bucket: a running server deletes them as soon as "
            "it can be reached"
        )
    return 1 if faults or waiting else 0
