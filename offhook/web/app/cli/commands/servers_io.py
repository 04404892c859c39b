"""`offhook serve` and `offhook speech`: the servers."""

import json
import os
from argparse import Namespace
from functools import partial

from offhook.web.app.cli.terminal import Terminal
from offhook.web.http.loop_io import run


def serve(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.config import config as configuration
    from offhook.web.http.logs_io import set_up
    from offhook.web.workers.engines.machine_io import keep_offline

    given = {"HOST": arguments.host, "PORT": arguments.port}
    options = {f"OFFHOOK_SERVER_{k}": str(v) for k, v in given.items() if v is not None}
    if arguments.engines:
        options |= {f"OFFHOOK_{k}_ENGINE": arguments.engines for k in ("ASR", "TTS")}
    if arguments.offline:
        options["OFFHOOK_ENGINES_OFFLINE"] = "true"
    if arguments.dev:  # others would keep the modules that they have imported
        options["OFFHOOK_SERVER_PROCESSES"] = "1"
    file = configuration.file_of(arguments.config)  # if it goes, that is no wish for the defaults
    read = partial(configuration.load, file, {**os.environ, **options})
    config = read()
    keep_offline(config)
    set_up(config.log)
    if config.server.processes > 1:
        from offhook.web.edge.processes_io import serve_all

        run(serve_all(config, arguments.bot, read))
        return 0
    from offhook.web.edge.server_io import serve

    watched = (arguments.config or configuration.DEFAULT_FILE) if arguments.dev else None
    run(serve(config, arguments.bot, read, watched))
    return 0


def speech(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.config import config as configuration
    from offhook.web.http.logs_io import set_up
    from offhook.web.workers.engines.machine_io import keep_offline
    from offhook.web.workers.gateway_io import serve

    options = {}
    if arguments.wyoming:
        options["OFFHOOK_SPEECH_WYOMING"] = arguments.wyoming
    if arguments.wyoming_network:
        options["OFFHOOK_SPEECH_WYOMING_NETWORKS"] = json.dumps(arguments.wyoming_network)
    file = configuration.file_of(arguments.config)  # if it goes, that is no wish for the defaults
    read = partial(configuration.load, file, {**os.environ, **options})
    config = read()
    keep_offline(config)
    set_up(config.log)
    run(serve(config, arguments.listen, read))
    return 0
