"""DLIO's own command line and result files. What depends on their wording is in this file."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass

from nodebench.machine import NotRunError, Workplace, run

from headrace.bench import workloads
from headrace.bench.workloads import Workload

ACCELERATOR = "a100"
INSTALL = """\
DLIO is not here. It goes into a virtual environment of its own, as its dependencies are not ours:
  git clone -b mlperf_storage_v2.0 https://github.com/argonne-lcf/dlio_benchmark DLIO
  python3 -m venv VENV
  VENV/bin/pip install torch tensorflow-cpu mpi4py mpich hydra-core==1.3.2 pandas psutil pillow h5py
  VENV/bin/pip install --no-deps tensorflow-io tensorflow-io-gcs-filesystem
  VENV/bin/pip install . google-crc32c
then: ./dev bench dlio --dlio VENV/bin/python --source DLIO"""
RESIZE = {"unet3d": 2_097_152, "resnet50": 150_528}
"""record_length_bytes_resize of MLPerf Storage's configurations, at scale 1."""
_EPOCHS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "epochs.py")


@dataclass(frozen=True)
class Epoch:
    """au: 0 to 100. compute_s: of a step, mean of steps 2..N."""

    au: float
    compute_s: float


class Dlio:
    def __init__(self, place: Workplace, python: str, source: str) -> None:
        """python: of the virtual environment. source: a checkout, where DLIO is not installed in it. NotRunError."""
        self.place, self.python = place, python
        self._environment = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        if source:
            self._environment["PYTHONPATH"] = os.path.abspath(source)
        self.version = self._try()

    def make(self, name: str, folder: str, *, files: int, sizes: float) -> None:
        """The data set, by DLIO's generator."""
        self._run(
            name,
            folder,
            files=files,
            sizes=sizes,
            more={"workflow.generate_data": True, "workflow.train": False},
        )

    def train(
        self, name: str, folder: str, *, files: int, sizes: float, times: float, steps: int, epochs: int
    ) -> list[Epoch]:
        """Of each epoch. The page cache is dropped before each."""
        workload = workloads.workload(name).scaled(sizes=sizes, times=times)
        more = {
            "train.computation_time": workload.compute_s[ACCELERATOR],
            "train.total_training_steps": steps,
            "train.epochs": epochs,
        }
        out = self._run(name, folder, files=files, sizes=sizes, more=more)
        with open(os.path.join(out, "summary.json")) as source:
            metric = json.load(source)["metric"]
        with open(os.path.join(out, "0_output.json")) as source:
            by_epoch = json.load(source)
        measured = []
        for number, au in enumerate(metric["train_au_percentage"], start=1):
            took = by_epoch[str(number)]["compute"]["block1"]
            if len(took) != steps:
                raise NotRunError(f"DLIO made {len(took)} steps, not {steps}")
            measured.append(Epoch(au, sum(took[1:]) / (len(took) - 1)))
        return measured

    def _run(self, name: str, folder: str, *, files: int, sizes: float, more: dict[str, object]) -> str:
        """The folder with its results."""
        out = self.place.folder(f"dlio-{name}")
        workload = workloads.workload(name)
        settings: dict[str, object] = {
            "dataset.data_folder": folder,
            "dataset.num_files_train": files,
            **_sizes(workload, sizes),
            "workflow.checkpoint": False,
            "workflow.generate_data": False,
            "output.folder": out,
            **more,
        }
        words = [f"++workload.{key}={value}" for key, value in settings.items()]
        path = f"{self._without_dali(out)}:{os.path.dirname(self.python)}:{os.environ['PATH']}"
        run(
            [self.python, _EPOCHS, f"workload={name}_{ACCELERATOR}", *words, f"hydra.run.dir={out}"],
            timeout_s=900,
            env={**self._environment, "PATH": path},
        )
        return out

    def _without_dali(self, folder: str) -> str:
        """A folder with a `tfrecord2idx` that does nothing: DLIO's generator calls NVIDIA DALI's, for indexes that
        only DALI's readers look at."""
        path = os.path.join(folder, "tfrecord2idx")
        with open(path, "w") as out:
            out.write("#!/bin/sh\nexit 0\n")
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return folder

    def _try(self) -> str:
        """Versions of what it stands on. NotRunError where it does not start."""
        code = (
            "import dlio_benchmark.main, torch, tensorflow, mpi4py;"
            "print('torch', torch.__version__, 'tensorflow', tensorflow.__version__, 'mpi4py', mpi4py.__version__)"
        )
        try:
            return (
                run([self.python, "-c", code], timeout_s=300, env=self._environment).strip().splitlines()[-1]
            )
        except (NotRunError, OSError) as error:
            raise NotRunError(f"{error}\n{INSTALL}") from error


def _sizes(workload: Workload, sizes: float) -> dict[str, object]:
    settings: dict[str, object] = {"dataset.record_length_bytes": round(workload.sample_bytes * sizes)}
    if workload.sd_bytes:
        settings["dataset.record_length_bytes_stdev"] = round(workload.sd_bytes * sizes)
    if workload.name in RESIZE:
        settings["dataset.record_length_bytes_resize"] = round(RESIZE[workload.name] * sizes)
    return settings
