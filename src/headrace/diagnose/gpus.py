"""Measure how busy GPUs are, by NVML where its package and a driver exist. A query blocks for less than a
millisecond."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from headrace.base.missing_extras import missing_extra_of

QUERY_INTERVAL_S = 0.1
"""Seconds between two queries. NVML reports the mean of its last sampling period, which is at least as long."""


class GpuWatch:
    """Query NVML, if it is available. missing: the reason when it is not; "" else."""

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
            self.names = tuple(_text(pynvml.nvmlDeviceGetName(device)) for device in self._devices)
            self._nvml = pynvml
        except ModuleNotFoundError as error:
            missing = missing_extra_of(error, "")
            self.missing = f"{missing.why} ({missing.hint})" if missing is not None else str(error)
        except Exception:  # noqa: BLE001  # NVML's errors are generated classes; any of them means that there is no GPU
            self.missing = "NVML found none"
        self._at_s = float("-inf")
        self._busy: float | None = None

    def busy(self, now_s: float, processes: Collection[int]) -> float | None:
        """Return the mean utilization, 0 to 1, of the GPUs that the processes use; None without a GPU.

        Where NVML does not report the processes (in a container), all GPUs count.
        """
        if self._nvml is None or not self._devices:
            return None
        if now_s - self._at_s >= QUERY_INTERVAL_S:
            self._at_s = now_s
            used = [
                device for device in self._devices if self._users(device) & set(processes)
            ] or self._devices
            try:
                rates = [self._nvml.nvmlDeviceGetUtilizationRates(device).gpu for device in used]
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
            return {process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(device)}
        except self._nvml.NVMLError:
            return set()


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
