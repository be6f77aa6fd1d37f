"""Generated calls as JSON, and what stands for values that JSON does not have."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from PIL import Image

from parity.proof.fuzz.values import SPECIALS, Case, make_image, materialize, special


def test_case_that_was_dumped_is_read_back_as_it_was() -> None:
    case = Case("vlm", ({"prompt": "\ud800"}, special("nan"), None), {"seed": 2**70})
    assert Case.loads(json.loads(case.dumps())) == case


def test_materialize_replaces_stand_ins_wherever_they_are() -> None:
    found = materialize({"a": [special("nan"), {"b": special("bytes")}], "c": 1})
    assert math.isnan(found["a"][0])
    assert found["a"][1] == {"b": b"\xff\x00"}
    assert found["c"] == 1


@pytest.mark.parametrize("name", SPECIALS)
def test_materialize_of_each_special_value_gives_a_value(name: str) -> None:
    assert materialize(special(name)) is not None


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "LA", "RGBA", "CMYK", "I", "F"])
@pytest.mark.parametrize("form", ["pil", "png", "cut", "url", "missing", "remote"])
def test_make_image_of_each_mode_and_form_gives_a_value(mode: str, form: str) -> None:
    found: Any = make_image({"mode": mode, "size": [3, 2], "color": 1, "form": form})
    kinds = {"pil": Image.Image, "png": bytes, "cut": bytes}
    assert isinstance(found, kinds.get(form, str))
