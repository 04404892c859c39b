"""Outcomes of scenarios as JUnit's XML, which CI systems show."""

from collections.abc import Sequence
from xml.etree import ElementTree

from offhook.web.app.evals.coverage import Coverage
from offhook.web.app.evals.evaluation_io import Outcome


def junit(outcomes: Sequence[Outcome], coverage: Coverage | None = None) -> str:
    """Returns a document with a test case for each run, and properties for what no scenario has
    used of the agents."""
    failed = sum(not o.passed and not o.skipped for o in outcomes)
    skipped = sum(bool(o.skipped) for o in outcomes)
    about = {"name": "offhook eval", "tests": len(outcomes), "failures": failed, "skipped": skipped}
    suite = ElementTree.Element("testsuite", {name: str(value) for name, value in about.items()})
    if coverage is not None and coverage.uses:
        properties = ElementTree.SubElement(suite, "properties")
        values = [("coverage", str(coverage))]
        values += [("unused", str(feature)) for feature in coverage.unused]
        for key, value in values:
            ElementTree.SubElement(properties, "property", {"name": key, "value": value})
    for outcome in outcomes:
        name = outcome.scenario if outcome.run == 1 else f"{outcome.scenario} ({outcome.run})"
        seconds = f"{outcome.duration_ms / 1000:.3f}"
        case = ElementTree.SubElement(suite, "testcase", {"name": name, "time": seconds})
        if outcome.skipped:
            ElementTree.SubElement(case, "skipped", {"message": outcome.skipped})
        elif not outcome.passed:
            text = "\n".join(outcome.failures)
            failure = ElementTree.SubElement(case, "failure", {"message": text[:200]})
            failure.text = text
    return ElementTree.tostring(suite, encoding="unicode") + "\n"
