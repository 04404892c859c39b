"""`offhook doctor` and `offhook bench`: what a machine lacks, and what it can do."""

import json
from argparse import Namespace

from offhook.web.app.cli.terminal import Terminal


def doctor(arguments: Namespace, terminal: Terminal) -> int:
    if arguments.calls:
        from offhook.web.app.doctor.sizing_io import report

        terminal.show(report(arguments.calls, arguments.config, arguments.json))
        return 0
    from offhook.web.app.doctor.report_io import examine

    findings = examine(arguments.config)
    if arguments.json:
        terminal.show(json.dumps([f.as_dict() for f in findings], indent=1))
    else:
        for finding in findings:
            terminal.show(finding)
    return int(any(f.verdict == "fails" for f in findings))


def bench(arguments: Namespace, terminal: Terminal) -> int:
    from importlib.metadata import entry_points

    found = entry_points(group="offhook.commands", name="bench")
    if not found:
        raise ValueError(
            "benchmarks are a package of their own: `pip install ./benchmarks` in a checkout"
        )
    result: int = next(iter(found)).load()([arguments.name, *arguments.options])
    return result
