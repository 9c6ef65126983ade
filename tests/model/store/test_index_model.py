"""The index against dicts: any series of writes leaves the same tree, also after a restart."""

from __future__ import annotations

import shutil
import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.base.model import ROOT_ID, FileId, Kind, Version
from headrace.store.index import Index
from headrace.store.listing import ListingWriter

NAMES = st.sampled_from([b"a", b"b", b"c", b"a\xff", b"zz"])
VERSIONS = st.sampled_from([Version(1, 1, "x"), Version(2, 2, "y")])
Node = tuple[FileId, Kind, Version]


class IndexMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.index = Index.open(self.folder, writable=True)
        self.index.state.checkpoint()  # of a new one, by who recovers
        self.tree: dict[FileId, dict[bytes, Node]] = {ROOT_ID: {}}
        self.used: set[FileId] = {ROOT_ID}

    def pick(self, number: int) -> FileId:
        return sorted(self.tree)[number % len(self.tree)]

    def fresh(self, id: FileId) -> FileId:
        assert id not in self.used
        self.used.add(id)
        return id

    def drop(self, node: Node) -> None:
        for child in self.tree.pop(node[0], {}).values():
            self.drop(child)

    @rule(number=st.integers(0, 99), name=NAMES, version=VERSIONS)
    def put_file(self, number: int, name: bytes, version: Version) -> None:
        parent = self.pick(number)
        old = self.tree[parent].get(name)
        id, changed = self.index.names.put_file(parent, name, version)
        if old is not None and old[1:] == (Kind.FILE, version):
            assert (id, changed) == (old[0], False)
            return
        assert changed == (old is not None)
        if old is not None:
            self.drop(old)
        self.tree[parent][name] = (self.fresh(id), Kind.FILE, version)

    @rule(number=st.integers(0, 99), name=NAMES)
    def ensure_directory(self, number: int, name: bytes) -> None:
        parent = self.pick(number)
        old = self.tree[parent].get(name)
        id = self.index.names.ensure_directory(parent, name)
        if old is not None and old[1] is Kind.DIRECTORY:
            assert id == old[0]
            return
        self.tree[parent][name] = (self.fresh(id), Kind.DIRECTORY, Version(0, 0))
        self.tree[id] = {}

    @rule(number=st.integers(0, 99), name=NAMES)
    def remove(self, number: int, name: bytes) -> None:
        parent = self.pick(number)
        old = self.tree[parent].pop(name, None)
        assert self.index.names.remove(parent, name) == (old is not None)
        if old is not None:
            self.drop(old)

    @rule(
        number=st.integers(0, 99),
        files=st.dictionaries(NAMES, VERSIONS),
        directories=st.sets(NAMES),
        kept=st.sets(NAMES),
    )
    def listing(
        self, number: int, files: dict[bytes, Version], directories: set[bytes], kept: set[bytes]
    ) -> None:
        directory = self.pick(number)
        before = dict(self.tree[directory])
        rows = {name: version for name, version in files.items() if name not in directories}
        listed = self.index.fresh_until_ns(directory) != 0
        writer = ListingWriter(self.index.names, directory)
        for name in kept:
            writer.keep(name)
        writer.add(rows.items(), directories)
        changed = writer.finish(77_000_000)
        after: dict[bytes, Node] = {}
        for name, old in before.items():
            want = (Kind.DIRECTORY, Version(0, 0)) if name in directories else (Kind.FILE, rows.get(name))
            if (name in kept and name not in rows and name not in directories) or old[1:] == want:
                after[name] = old
        for entry in self.index.children(directory):
            if entry.name not in after:
                after[entry.name] = (self.fresh(entry.id), entry.kind, entry.version)
                if entry.kind is Kind.DIRECTORY:
                    self.tree[entry.id] = {}
        for name, old in before.items():
            if after.get(name) != old:
                self.drop(old)
        self.tree[directory] = after
        names = {name for name, old in before.items() if after.get(name) != old}
        if listed:
            names |= after.keys() - before.keys()
        assert {(directory, name) for name in names} == set(changed)
        assert set(after) == set(rows) | directories | (kept & set(before))
        assert self.index.fresh_until_ns(directory) == 77_000_000

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.index.close(clean=clean)
        self.index = Index.open(self.folder, writable=True)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "tree"):
            return
        total = 0
        for directory, names in self.tree.items():
            rows = {e.name: (e.id, e.kind, e.version) for e in self.index.children(directory)}
            assert rows == names
            assert list(rows) == sorted(rows)
            for name, (id, _, _) in names.items():
                entry = self.index.entry(id)
                assert entry is not None
                assert (entry.parent, entry.name) == (directory, name)
                assert (self.index.path_of(id) or b"").endswith(b"/" + name)
            total += len(names)
        assert self.index.statistics()["entries"] == total

    def teardown(self) -> None:
        if hasattr(self, "index"):
            self.index.close(clean=False)
            shutil.rmtree(self.folder)


IndexMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestIndex = IndexMachine.TestCase
