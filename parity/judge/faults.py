"""What ends the judging of one case: what cannot be judged here, and faults of the harness itself.

A fault of the harness says nothing of the moved code, so it is never swallowed: not as "cannot be
run again", and not as an answer of the moved code, which may catch it.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from parity.goldens.store import GoldenError
from parity.record.calls import words_and_place

COULD_NOT_JUDGE = (GoldenError, LookupError, ImportError, OSError)
OF_WRONG_CODE = (AttributeError, ImportError, IndexError, KeyError, NameError, TypeError)
PARITY = Path(__file__).parents[1]
OWN_ROOMS = (PARITY / "judge", PARITY / "record")


class HarnessFault(Exception):
    """The harness's own code failed, or could not see a call: nothing is known of the moved
    code."""


def own_fault(error: BaseException) -> str:
    """What the harness's own code did wrong, and where; "" of any other error."""
    if not isinstance(error, OF_WRONG_CODE):
        return ""
    place = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    is_own = any(place.is_relative_to(room) for room in OWN_ROOMS)
    return words_and_place(error) if is_own else ""


def raise_own_fault(error: BaseException) -> None:
    """Raise HarnessFault for a fault of the harness; do nothing for any other error."""
    if fault := own_fault(error):
        raise HarnessFault(f"a fault of the harness itself: {fault}") from error


@contextlib.contextmanager
def skip_unjudgeable() -> Iterator[None]:
    """Go on behind the block where something in it cannot be judged here. Raises HarnessFault."""
    try:
        yield
    except COULD_NOT_JUDGE as error:
        raise_own_fault(error)
