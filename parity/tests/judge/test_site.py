"""A site's open questions: what one case is told does not depend on which others were chosen."""

from __future__ import annotations

import pytest

from parity.goldens.store import Store
from parity.goldens.verdict import Outcome
from parity.judge.check import check_sites
from parity.tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("forked_python")

SITE = "rollout"
CASE = "several-samples"  # with questions over the site


def told(outcome: Outcome) -> tuple[str, str, tuple[str, ...]]:
    return outcome.verdict, str(outcome.cause), outcome.also


def test_check_sites_of_one_case_tells_what_the_whole_site_tells() -> None:
    store = Store(ROOT / "golden")
    whole = check_sites(store, sites=[SITE], backends=["hf"])
    known = {outcome.case: told(outcome) for outcome in whole.outcomes}
    [alone] = check_sites(store, sites=[SITE], cases=[CASE], backends=["hf"]).outcomes
    assert told(alone) == known[CASE]
