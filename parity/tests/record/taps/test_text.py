"""What is read of chat templates."""

from __future__ import annotations

from enum import Enum

import pytest

from parity.record.taps.text import plain_chat


class Role(str, Enum):  # as libraries have it; a StrEnum is printed as its string
    USER = "user"


@pytest.mark.parametrize("name", ["user", "Role.USER"])
def test_a_role_is_recorded_as_the_template_wrote_it(name: str) -> None:
    """`~` and `+` of a template write two names of one enum."""
    chat = [{"role": Role.USER, "content": "Hi."}]
    [message] = plain_chat(chat, f"<|im_start|>{name}\nHi.")
    assert [*message.items()] == [("role", name), ("content", "Hi.")]
