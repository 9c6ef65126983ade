"""The hook speaks the node's protocol with the standard library: what it sends is what the node decodes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.hook import frames
from headrace.wire import frame
from headrace.wire.message import Message
from headrace.wire.messages import (
    PROTOCOL,
    Done,
    Failure,
    Hello,
    PlanEnd,
    PlanLearn,
    PlanNames,
    PlanOrder,
    PlanProgress,
    PlanStart,
    Welcome,
)
from headrace.wire.plan_answers import PlanStarted
from tests.unit.hook.answering_node import AnsweringNode

MESSAGES: list[Message] = [
    Hello(protocol=PROTOCOL, pid=7, role="plan"),
    PlanStart("s", "train.py", 1, 4, "12:m.Files:9", b"\x00digest", 9, 3),
    PlanNames(b"d", 5, b"/a\0/b\0\xff"),
    PlanOrder("s", 2, 0, b"\1\0\0\0", True),
    PlanProgress("s", 2, 1 << 30),
    PlanLearn("k", [1, 70_000], b"/a\0/b"),
    PlanEnd("s" * 40),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_the_hook_sends_is_what_the_node_decodes(message: Message) -> None:
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    sent = frames.encoded(type(message).__name__, **fields)
    assert frame.body_length(sent[:4]) == len(sent) - 4
    assert frame.decode_request(sent[4:]) == message


def as_list(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize(
    "answer",
    [
        Done(),
        PlanStarted(known=True),
        Welcome(protocol=2, index="/i", volumes=["/a", "/b"], generation=1 << 60, upper="", write="off"),
        Failure(code="usage", what="w" * 300, why="ü", hint=""),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_what_the_node_answers_is_what_the_hook_decodes(answer: Message) -> None:
    decoded = frames.decoded(frame.encode(answer)[4:])
    assert decoded.pop("type") == type(answer).__name__
    assert decoded == {name: as_list(getattr(answer, name)) for name in answer.__struct_fields__}


@given(st.binary(max_size=200))
def test_an_answer_that_is_none_is_an_error_of_the_connection(body: bytes) -> None:
    try:
        assert isinstance(frames.decoded(body), dict)
    except OSError:
        pass


def test_the_hook_speaks_the_protocol_of_this_release() -> None:
    assert frames.PROTOCOL == PROTOCOL


def test_the_hook_needs_the_standard_library_only() -> None:
    """-I -S: neither this environment's packages nor its variables."""
    folder = Path(frames.__file__).parent
    script = f"""
import importlib, importlib.util, sys
spec = importlib.util.spec_from_file_location("hook", {str(folder / "__init__.py")!r},
                                              submodule_search_locations=[{str(folder)!r}])
sys.modules["hook"] = importlib.util.module_from_spec(spec)
for name in {sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")!r}:
    importlib.import_module("hook." + name)
assert not any("site-packages" in (getattr(m, "__file__", "") or "") for m in sys.modules.values())
"""
    subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True, timeout=60)


def test_a_node_that_is_gone_sends_the_program_no_signal(tmp_path: Path) -> None:
    """A program may have set SIGPIPE to end it, as programs in pipes do."""
    node = AnsweringNode(tmp_path / "node")
    connection = frames.PlanConnection(str(tmp_path / "node"), timeout_s=60)
    node.disconnect()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})  # also an ignored one waits then
    try:
        with pytest.raises(BrokenPipeError):
            connection.ask("PlanEnd", stream="s")
        assert signal.SIGPIPE not in signal.sigpending()
    finally:
        signal.sigtimedwait({signal.SIGPIPE}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        connection.close()
        node.close()
