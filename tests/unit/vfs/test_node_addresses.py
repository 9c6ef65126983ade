"""The addresses of nodes that users give."""

from __future__ import annotations

import pytest

from headrace.base.errors import UsageError
from headrace.vfs.remote.remote_registry import address_of


@pytest.mark.parametrize(
    "text", ["https://user:PW@host", "http://PW@host:1/", "ftp://user:PW@host", "x:u:PW@h"]
)
def test_a_password_in_an_address_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(UsageError, match="holds a user or a password") as raised:
        address_of(text, None)
    assert "PW" not in str(raised.value)


@pytest.mark.parametrize("text", ["http://host:1", "http://host/a@b", "unix:/run/a@b", "unix:a@b"])
def test_other_addresses_may_have_the_character(text: str) -> None:
    assert address_of(text, None).url == text
