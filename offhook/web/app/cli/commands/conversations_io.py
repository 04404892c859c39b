"""`offhook init`, `offhook chat` and `offhook eval`: an agent is set up and tried out by text."""

import sys
from argparse import Namespace
from pathlib import Path

from loguru import logger

from offhook.web.app.cli.terminal import Terminal
from offhook.web.http.loop_io import run


def init(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.app.cli.init_io import Answers, check_place, completed, fault_of_server, write

    a = arguments
    given = Answers(a.model_url, a.model, a.instructions, a.greeting, a.language)

    def ask(question: str, usual: str) -> str:
        shown = f" [{usual}]" if usual else ""
        return input(f"{question}{shown}: ").strip() or usual

    check_place(a.file, force=a.force)
    answers = run(completed(given, ask if sys.stdin.isatty() and not a.yes else None))
    lacking = write(a.file, answers, force=a.force)
    option = "" if a.file == Path("offhook.toml") else f" --config {a.file}"
    terminal.show(f"wrote {a.file}")
    for fault in filter(None, (*lacking, run(fault_of_server(answers)))):
        terminal.show(f"before the first call: {fault}")
    terminal.show(
        f"next: offhook chat{option} (by text), offhook serve{option} (then open the page)"
    )
    return 0


def chat(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.app.cli.chat_io import chat
    from offhook.web.config import config as configuration
    from offhook.web.http.logs_io import set_up

    a = arguments
    set_up(configuration.Log(level="ERROR"))  # what fails is in the conversation
    config = configuration.load(a.config)
    talk = chat(
        *(config, a.agent, a.lines, terminal.show),
        caller=a.caller,
        variables=a.variables or {},
        as_json=a.json,
    )
    return int(not run(talk))


def evaluate(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.app.cli.eval_io import run_evals
    from offhook.web.app.evals.line_settings import LINE_KEYS
    from offhook.web.config import config as configuration
    from offhook.web.http.logs_io import set_up

    a = arguments
    if a.from_call:
        return _scenario_of(a, terminal)
    if not a.paths:
        terminal.warn("which scenarios? a FILE or a folder, or --from CALL_ID to make one")
        return 2
    set_up(configuration.Log(level="ERROR"))
    logger.disable("pipecat")  # what the harness logs is in the outcomes too
    evals = run_evals(
        *(configuration.load(a.config), a.agent, a.paths, terminal.show),
        only=a.only,
        runs=a.runs,
        at_once=a.at_once,
        junit_file=a.junit,
        as_json=a.json,
        line={name: getattr(a, name) for name in LINE_KEYS if getattr(a, name) is not None},
    )
    return int(not run(evals))


def _scenario_of(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.app.cli import calls_io
    from offhook.web.config import config as configuration
    from offhook.web.records.errors import StoreError
    from offhook.web.records.scenario import scenario_of

    call = arguments.from_call
    try:
        store = calls_io.opened(configuration.load(arguments.config))
        if store.show(call) is None:
            raise StoreError(f"there is no call {call}: see offhook calls list")
        terminal.show(scenario_of(call, store.timeline(call)), end="")
    except (StoreError, ValueError) as error:
        terminal.warn(f"{call}: {error}" if isinstance(error, ValueError) else error)
        return 1
    return 0
