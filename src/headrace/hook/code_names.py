"""Read from a function's code which names it uses, and what it assigns to. Nothing is run."""

from __future__ import annotations

import dis
from types import CodeType, FunctionType

_LOADED = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")
_COPIED = ("COPY", "DUP_TOP")
_SWAPPED = ("SWAP", "ROT_TWO")
_SKIPPED = ("EXTENDED_ARG", "NOP", "CACHE", "RESUME", "NOT_TAKEN")


class CodeNames:
    """Says what the code of a function uses, with all functions within it.

    variables: of the module, or builtins. attributes: of any object. texts: constants, which may be names of
    attributes. imports: modules, and the level of each import. assigned: something outside that the code assigns to.
    """

    def __init__(self) -> None:
        self.variables: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: set[str] = set()
        self.imports: set[tuple[str, int]] = set()
        self.assigned: str | None = None


def names_of_code(code: CodeType, own: str | None) -> CodeNames:
    """Return what the code of a function uses. own: the argument whose attributes it may assign to."""
    names = CodeNames()
    _Reader(names, own).read(code, frozenset(code.co_freevars))
    return names


def names_of_class(kind: type) -> set[str]:
    """Return the names that the methods of a class use, and those of its attributes."""
    names = set(vars(kind))
    waiting = [member.__code__ for member in vars(kind).values() if isinstance(member, FunctionType)]
    while waiting:
        code = waiting.pop()
        names |= set(code.co_names)
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return names


class _Reader:
    def __init__(self, names: CodeNames, own: str | None) -> None:
        self._names = names
        self._own = own

    def read(self, code: CodeType, outside: frozenset[str]) -> None:
        """Read a code object. outside: variables that belong to functions around it."""
        steps = [step for step in dis.get_instructions(code) if step.opname not in _SKIPPED]
        for place, step in enumerate(steps):
            self._read_step(steps, place, step, outside)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self.read(constant, outside & frozenset(constant.co_freevars))
            elif isinstance(constant, str):
                self._names.texts.add(constant)

    def _read_step(
        self, steps: list[dis.Instruction], place: int, step: dis.Instruction, outside: frozenset[str]
    ) -> None:
        kind, name = step.opname, step.argval
        if kind == "IMPORT_NAME":
            level = steps[place - 2].argval if place >= 2 else 0
            self._names.imports.add((name, level if isinstance(level, int) else 0))
        elif kind.startswith(("STORE_", "DELETE_")):
            self._read_assignment(steps, place, kind, name)
            self._note_variable(kind, name, outside)
        elif kind.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")):
            self._names.variables.add(name)
        elif isinstance(name, str) and kind.startswith(("LOAD_", "IMPORT_FROM")) and not _is_local(kind):
            self._names.attributes.add(name)

    def _read_assignment(self, steps: list[dis.Instruction], place: int, kind: str, name: str) -> None:
        """Note an assignment to something that is no variable of the function."""
        if kind in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            self._names.assigned = f"the variable {name} of its module"
        elif kind in ("STORE_ATTR", "DELETE_ATTR"):
            self._names.attributes.add(name)
            if not self._is_of_own(steps, place, name):
                self._names.assigned = f"the attribute {name} of an object"

    def _note_variable(self, kind: str, name: object, outside: frozenset[str]) -> None:
        """Note an assignment to a variable of the function, or of one around it."""
        if kind in ("STORE_DEREF", "DELETE_DEREF"):
            if name in outside:
                self._names.assigned = f"the variable {name} around it"
            self._forget_own(name)
        elif kind.startswith(("STORE_FAST", "DELETE_FAST")):
            stored = name if isinstance(name, tuple) else (name,)
            for part in stored[:1] if "LOAD" in kind else stored:
                self._forget_own(part)

    def _forget_own(self, name: object) -> None:
        """Note that the first argument gets another value: then its attributes may be those of any object."""
        if name == self._own:
            self._names.assigned = f"the variable {name}, its own object,"

    def _is_of_own(self, steps: list[dis.Instruction], place: int, name: str) -> bool:
        """Return whether an attribute that is assigned belongs to the first argument, or to what that holds."""
        before = place - 1
        if before >= 0 and steps[before].opname in _SWAPPED:  # x.name += 1
            before = _place_of_copy(steps, before, name)
        while before >= 0 and steps[before].opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if steps[before].argval == "__class__":
                return False
            before -= 1
        if before < 0 or self._own is None or not any(kind in steps[before].opname for kind in _LOADED):
            return False
        loaded = steps[before].argval
        return bool((loaded[-1] if isinstance(loaded, tuple) else loaded) == self._own)


def _place_of_copy(steps: list[dis.Instruction], before: int, name: str) -> int:
    """Return the place before that where `x.name += …` copies x; -1 if there is none."""
    for place in range(before - 1, 0, -1):
        if steps[place].argval == name and steps[place].opname in ("LOAD_ATTR", "LOAD_METHOD"):
            return place - 2 if steps[place - 1].opname in _COPIED else -1
    return -1


def _is_local(kind: str) -> bool:
    return kind.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_CONST", "LOAD_CLASSDEREF"))
