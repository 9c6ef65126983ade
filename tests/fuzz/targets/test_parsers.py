"""Every parser takes its seeds, and what was found earlier stays mended."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

import pytest

from tests.fuzz import targets
from tests.fuzz.judge import Judge

CORPUS = Path(__file__).parents[1] / "corpus"
MUTATED = 20


@pytest.mark.parametrize("name", targets.NAMES)
def test_parser(name: str) -> None:
    """Seeds, what was found earlier, and a few inputs beside them."""
    fuzzer, chance = targets.load(name), random.Random(18)
    inputs = [*fuzzer.seeds, *(path.read_bytes() for path in sorted((CORPUS / name).glob("*")))]
    inputs += [fuzzer.mutate(chance.choice(inputs), fuzzer.words, chance) for _ in range(MUTATED)]
    with Judge(fuzzer) as judge:
        for data in fuzzer.seeds:  # what is made once, and kept, is no growth
            judge.look_at(data)
        judge.begin_anew()
        findings = {data: judge.look_at(data) for data in inputs}
    assert [(data, finding) for data, finding in findings.items() if finding is not None] == []


@pytest.mark.parametrize("name", targets.NAMES)
def test_first_seed_is_taken(name: str) -> None:
    """A fuzzer whose parser refuses all that it is given proves nothing."""
    fuzzer = targets.load(name)
    if name in ("s3-bodies", "s3-forms"):  # signed by nobody
        return
    fuzzer.parse(fuzzer.seeds[0])


def test_every_fuzzer_has_its_name_in_the_table() -> None:
    """One without is never run."""
    for module, names in targets._MODULES.items():
        fuzzers = importlib.import_module(f"tests.fuzz.targets.{module}").FUZZERS
        assert sorted(fuzzer.name for fuzzer in fuzzers) == sorted(names)
