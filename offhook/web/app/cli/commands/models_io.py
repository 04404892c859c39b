"""`offhook models`: the models on this machine."""

import json
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from offhook.web.app.cli.terminal import Terminal

if TYPE_CHECKING:
    from offhook.web.app.cli.models_io import Models


def models(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.app.cli.models_io import Models, table
    from offhook.web.config import config as configuration
    from offhook.web.http.logs import Log
    from offhook.web.http.logs_io import set_up
    from offhook.web.workers.engines.machine_io import keep_offline

    set_up(Log(level="WARNING"))
    a = arguments
    config = configuration.load(a.config)
    keep_offline(config)
    models = Models(config, a.hub)
    if a.action == "pull":
        return _pull_models(models, a, terminal)
    if a.action == "rm":
        return _remove_models(models, a, terminal)
    listed = models.list()
    if a.json:
        terminal.show(json.dumps([model.as_dict() for model in listed], indent=1))
    else:
        terminal.show("\n".join(table(listed)))
        terminal.show(models.cache())
    return 0


def _pull_models(models: "Models", arguments: Namespace, terminal: Terminal) -> int:
    from offhook.pipeline.engines.hub.download_io import in_words
    from offhook.pipeline.speech.errors import EngineError
    from offhook.web.app.cli.models_io import PullLines
    from offhook.web.app.cli.transcribe_io import Bar

    a = arguments
    lines = PullLines(lambda progress: terminal.show(json.dumps(progress)))
    try:
        for target in [target for name in a.names for target in models.targets(name)]:
            lines.begin(target.name)
            bar = Bar(target.name)

            def show(done: int, total: int, bar: Bar = bar) -> None:
                bar.show(done / total if total else None, f"{in_words(done)} of {in_words(total)}")

            try:
                folder = models.pull(target, lines.progress if a.json else show)
            finally:
                bar.clear()
            if a.json:
                lines.say(state="here", folder=str(folder))
            else:
                terminal.show(f"{target.name}: {folder}")
    except EngineError as error:
        if not a.json:
            raise
        lines.say(state="failed", error=str(error))
        return 1
    return 0


def _remove_models(models: "Models", arguments: Namespace, terminal: Terminal) -> int:
    from offhook.pipeline.engines.hub.download_io import in_words

    a = arguments
    for target in [models.target(name) for name in a.names]:
        used = [key for name, keys in models.used().items() if name == target.name for key in keys]
        size = in_words(models.here(target))
        by = f", which {' and '.join(used)} names" if used else ""
        if not a.yes and models.here(target):
            if not sys.stdin.isatty():
                raise ValueError(f"{target.name} ({size}){by} is not removed unasked: give --yes")
            if input(f"Remove {target.name} ({size}){by}? [y/N] ").strip().lower() not in (
                "y",
                "yes",
            ):
                continue
        freed = models.remove(target)
        terminal.show(f"{target.name}: removed, {in_words(freed)} are free again")
    return 0
