"""Load the plan hook when a Python process below `headrace run` imports torch's DataLoader.

Python imports this module at its start, because `headrace run` puts its directory on PYTHONPATH. A program without
torch pays for one comparison of texts an import. The sitecustomize of the environment, which this one hides, runs too.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing itself would cost each Python process some milliseconds
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

WATCHED = "torch.utils.data.dataloader"
_FOLDER = __file__.rpartition("/")[0]


class _WatchedModuleFinder:
    """Finds the watched module as Python would, and patches it as soon as it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != WATCHED:
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchingLoader(spec.loader)  # type: ignore[assignment]
        return spec


class _PatchingLoader:
    """Loads a module with its own loader, then patches it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:  # what programs ask of the module's loader, its own one answers
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            _hook_module("loaders").watch_all_loaders(module)
        except Exception as error:  # noqa: BLE001 - no error of the hook reaches the program
            _say(f"the order of reads can't be learned: {error!r}")


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"headrace: {text}\n")
    except Exception:  # noqa: BLE001 - a program without a usable stderr is not told
        pass


def _hook_module(name: str) -> Any:
    """Return a module of the hook, from the directory above this one, without a change of sys.path."""
    import importlib
    import importlib.util
    import os

    package = "headrace_plan_hook"
    if package not in sys.modules:
        folder = os.path.dirname(_FOLDER)
        spec = importlib.util.spec_from_file_location(
            package, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        assert spec is not None and spec.loader is not None
        sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(f"{package}.{name}")


def _run_hidden() -> None:
    """Run the sitecustomize that Python would have imported without this one."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", [folder for folder in sys.path if folder != _FOLDER])
    if spec is not None and spec.loader is not None and spec.origin != __file__:
        import importlib.util

        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # for programs that ask it for something
        spec.loader.exec_module(module)


sys.meta_path.insert(0, _WatchedModuleFinder())
_run_hidden()
