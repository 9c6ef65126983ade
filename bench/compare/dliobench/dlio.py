"""DLIO's own command line and result files. What depends on their wording is in this file."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass

from nodebench.machine import NotRunError, Workplace, run

from headrace.bench import workloads
from headrace.bench.workloads import Workload

SOURCES = {
    "v2.0": "git clone -b mlperf_storage_v2.0 https://github.com/argonne-lcf/dlio_benchmark DLIO",
    "v3.0": "git clone https://github.com/mlcommons/DLIO_local_changes DLIO",
}
PACKAGES = {
    "v2.0": """\
  VENV/bin/pip install torch tensorflow-cpu mpi4py mpich hydra-core==1.3.2 pandas psutil pillow h5py
  VENV/bin/pip install --no-deps tensorflow-io tensorflow-io-gcs-filesystem
  VENV/bin/pip install . google-crc32c""",
    "v3.0": """\
  VENV/bin/pip install torch mpi4py mpich hydra-core==1.3.2 pandas psutil pillow h5py pydftracer dgen-py""",
}


def install(version: str) -> str:
    """Return how DLIO of a version of MLPerf Storage is installed."""
    return f"""\
DLIO is not here. It goes into a virtual environment of its own, as its dependencies are not ours:
  {SOURCES[version]}
  python3 -m venv VENV
{PACKAGES[version]}
then: ./dev bench dlio --version {version} --dlio VENV/bin/python --source DLIO"""


RESIZE = {"unet3d": 2_097_152, "resnet50": 150_528}
"""record_length_bytes_resize of MLPerf Storage's configurations, at scale 1."""
_EPOCHS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "epochs.py")


@dataclass(frozen=True)
class Epoch:
    """au: 0 to 100. au_of_steps: the same without what follows the last step: DLIO of v3.0 counts the end of its
    workers, which is much of a short epoch. compute_s: of a step, mean of steps 2..N."""

    au: float
    au_of_steps: float
    compute_s: float


class Dlio:
    def __init__(self, place: Workplace, version: str, python: str, source: str) -> None:
        """version: of MLPerf Storage. python: of the virtual environment. source: a checkout, where DLIO is not
        installed in it. NotRunError."""
        self.place, self.mlperf, self.python = place, version, python
        self._environment = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        if source:
            self._environment["PYTHONPATH"] = os.path.abspath(source)
        self.version = self._try()

    def make(self, name: str, folder: str, *, files: int, sizes: float) -> None:
        """Make the data set by DLIO's generator. It wants memory for readers, though it starts none: one will do."""
        self._run(
            name,
            folder,
            files=files,
            sizes=sizes,
            readers=1,
            more={"workflow.generate_data": True, "workflow.train": False},
        )

    def train(
        self,
        name: str,
        folder: str,
        *,
        files: int,
        sizes: float,
        times: float,
        steps: int,
        epochs: int,
        readers: int,
    ) -> list[Epoch]:
        """Return the result of each epoch. The page cache is dropped before each. readers: 0 for the workload's."""
        workload = workloads.workload(name, version=self.mlperf).scaled(sizes=sizes, times=times)
        more = {
            "train.computation_time": next(iter(workload.compute_s.values())),
            "train.total_training_steps": steps,
            "train.epochs": epochs,
        }
        out = self._run(name, folder, files=files, sizes=sizes, readers=readers, more=more)
        with open(os.path.join(out, "summary.json")) as source:
            metric = json.load(source)["metric"]
        with open(os.path.join(out, "0_output.json")) as source:
            by_epoch = json.load(source)
        measured = []
        for number, au in enumerate(metric["train_au_percentage"], start=1):
            took = by_epoch[str(number)]["compute"]["block1"]
            if len(took) != steps:
                raise NotRunError(f"DLIO made {len(took)} steps, not {steps}")
            whole = by_epoch[str(number)]["proc"]["block1"]
            of_steps = 100 * sum(took[1:]) / sum(whole[1:])
            measured.append(Epoch(au, of_steps, sum(took[1:]) / (len(took) - 1)))
        return measured

    def _run(
        self, name: str, folder: str, *, files: int, sizes: float, more: dict[str, object], readers: int = 0
    ) -> str:
        """Run DLIO, and return the folder with its results."""
        out = self.place.folder(f"dlio-{name}")
        workload = workloads.workload(name, version=self.mlperf)
        chosen = f"{name}_{next(iter(workload.compute_s))}"
        settings: dict[str, object] = {
            "dataset.data_folder": folder,
            "dataset.num_files_train": files,
            **_sizes(workload, sizes),
            "workflow.checkpoint": False,
            "workflow.generate_data": False,
            "output.folder": out,
            **more,
        }
        if readers:
            settings["reader.read_threads"] = readers
        words = [f"++workload.{key}={value}" for key, value in settings.items()]
        path = f"{self._without_dali(out)}:{os.path.dirname(self.python)}:{os.environ['PATH']}"
        run(
            [self.python, _EPOCHS, *self._configured(chosen, workload), *words, f"hydra.run.dir={out}"],
            timeout_s=900,
            env={**self._environment, "PATH": path},
        )
        return out

    def _configured(self, chosen: str, workload: Workload) -> list[str]:
        """Return the words that choose the workload's configuration. DLIO has those of v2.0 itself; those of v3.0 are
        in MLPerf Storage's repository, so a file is written that says the same."""
        if self.mlperf == "v2.0":
            return [f"workload={chosen}"]
        folder = self.place.folder("dlio-configuration")
        os.makedirs(os.path.join(folder, "workload"), exist_ok=True)
        with open(os.path.join(folder, "workload", f"{chosen}.yaml"), "w") as out:
            json.dump(_configuration(workload), out)
        return ["--config-dir", folder, f"workload={chosen}"]

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
            "import dlio_benchmark.main, torch, mpi4py;"
            "print('torch', torch.__version__, 'mpi4py', mpi4py.__version__)"
        )
        try:
            return (
                run([self.python, "-c", code], timeout_s=300, env=self._environment).strip().splitlines()[-1]
            )
        except (NotRunError, OSError) as error:
            raise NotRunError(f"{error}\n{install(self.mlperf)}") from error


def _configuration(workload: Workload) -> dict[str, object]:
    """configs/dlio/workload of v3.0 in mlcommons/storage, where it matters. Workers are forked, as there."""
    reader = {"data_loader": "pytorch", "batch_size": workload.batch, "read_threads": workload.readers}
    reader |= {"multiprocessing_context": "fork", "file_shuffle": "seed", "sample_shuffle": "seed"}
    return {
        "model": {"name": workload.name, "type": "cnn"},
        "framework": "pytorch",
        "workflow": {"generate_data": False, "train": True, "checkpoint": False},
        "dataset": {"format": workload.format, "num_samples_per_file": workload.samples_a_file},
        "reader": reader,
        "train": {"epochs": workload.epochs},
        "metric": {"au": workload.au_needed},
    }


def _sizes(workload: Workload, sizes: float) -> dict[str, object]:
    settings: dict[str, object] = {"dataset.record_length_bytes": round(workload.sample_bytes * sizes)}
    if workload.sd_bytes:
        settings["dataset.record_length_bytes_stdev"] = round(workload.sd_bytes * sizes)
    if workload.name in RESIZE:
        settings["dataset.record_length_bytes_resize"] = round(RESIZE[workload.name] * sizes)
    return settings
