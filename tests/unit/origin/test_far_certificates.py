"""Errors of the certificates of a far cluster name the option of the mount, and no setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.errors import NodeUnavailableError, UsageError
from headrace.http.node_connection import Address, translating_http_errors
from headrace.identity.names import StrangerError
from headrace.origin.far_cluster import build_far_cluster
from headrace.origin.options import parse_options

URL = "headrace://a:1/d"


@pytest.mark.parametrize("is_folder", [False, True])
def test_certificates_that_can_not_be_read_are_named_by_the_option(
    *, is_folder: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "certificates"
    if is_folder:
        folder.mkdir()
        (folder / "key.pem").touch(mode=0o600)
    with pytest.raises(UsageError, match="option certificates") as raised:
        build_far_cluster(URL, parse_options(URL, {"certificates": str(folder)}))
    assert "tls_" not in str(raised.value)


@pytest.mark.parametrize(
    ("option", "hint"), [("certificates", "see the option certificates"), ("", "see tls_certificate")]
)
def test_a_certificate_that_is_not_accepted_leads_to_the_option_that_was_given(
    option: str, hint: str
) -> None:
    address = Address("https://a:1", None, option)
    with pytest.raises(NodeUnavailableError) as raised, translating_http_errors(address.who, address.option):
        raise StrangerError("its certificate names nobody")
    assert raised.value.hint == hint
