"""Decide whether a copy of a sampler may run, before one is made: it must not share changing state with the program.

A deep copy copies what an object holds. It does not copy what the code of the object reaches besides: globals,
attributes of classes, variables of closures, default arguments, and functions with all of these. A copy that draws from
a generator among them takes numbers from the sampler, and the program trains with other batches.

So the check follows the objects that a deep copy shares, and the code that they may run. It reads code objects, and
runs nothing. It takes all that it does not know for shared state: then the loader runs without a plan, which costs time
but no batch. The generators of Python, NumPy and torch themselves are no such state: `samplers.py` puts them back.
"""

from __future__ import annotations

import builtins
import copyreg
import functools
import gc
import importlib.util
import logging
import os
import random
import sys
import types
import weakref
from collections.abc import Iterator
from enum import Enum
from fractions import Fraction
from itertools import chain
from pathlib import PurePath
from re import Pattern
from typing import Any

from .code_names import CodeNames, names_of_class, names_of_code

KNOWN = (
    *("torch", "torchvision", "torchdata", "accelerate", "transformers", "lightning", "pytorch_lightning"),
    *("lightning_fabric", "timm", "headrace", "megatron"),
)
"""Packages whose samplers are known: they never wait for another rank, and share nothing with their copies."""
_TRUSTED = frozenset(KNOWN) | frozenset(
    (
        *("numpy", "builtins", "random", "_random", "math", "cmath", "itertools", "functools", "_functools"),
        *("collections", "_collections", "_collections_abc", "operator", "_operator", "typing", "types"),
        *("typing_extensions", "abc", "_abc", "copy", "heapq", "_heapq", "bisect", "_bisect", "statistics"),
        *(
            "numbers",
            "fractions",
            "decimal",
            "_decimal",
            "dataclasses",
            "enum",
            "logging",
            "time",
            "datetime",
        ),
        *("warnings", "_warnings", "array", "string", "re", "hashlib", "_hashlib", "struct", "_struct"),
        *("contextlib", "json", "pathlib", "posixpath", "genericpath", "argparse", "textwrap", "uuid"),
    )
)
"""Packages and modules whose own code keeps no state that a sampler draws from."""
_REFUSED_BUILTINS = frozenset(
    (
        *("exec", "eval", "compile", "globals", "vars", "setattr", "delattr", "__import__", "open", "input"),
        *("print", "breakpoint"),
    )
)
_REFUSED_NAMES = frozenset(
    (
        *("__dict__", "__globals__", "__builtins__", "__closure__", "__code__", "__defaults__"),
        *("__kwdefaults__", "__subclasses__", "__setattr__", "__delattr__"),
        *("open", "write_text", "write_bytes", "read_text", "read_bytes"),
    )
)
"""Attributes by which code reaches objects that this check does not see, or files."""
_DYNAMIC = frozenset(("getattr", "methodcaller", "attrgetter"))
_NEVER_CALLING = frozenset(("builtins", "typing", "typing_extensions", "abc", "numpy", "types", "itertools"))
_MAKING = frozenset(("type", "__class__"))
_NEVER_CALLED = frozenset(
    (
        "__init__",
        "__repr__",
        "__str__",
        "__init_subclass__",
        "__class_getitem__",
        "__annotate__",
        "__annotate_func__",
    )
)
"""Methods that neither a deep copy nor an iteration calls, unless code names them or makes an object of the class."""
_CALLED_BY_COPY = frozenset(("append", "extend"))
"""Methods of kinds of lists that a deep copy calls."""
_LOG_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "critical": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}
"""Methods of loggers, and functions of logging, that write a line."""
_DEVICE_NAMES = frozenset(("cuda", "mps", "xpu", "manual_seed_all", "fork_rng"))
_ATOMS = (
    *(type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis), type(NotImplemented)),
    *(Fraction, PurePath, Pattern, logging.Logger, types.GenericAlias, types.UnionType),
)
_ATOM_TYPES = frozenset((type(None), bool, int, float, complex, str, bytes, range))
_DESCRIPTORS = (
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType),
    *(types.WrapperDescriptorType, types.ClassMethodDescriptorType),
)
_COPIES_ITSELF = ("__deepcopy__", "__reduce__", "__reduce_ex__")
OBJECTS_MAX = 100_000
"""Objects and functions that are looked at, some 16 us each. A sampler that has more runs without a plan. Numbers and
texts, lists of them, and lists of such lists are not counted."""


class SharesState(Exception):
    """Says what a copy would share with the program."""


def check_copy(*roots: Any, stood_for: dict[int, Any]) -> bool:
    """Raise SharesState if a deep copy of the roots shares changing state with them. Return whether it runs code that
    is not known. stood_for: objects that the copy has stand-ins for, by their ids."""
    check = _Check(stood_for)
    check.objects(list(roots))
    check.complete()
    return check.has_foreign_code


def check_method(function: Any, where: str) -> None:
    """Raise SharesState if a method reaches shared state besides its own object."""
    check = _Check({})
    check.function(function, where, is_method=True)
    check.complete()


def is_a(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Return whether the type of an object is one of these, or derived from one. isinstance() would ask the object for
    its class: that may run code of the program, and say something else."""
    return issubclass(type(value), kinds)


def is_trusted(module: object) -> bool:
    """Return whether the code of a module keeps no state, by its name."""
    return isinstance(module, str) and module.partition(".")[0] in _TRUSTED


class _Check:
    """Follows objects and code. Each is looked at once."""

    def __init__(self, stood_for: dict[int, Any]) -> None:
        self._seen: dict[int, Any] = dict(stood_for)  # the objects, too, so that no id is used again
        self._shared: dict[int, Any] = {}
        self._checked: dict[tuple[int, str], Any] = {}
        self._names: set[str] = set(_CALLED_BY_COPY)
        self._known_classes: set[type] = set()
        self._classes: dict[type, bool] = {}  # whether code may make objects of it
        self._modules: dict[int, types.ModuleType] = {}
        self._loggers: dict[int, logging.Logger] = {}
        self._log_names: set[str] = set()
        self._count = 0

    @property
    def has_foreign_code(self) -> bool:
        return bool(self._classes or self._checked)

    def complete(self) -> None:
        """Look at members of classes and modules, until no new name comes up."""
        before = None
        while before != (state := (len(self._names), len(self._modules), tuple(self._classes.values()))):
            before = state
            for kind, is_made in list(self._classes.items()):
                self._members(kind, is_made=is_made)
            for module in list(self._modules.values()):
                self._attributes(module)
        for logger in self._loggers.values():
            self._logger(logger)

    # what a deep copy copies

    def objects(self, waiting: list[Any]) -> None:
        """Check what is copied."""
        while waiting:
            value = waiting.pop()
            if type(value) in _ATOM_TYPES or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            self._bound()
            waiting.extend(self._object(value))

    def _object(self, value: Any) -> Iterator[Any]:
        """Check one object that is copied, and yield those that are copied with it."""
        kind = type(value)
        if is_a(value, (*_ATOMS, Enum)):
            self._derived(value)
            self._note_logger(value)
            return
        if is_a(value, (type, types.FunctionType, types.BuiltinFunctionType, property)):
            self.value(value, f"{_named(value)} within the sampler")
        elif is_a(value, types.MethodType):
            self.function(value.__func__, _named(value), is_method=True)
            yield value.__self__
        elif is_a(value, weakref.ReferenceType):
            if value() is not None:
                raise SharesState(f"a weak reference to an object of the type {_named(type(value()))}")
        elif kind in weakref.ProxyTypes:
            raise SharesState("an object, by a proxy of the module weakref")
        elif is_a(value, (types.ModuleType, types.GeneratorType)):
            return  # deepcopy raises an error
        elif kind in (list, tuple, set, frozenset):
            if not _is_of_atoms(value):
                yield from value
        elif kind is dict:
            yield from value.keys()
            yield from value.values()
        elif is_trusted(kind.__module__):
            self._device(value)
            for base in kind.__mro__:
                self._known_class(base)
            yield from _parts_of_trusted(value)
        else:
            self._instance_class(kind)
            yield from (part for part in gc.get_referents(value) if part is not kind)

    def _instance_class(self, kind: type) -> None:
        for base in kind.__mro__:
            copies = [name for name in _COPIES_ITSELF if name in vars(base)]
            if copies and not is_trusted(base.__module__):
                raise SharesState(f"an object of the type {_named(kind)}, which copies itself")
        if kind in copyreg.dispatch_table:
            raise SharesState(f"an object of the type {_named(kind)}, which copies itself")
        # random.Random and sets are made anew by their copy
        self._class(kind, is_made=any(vars(base).keys() & set(_COPIES_ITSELF) for base in kind.__mro__[:-1]))

    def _known_class(self, kind: type) -> None:
        """Note which methods a known class may call: of objects that it holds, and of classes derived from it."""
        if kind.__module__.partition(".")[0] not in _NEVER_CALLING and kind not in self._known_classes:
            self._known_classes.add(kind)
            self._names |= names_of_class(kind) - _DYNAMIC - _MAKING

    def _device(self, value: Any) -> None:
        device = getattr(value, "device", value) if type(value).__module__.startswith("torch") else None
        if getattr(device, "type", "cpu") not in ("cpu", "meta") and type(device).__name__ == "device":
            raise SharesState("the random generator of an accelerator")

    # what a deep copy shares

    def value(self, value: Any, where: str) -> None:
        """Raise SharesState unless a shared object is harmless."""
        if type(value) in _ATOM_TYPES or id(value) in self._shared:
            return
        self._shared[id(value)] = value
        self._bound()
        self._derived(value)
        self._note_logger(value)
        if not is_a(value, (*_ATOMS, Enum)):
            self._value(value, where)

    def _value(self, value: Any, where: str) -> None:
        if is_a(value, (tuple, frozenset)):
            iterate = tuple.__iter__ if is_a(value, tuple) else frozenset.__iter__
            for part in iterate(value):
                self.value(part, where)
        elif is_a(value, types.FunctionType):
            self.function(value, where)
        elif is_a(value, types.MethodType):
            self.value(value.__self__, where)
            self.function(value.__func__, where, is_method=True)
        elif is_a(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self._builtin(value, where)
        elif is_a(value, type):
            self._class(value, is_made=True)
        elif is_a(value, types.ModuleType):
            self._modules[id(value)] = value
        elif is_a(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self.value(part, where)
        elif not (_is_put_back(value) or _is_constant_of_package(value)):
            raise SharesState(f"{where}, of the type {_named(type(value))}")

    def _derived(self, value: Any) -> None:
        """Check the methods of a member of an enumeration, or of a number, text or tuple of a class of the program."""
        kind = type(value)
        if is_a(value, (Enum, int, float, complex, str, bytes, tuple, frozenset)) and not is_trusted(
            kind.__module__
        ):
            self._class(kind, is_made=False)

    def _builtin(self, value: Any, where: str) -> None:
        owner = getattr(value, "__self__", None)
        if _is_put_back(owner):
            return
        if owner is not None and not is_a(owner, (types.ModuleType, type)):
            self.value(owner, where)
        elif not is_trusted(getattr(value, "__module__", None) or getattr(owner, "__module__", None)):
            raise SharesState(f"{where}, which is not written in Python")
        elif owner is builtins and value.__name__ in _REFUSED_BUILTINS:
            raise SharesState(f"what {value.__name__}() reaches")

    def function(self, function: Any, where: str, *, is_method: bool = False) -> None:
        """Raise SharesState if a function reaches shared state. is_method: its first argument may change."""
        key = (id(function), "method" if is_method else "function")
        if key in self._checked:
            return
        self._checked[key] = function
        self._bound()
        if not is_a(function, types.FunctionType):
            self.value(function, where)
            return
        name = _named(function)
        is_foreign = is_trusted(function.__globals__.get("__name__"))
        self._closure(function, name, is_foreign=is_foreign, is_method=is_method)
        if is_foreign:
            return
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.value(value, f"a default argument of {name}")
        for attribute, value in vars(function).items():
            self.value(value, f"the attribute {attribute} of {name}")
        code = function.__code__
        own = code.co_varnames[0] if is_method and code.co_argcount else None
        self._code(names_of_code(code, own), function.__globals__, name)

    def _closure(self, function: types.FunctionType, name: str, *, is_foreign: bool, is_method: bool) -> None:
        """Check the variables around a function."""
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                held = cell.cell_contents
            except ValueError:
                continue  # it has no value yet
            if is_foreign and type(held) is dict:  # of functools.singledispatch
                for part in held.values():
                    if is_a(part, types.FunctionType):
                        self.function(part, _named(part))
            elif not is_foreign or is_a(held, (types.FunctionType, types.MethodType)):
                # a decorator of a known package holds the function of the program
                self._held(held, f"the variable {variable} around {name}", is_method=is_method and is_foreign)

    def _held(self, value: Any, where: str, *, is_method: bool) -> None:
        if is_a(value, type) and where.startswith("the variable __class__ "):  # of super()
            self._class(value, is_made=False)
        elif is_a(value, types.FunctionType):
            self.function(value, where, is_method=is_method)
        else:
            self.value(value, where)

    def _code(self, names: CodeNames, variables: dict[str, Any], where: str) -> None:
        if names.assigned:
            raise SharesState(f"{names.assigned}, to which {where} assigns")
        refused = names.attributes & _REFUSED_NAMES
        if refused:
            raise SharesState(f"what {min(refused)} reaches in {where}")
        self._names |= names.attributes | names.texts
        self._log_names |= names.attributes & _LOG_LEVELS.keys()
        if _has_accelerator() and (names.attributes | names.texts) & _DEVICE_NAMES:
            raise SharesState(f"the random generator of an accelerator, in {where}")
        for name in names.variables:
            if name in variables:
                self.value(variables[name], f"the variable {name} of the module {variables.get('__name__')}")
            elif name in _REFUSED_BUILTINS:
                raise SharesState(f"what {name}() reaches in {where}")
        self._names |= names.variables & (_DYNAMIC | _MAKING)
        for name, level in names.imports:
            self._import(name, level, variables)

    def _import(self, name: str, level: int, variables: dict[str, Any]) -> None:
        if level:
            name = importlib.util.resolve_name("." * level + name, variables.get("__package__") or "")
        for part in (name, name.partition(".")[0]):
            module = sys.modules.get(part)
            if module is not None:
                self._modules[id(module)] = module
            elif not is_trusted(part):
                raise SharesState(f"the module {part}, which is not imported yet")

    def _class(self, kind: type, *, is_made: bool) -> None:
        if not is_trusted(type(kind).__module__):
            raise SharesState(f"the class {_named(kind)}, which has a class of its own")
        for base in kind.__mro__:
            if is_trusted(base.__module__):
                self._known_class(base)
            else:
                self._classes[base] = self._classes.get(base, False) or is_made

    def _members(self, kind: type, *, is_made: bool) -> None:
        takes_any = bool(self._names & _DYNAMIC)
        is_made = is_made or bool(self._names & _MAKING)
        for name, member in list(vars(kind).items()):
            is_special = name.startswith("__") and name.endswith("__")
            is_used = (
                takes_any or name in self._names or (is_special and (is_made or name not in _NEVER_CALLED))
            )
            where = f"the attribute {name} of the class {_named(kind)}"
            for function, is_method in _functions_of(member):
                if is_used:
                    self.function(function, where, is_method=is_method)
            if not (is_special or is_a(member, _DESCRIPTORS)) and not list(_functions_of(member)):
                self._data(kind, name, member, where)

    def _data(self, kind: type, name: str, member: Any, where: str) -> None:
        is_of_enum = issubclass(kind, Enum) and name.startswith("_")
        is_of_tuple = issubclass(kind, tuple) and name == "_field_defaults"
        is_abstract = type(member).__module__ == "_abc" or type(member).__name__ == "_tuplegetter"
        if not (is_of_enum or is_of_tuple or is_abstract):
            self.value(member, where)

    def _attributes(self, module: types.ModuleType) -> None:
        """Check what code may use of a module, by all names that came up."""
        name = module.__name__
        if is_trusted(name):
            if (
                name in ("torch", "torch.random")
                and _has_accelerator()
                and self._names & {"manual_seed", "seed"}
            ):
                raise SharesState("the random generator of an accelerator, which torch.manual_seed changes")
            return
        variables = vars(module)
        if self._names & _DYNAMIC and name not in sys.stdlib_module_names:
            used = set(variables)
        else:
            used = self._names & set(variables)
        for attribute in used:
            key = (id(module), attribute)
            if key not in self._checked:
                self._checked[key] = module
                self.value(variables[attribute], f"the variable {attribute} of the module {name}")

    def _note_logger(self, value: Any) -> None:
        if is_a(value, logging.Logger):
            self._loggers[id(value)] = value
        elif is_a(value, logging.LoggerAdapter):
            self._note_logger(vars(value).get("logger"))
        elif value is logging:
            self._loggers[id(logging.root)] = logging.root

    def _logger(self, logger: logging.Logger) -> None:
        """Raise SharesState if a copy would write lines to a log: the program writes them, too."""
        for name in sorted(self._log_names):
            if logging.Logger.isEnabledFor(logger, _LOG_LEVELS[name]):
                raise SharesState(f"the logger {logger.name}, by its {name}()")

    def _bound(self) -> None:
        self._count += 1
        if self._count > OBJECTS_MAX:
            raise SharesState("too many objects to look at")


def _functions_of(member: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the functions that an attribute of a class calls, and whether each gets the object."""
    if is_a(member, types.FunctionType):
        yield member, True
    elif is_a(member, (staticmethod, classmethod)):
        yield member.__func__, False
    elif is_a(member, property):
        yield from ((part, True) for part in (member.fget, member.fset, member.fdel) if part is not None)
    elif is_a(member, functools.cached_property):
        yield member.func, True


def _parts_of_trusted(value: Any) -> Iterator[Any]:
    """Yield what an object of a known package holds. Tensors, arrays and generators of numbers are copied whole."""
    kind = type(value)
    root = kind.__module__.partition(".")[0]
    if root == "numpy":
        if getattr(getattr(value, "dtype", None), "hasobject", False):
            yield from value.ravel().tolist()
    elif root in ("builtins", "itertools", "functools", "collections", "operator", "types", "_functools"):
        yield from (part for part in gc.get_referents(value) if part is not kind)
    elif not is_a(value, (type, Enum, logging.Logger)):
        yield from (getattr(value, "__dict__", None) or {}).values()


def _is_of_atoms(values: Any) -> bool:
    """Return whether a list has only numbers and texts, or lists of them: a list of all batches is long."""
    kinds = set(map(type, values))
    if kinds and kinds <= {list, tuple}:
        kinds = set(map(type, chain.from_iterable(values)))
    return kinds <= _ATOM_TYPES


def _is_put_back(value: Any) -> bool:
    """Return whether an object is a generator whose state is put back after a copy has run."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (
        value is getattr(random, "_inst", value)
        or (numpy is not None and value is numpy.random.mtrand._rand)
        or (torch is not None and value is torch.default_generator)
    )


def _is_constant_of_package(value: Any) -> bool:
    """Return whether an object of a known package never changes."""
    kind = type(value)
    root = kind.__module__.partition(".")[0]
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if value is os.environ or root in (
        "typing",
        "typing_extensions",
        "datetime",
        "decimal",
        "uuid",
        "dataclasses",
    ):
        return not hasattr(value, "prec")  # the context of decimals changes
    if numpy is not None and is_a(value, (numpy.generic, numpy.dtype, numpy.ufunc)):
        return True
    if torch is not None and is_a(value, (torch.dtype, torch.device, torch.layout)):
        return True
    if root in ("numpy", "torch"):
        return callable(value) and not is_a(value, getattr(torch.nn, "Module", ()) if torch else ())
    return False


def _has_accelerator() -> bool:
    """Return whether this torch can use a device with a random generator of its own."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    version, mps = torch.version, getattr(torch.backends, "mps", None)
    built = (getattr(version, name, None) for name in ("cuda", "hip", "xpu"))
    return any(built) or (mps is not None and mps.is_built())


def _named(value: Any) -> str:
    name = (
        getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__qualname__
    )
    module = getattr(value, "__module__", None)
    return f"{module}.{name}" if isinstance(module, str) and module != "builtins" else str(name)
