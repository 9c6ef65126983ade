"""This holds for all tests: what of this machine is none of their business, and how the suite is spread when pytest
runs several processes of it (`./dev test` without a path)."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import itertools
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import uvloop
from anyio.pytest_plugin import get_runner
from hypothesis import HealthCheck, settings

import headrace
from headrace.config import load
from headrace.lab.killed_runs import Guard
from headrace.testing.servers import S3Server, ServerMissing, seaweedfs_s3
from headrace.vfs.brokered import broker_registry
from tests import service_logs
from tests.compiled_tests import compile_part
from tests.hypothesis_constants import read_part
from tests.passed_directories import PassedDirectories

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler.loadfile import LoadFileScheduling

TESTS = Path(__file__).parent
AUTHORITY_OF_NOBODY = TESTS / "authority_of_nobody.pem"
TOGETHER = {
    "tests/faults/test_links.py": "labs",  # two labs at one time may want one range of addresses
    "tests/integration/test_lab_cluster.py": "labs",
    "tests/integration/bench/test_compare.py": "labs",
    "tests/integration/plan/test_launchers.py": "torch",  # one server that has imported torch is enough
    "tests/integration/plan/test_loader.py": "torch",
    "tests/integration/plan/test_providers.py": "torch",
    "tests/integration/plan/test_run.py": "torch",
    "tests/integration/models/test_loading.py": "torch",
    "tests/integration/cluster/test_models.py": "torch",
    "tests/integration/checkpoint/test_dcp.py": "torch",
    "tests/integration/checkpoint/test_trainer.py": "torch",
    "tests/integration/door/test_dcp.py": "torch",
    "tests/integration/door/test_train_images.py": "torch",
    "tests/integration/bench/test_plan_bench.py": "torch",
    "tests/integration/bench/test_planned_job.py": "torch",
    "tests/integration/bench/test_training.py": "torch",
    "tests/unit/hook/test_odd_programs.py": "torch",
    "tests/unit/hook/test_shared_state.py": "torch",
    "tests/unit/hook/test_strange_programs.py": "torch",
}

TOGETHER_FOLDERS = ("tests/integration/diagnose/", "tests/integration/writes/", "tests/tidy/")
"""Folders whose files share what takes long to make."""


NO_WARNINGS = (
    "unit",
    "conformance",
    "model",
    "security",
    "integration/checkpoint",
    "integration/diagnose",
    "integration/door",
    "integration/origin",
    "integration/release",
    "integration/writes",
)
"""The directories in which an unexpected warning of the test's own process fails it."""

NO_WARNINGS_OF_SERVICES = (
    "faults",
    "integration/bench",
    "integration/cli",
    "integration/diagnose",
    "integration/door",
    "integration/exclusive",
    "integration/fuse",
    "integration/models",
    "integration/node",
    "integration/persist",
    "integration/plan",
    "integration/policy",
    "integration/release",
    "integration/seal",
    "integration/writes",
)
"""The directories in which an unexpected warning in the log of a host's node, session or command fails a test, too."""


IDLE_S = 0.2


USUAL = "the FD store died, starting another"
"""What a session may log when its mount is ended: it sees its FD store go first."""

_USUAL: dict[signal.Signals, Any] = {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
}


settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(
    "busy"
)  # an example that took long says that the machine is busy, not that the code is wrong


_GUARD = pytest.StashKey[Guard]()
_HAS_FAILED = pytest.StashKey[bool]()
_numbers = itertools.count()
_LETTERS = "abcdefghij"
"""Stand for digits in names of directories: tests look for numbers in what has paths, too."""


def pytest_configure(config: pytest.Config) -> None:
    """Programs inherit what is ignored, and `nohup`, or a script's shell for what it starts in the background, ignores
    what these tests send to programs."""
    for number, handler in _USUAL.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    config.stash[_GUARD] = Guard()
    worker: dict[str, Any] = getattr(config, "workerinput", {})  # xdist's
    if worker:
        place = int(worker["workerid"].removeprefix("gw"))
        gc.disable()  # until all tests are collected: it would look at syntax trees, and then at tests, again and again
        compile_part(config, TESTS, number=place, count=worker["workercount"])


def pytest_unconfigure(config: pytest.Config) -> None:
    if (guard := config.stash.get(_GUARD, None)) is not None:
        guard.end()


@pytest.fixture(scope="session", autouse=True)
def _no_mount_is_left(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytestconfig.stash[_GUARD].add_folder(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def passed_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PassedDirectories]:
    directories = PassedDirectories(tmp_path_factory.getbasetemp() / "passed")
    yield directories
    directories.remove()


@pytest.fixture
def tmp_path(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    passed_directories: PassedDirectories,
) -> Iterator[Path]:
    """Make a directory of this test, of a name that no other test of this process has. It stays until the next runs if
    the test fails. pytest's own fixture looks at all names for the next number, which takes a millisecond."""
    word = "".join(_LETTERS[int(digit)] for digit in str(next(_numbers)))
    name = re.sub(r"\W", "_", request.node.name)[:26]
    directory = tmp_path_factory.mktemp(f"{name}_{word}", numbered=False)
    yield directory
    if _HAS_FAILED not in request.node.stash:
        passed_directories.add(directory)


@pytest.fixture(scope="session", autouse=True)
def _no_thread_is_left_busy() -> Iterator[None]:
    """A thread that no test ends, and that waits for nothing, takes half the time of all tests after its own."""
    yield
    began_s = time.process_time()
    threading.Event().wait(IDLE_S)
    busy_s = time.process_time() - began_s
    stacks = [traceback.format_stack(frame)[-1] for frame in sys._current_frames().values()]
    assert busy_s < IDLE_S / 2, f"busy for {busy_s:.2f} s after all tests; threads: {''.join(stacks)}"


@pytest.fixture(scope="session", autouse=True)
def _no_node_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A program without a node of its own would read from one that root runs here, and that is open to others."""
    folder = str(tmp_path_factory.mktemp("nobody") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "SYSTEM_RUN_FOLDER", folder)
        patch.setattr(broker_registry, "SYSTEM_RUN_FOLDER", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_authorities_of_this_machine() -> Iterator[None]:
    """Trust one authority, whose key nobody has. obstore parses all trusted certificates for each client: with those of
    a machine, an origin with four clients takes 5 to 20 ms of processor time. No test leaves the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(AUTHORITY_OF_NOBODY))
        patch.setenv("SSL_CERT_DIR", str(AUTHORITY_OF_NOBODY.with_name("no-authorities")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_shim_of_setuptools() -> Iterator[None]:
    """Each of thousands of Python processes would import one from the virtual environment first, which takes 1.2 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SETUPTOOLS_USE_DISTUTILS", "stdlib")
        yield


@pytest.fixture(scope="session")
def needs_root() -> None:
    """Mark a test of which a fixture needs root."""


@pytest.fixture(scope="session")
def needs_fuse() -> None:
    """Mark a test of which a fixture mounts."""


@pytest.fixture(scope="session")
def seaweed() -> Iterator[S3Server]:
    """Run one SeaweedFS for all tests of this process: several would take processor time all the while. A test writes
    below a prefix of its own, or to a bucket of its own."""
    try:
        with seaweedfs_s3() as server:
            yield server
    except ServerMissing as error:
        pytest.skip(str(error))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "needs_fuse" in fixtures or item.get_closest_marker("passthrough"):
            item.add_marker("fuse")
        if "needs_root" in fixtures or item.get_closest_marker("fuse"):
            item.add_marker("root")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Leave the tests and what they import out of garbage collections: in the whole suite each takes 0.3 s more."""
    gc.disable()
    if worker := getattr(session.config, "workerinput", None):
        place = int(worker["workerid"].removeprefix("gw"))
        read_part(Path(headrace.__file__).parent, number=place, count=worker["workercount"])
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root")
    if item.get_closest_marker("fuse") and not os.path.exists("/dev/fuse"):
        pytest.skip("needs /dev/fuse")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note a failure. Escape what is no text in captured logs, as names of files may be: xdist can't send it."""
    report = yield
    if report.failed:
        item.stash[_HAS_FAILED] = True
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    return uvloop.new_event_loop if request.node.get_closest_marker("uvloop") else asyncio.new_event_loop


@pytest.fixture
def anyio_backend(loop_factory: LoopFactory) -> tuple[str, dict[str, LoopFactory]]:
    """Run async tests, and their async fixtures, on one new event loop each."""
    return "asyncio", {"loop_factory": loop_factory}


@pytest.fixture(autouse=True)
def _async_test_leaves_no_task(request: pytest.FixtureRequest) -> None:
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("no_task_is_left")


@pytest.fixture
def no_task_is_left(anyio_backend: tuple[str, dict[str, LoopFactory]]) -> Iterator[None]:
    """Fail a test that ends, with its fixtures, while a task of it still runs."""
    with get_runner(*anyio_backend) as runner:
        yield
        loop = cast(Any, runner).get_loop()
        tasks = [task for task in asyncio.all_tasks(loop) if "TestRunner" not in str(task)]
        if tasks:  # some are about to end, as those of grpc whose channel was closed
            loop.run_until_complete(asyncio.wait(tasks, timeout=30))
        left = [task for task in tasks if not task.done()]
    assert not left, f"left running: {left}"


class WarningCollector(logging.Handler):
    """Collects what this process logs at level WARNING or above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.levelname} {record.name}: {record.getMessage()}"
        self.lines.append(line.encode(errors="backslashreplace").decode())  # as xdist sends it


@pytest.fixture(autouse=True)
def _no_unexpected_warning(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test during which this process, or a process of its hosts, logged a warning that no marker
    `expected_warnings` names."""
    collector, log = WarningCollector(), logging.getLogger("headrace")
    log.addHandler(collector)
    service_logs.drop()
    yield
    log.removeHandler(collector)
    lines = collector.lines if _is_in(request.path, NO_WARNINGS) else []
    if _is_in(request.path, NO_WARNINGS_OF_SERVICES):
        lines = [*lines, *(line for line in service_logs.take() if USUAL not in line)]
    expected = [text for marker in request.node.iter_markers("expected_warnings") for text in marker.args]
    unexpected = [line for line in lines if not any(text in line for text in expected)]
    if unexpected:
        pytest.fail("unexpected warnings:\n" + "\n".join(unexpected), pytrace=False)


@functools.cache  # or each of the many small tests would take some ten of pathlib's calls
def _is_in(path: Path, folders: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(TESTS / folder) for folder in folders)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """A file stays in one process, so its fixtures are made once, and some files share one."""
    from xdist.scheduler.loadfile import LoadFileScheduling

    class ByFile(LoadFileScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            folder = next((folder for folder in TOGETHER_FOLDERS if file.startswith(folder)), "")
            return TOGETHER.get(file, folder or file)

    return ByFile(config, log)
