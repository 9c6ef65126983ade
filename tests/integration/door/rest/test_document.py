"""The OpenAPI document against the server: schemathesis makes requests from it, good and bad, and checks answers."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path

import pytest

from headrace.rest import openapi
from headrace.wire.api import OPERATIONS
from tests.integration.door.rest.conftest import Api, serving

pytestmark = pytest.mark.timeout(120)

EXAMPLES = 3
"""Examples of each operation, beside those that follow from the document. They take some 15 s on two cores."""
SETTINGS = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 401, 404, 409, 422]  # 422: what the document allows, and this node can't do
"""


def test_what_is_served_is_the_page_in_docs(api: Api) -> None:
    page = Path(__file__).parents[4] / "docs/openapi.json"
    assert (
        api.ask("GET", "/openapi.json", token="").json == json.loads(page.read_text()) == openapi.document()
    )


@pytest.mark.expected_warnings("refused interface=rest")
def test_the_server_does_what_its_document_says(tmp_path: Path) -> None:
    """Use a node of its own, all of which can be written and removed."""
    with serving(tmp_path, write="back") as api:
        api.host.put("images/0001.jpg", 1000)
        api.host.ok("mount", "add", "/images", api.truth / "images")
        _run(api, tmp_path)


def _run(api: Api, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    done = subprocess.run(
        [
            f"{sysconfig.get_path('scripts')}/schemathesis",
            *("--config-file", "schemathesis.toml", "run", f"{api.url}/openapi.json"),
            *("--header", f"Authorization: Bearer {api.token}", "--checks", "all"),
            *("--max-examples", str(EXAMPLES), "--generation-deterministic", "--continue-on-failure"),
            *("--request-timeout", "40", "--no-color"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert f"{len(OPERATIONS) - 1} selected" in done.stdout  # all but that of the document itself
