"""A check as JUnit XML: a testsuite per site and backend."""

from __future__ import annotations

from xml.etree import ElementTree

from parity.goldens.safe_text import printable_lines
from parity.goldens.verdict import Check, Outcome
from parity.report.console import case_text
from parity.report.words import groups, sentence


def junit_case(suite: ElementTree.Element, outcome: Outcome, fails: bool) -> None:
    name = {
        "name": printable_lines(outcome.case),
        "classname": printable_lines(f"{outcome.site}.{outcome.backend}"),
    }
    node = ElementTree.SubElement(suite, "testcase", {**name, "time": f"{outcome.seconds:.3f}"})
    if outcome.verdict == "ACCEPTED":
        ElementTree.SubElement(
            node, "skipped", {"message": printable_lines(f"accepted: {outcome.accepted}")}
        )
    if fails:
        kind = "error" if outcome.verdict in ("ERROR", "UNSTABLE") else "failure"
        what = outcome.cause.name if outcome.cause else outcome.verdict
        said = {
            "type": printable_lines(what),
            "message": printable_lines(f"{outcome.verdict}: {sentence(outcome)}"),
        }
        ElementTree.SubElement(node, kind, said).text = printable_lines(case_text(outcome))


def junit_xml(check: Check) -> str:
    """A testsuite per site and backend. What is accepted counts as skipped; what could not be
    judged as an error."""
    root = ElementTree.Element("testsuites", {"name": "parity", "time": f"{check.seconds:.3f}"})
    failing = {id(o) for o in check.failing()}
    for (site, backend), outcomes in groups(check.outcomes).items():
        suite = ElementTree.SubElement(
            root, "testsuite", {"name": printable_lines(f"{site} on {backend}")}
        )
        for outcome in outcomes:
            junit_case(suite, outcome, id(outcome) in failing)
        suite.set("tests", str(len(outcomes)))
        suite.set("time", f"{sum(o.seconds for o in outcomes):.3f}")
        for kind, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            suite.set(plural, str(len(suite.findall(f"testcase/{kind}"))))
    ElementTree.indent(root)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        + ElementTree.tostring(root, encoding="unicode")
        + "\n"
    )
