"""How busy GPUs are, by NVML where its package and a driver are there. Blocks for under a millisecond a look."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from headrace.base.missing_extras import missing_extra_of

LOOK_EVERY_S = 0.1
"""NVML's own figure is the mean of its last sampling period, which is no shorter."""


class GpuWatch:
    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.missing = ""
        self._nvml: Any = None
        self._devices: list[Any] = []
        try:
            import pynvml

            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._devices = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
            self.names = tuple(_text(pynvml.nvmlDeviceGetName(one)) for one in self._devices)
            self._nvml = pynvml
        except ModuleNotFoundError as error:
            missing = missing_extra_of(error, "")
            self.missing = f"{missing.why} ({missing.hint})" if missing is not None else str(error)
        except Exception:  # noqa: BLE001  # NVML's errors are classes of its own making; none says no GPU
            self.missing = "none was seen by NVML"
        self._at_s = float("-inf")
        self._busy: float | None = None

    def busy(self, now_s: float, processes: Collection[int]) -> float | None:
        """0 to 1, the mean of the GPUs that the processes use, of all where that isn't told (in a container); None
        without a GPU."""
        if self._nvml is None or not self._devices:
            return None
        if now_s - self._at_s >= LOOK_EVERY_S:
            self._at_s = now_s
            used = [one for one in self._devices if self._users(one) & set(processes)] or self._devices
            try:
                rates = [self._nvml.nvmlDeviceGetUtilizationRates(one).gpu for one in used]
                self._busy = sum(rates) / len(rates) / 100
            except self._nvml.NVMLError:
                self._busy = None
        return self._busy

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None

    def _users(self, device: Any) -> set[int]:
        try:
            return {one.pid for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(device)}
        except self._nvml.NVMLError:
            return set()


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
