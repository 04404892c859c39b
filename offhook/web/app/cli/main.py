"""The command line: `offhook serve | speech | call | dial | transcribe | speak | worker | ...`."""

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence

from loguru import logger

from offhook.web.app.cli.commands.campaigns_io import campaigns
from offhook.web.app.cli.commands.checks_io import bench, doctor
from offhook.web.app.cli.commands.conversations_io import chat, evaluate, init
from offhook.web.app.cli.commands.kept_calls_io import kept_calls
from offhook.web.app.cli.commands.models_io import models
from offhook.web.app.cli.commands.phones_io import call, dial, extensions, queues, sip_trace
from offhook.web.app.cli.commands.servers_io import serve, speech
from offhook.web.app.cli.commands.speech_io import align, speak, transcribe, voice
from offhook.web.app.cli.commands.workers_io import worker
from offhook.web.app.cli.parser import parser
from offhook.web.app.cli.terminal import Terminal
from offhook.web.http.loop_io import raise_descriptor_limit

COMMANDS: dict[str, Callable[[Namespace, Terminal], int]] = {
    "init": init,
    "chat": chat,
    "eval": evaluate,
    "serve": serve,
    "speech": speech,
    "call": call,
    "calls": kept_calls,
    "dial": dial,
    "campaigns": campaigns,
    "sip-trace": sip_trace,
    "queues": queues,
    "extensions": extensions,
    "transcribe": transcribe,
    "align": align,
    "speak": speak,
    "voice": voice,
    "models": models,
    "worker": worker,
    "doctor": doctor,
    "bench": bench,
}


def _show(text: object, /, *, end: str = "\n") -> None:
    print(text, end=end, flush=True)


def _warn(text: object, /, *, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    logger.remove()  # Pipecat logs a banner on import, before logging is set up
    raise_descriptor_limit()
    try:
        code = COMMANDS[arguments.command](arguments, Terminal(_show, _warn))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has closed it, as `head` does; flushing at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (RuntimeError, ValueError, OSError) as error:
        # Errors that the user can fix: configuration, engines, an unreachable server.
        _warn(f"offhook: {error or type(error).__name__}")
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
