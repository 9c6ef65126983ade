"""Define the workloads of `headrace bench training`, and the rules of a run that compares with MLPerf Storage.

Workloads with a version are those of that version of MLPerf Storage (https://github.com/mlcommons/storage,
configs/dlio/workload). Values of v3.0 are those of the closed submissions in mlcommons/storage_results_v3.0, whose
numbers of readers differ from the repository's of June 2026. Workloads without a version are Headrace's own. All
functions are pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.base.errors import UsageError

VERSIONS = ("v2.0", "v3.0")
"""Versions of MLPerf Storage, the newest last."""
STEPS_MIN = 500
"""Fewest steps of an epoch, in each version."""
MEMORY_MULTIPLE = 5
"""Least size of the data set, as a multiple of the memory of all hosts, in each version."""
CHAPTERS = {
    "v2.0": ("Submission Guidelines 6.6", "Submission Guidelines 7"),
    "v3.0": ("training/README.md", "training/README.md"),
}
"""Chapters on the size of the data set and on the steps of an epoch, by version."""
SCALED = "MLPerf Storage workload, scaled"
UNSCALED = "MLPerf Storage workload"
OURS = "Headrace's own workload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Describe a workload.

    version: of MLPerf Storage; empty for ours. sample_bytes: mean size of a sample. sd_bytes: its standard deviation.
    sigma: that of the logarithm, for log-normal sizes. samples_a_file: 0 for one file of all samples. batch: samples of
    a step. readers: loader workers of an accelerator. compute_s: sleep of a step, by accelerator. epochs: fewest of a
    run. au_needed: utilization that a run needs to pass.

    handed_bytes: bytes of a sample that a loader worker passes to the trainer. npz, and JPEG of MLPerf: as in DLIO.
    JPEG of ours: 224 x 224 pixels. tfrecords: none, because TensorFlow's readers are threads of the trainer. shuffled:
    shuffle always, without --shuffle. flat: JPEGs are in one directory, not in one for each class. as_bytes: npz are
    read as bytes, and their checksums not verified, as DLIO of v3.0 reads them. prefetch: batches that a loader worker
    prepares ahead.
    """

    name: str
    version: str = ""
    format: str
    sample_bytes: float
    sd_bytes: float = 0.0
    sigma: float = 0.0
    samples_a_file: int = 1
    batch: int
    readers: int
    compute_s: dict[str, float]
    epochs: int = 5
    au_needed: float = 0.9
    handed_bytes: int = 0
    shuffled: bool = False
    flat: bool = False
    as_bytes: bool = False
    prefetch: int = 2

    def scaled(self, *, sizes: float, times: float) -> Workload:
        """Return the workload with samples and compute multiplied by a factor each."""
        return replace(
            self,
            sample_bytes=self.sample_bytes * sizes,
            sd_bytes=self.sd_bytes * sizes,
            handed_bytes=round(self.handed_bytes * sizes),
            compute_s={name: seconds * times for name, seconds in self.compute_s.items()},
        )

    def samples(self, steps: int, accelerators: int) -> int:
        """Return the number of samples that the steps of all accelerators need."""
        return steps * self.batch * accelerators

    def files(self, steps: int, accelerators: int) -> int:
        """Return the number of files that the steps of all accelerators need.

        A loader worker of tfrecords with many samples cuts batches from its own files, and omits an incomplete last
        one. Each worker therefore gets as many files as its steps need.
        """
        if not self.samples_a_file:
            return 1
        if self.samples_a_file == 1:
            return self.samples(steps, accelerators)
        each = -(-steps // self.readers)
        return accelerators * self.readers * -(-each * self.batch // self.samples_a_file)

    def steps(self, files: int, accelerators: int, *, samples: int = 0) -> int:
        """Return the steps of an epoch, the same for each accelerator.

        samples: those of the only file, if there is one.
        """
        if not self.samples_a_file:
            return samples // accelerators // self.batch
        each = files // accelerators
        if self.samples_a_file == 1:
            return each // self.batch
        shares = [len(range(reader, each, self.readers)) for reader in range(self.readers)]
        return sum(share * self.samples_a_file // self.batch for share in shares)


WORKLOADS: tuple[Workload, ...] = (
    Workload(
        name="unet3d", version="v2.0", format="npz", sample_bytes=146_600_628, sd_bytes=68_341_808, batch=7, readers=4,
        compute_s={"a100": 0.636, "h100": 0.323}, handed_bytes=2_097_152,
    ),
    Workload(
        name="resnet50", version="v2.0", format="tfrecord", sample_bytes=114_660, samples_a_file=1251, batch=400,
        readers=8, compute_s={"a100": 0.435, "h100": 0.224},
    ),
    Workload(
        name="cosmoflow", version="v2.0", format="tfrecord", sample_bytes=2_828_486, sd_bytes=71_311, batch=1,
        readers=4, compute_s={"a100": 0.00551, "h100": 0.00350}, au_needed=0.7,
    ),
    Workload(
        name="unet3d", version="v3.0", format="npz", sample_bytes=146_600_628, sd_bytes=68_341_808, batch=7, readers=32,
        compute_s={"b200": 0.162}, handed_bytes=2_097_152, shuffled=True, as_bytes=True, prefetch=1,
    ),
    Workload(
        name="retinanet", version="v3.0", format="jpeg", sample_bytes=322_957, batch=24, readers=4,
        compute_s={"b200": 0.04755}, epochs=8, au_needed=0.85, handed_bytes=322_957, shuffled=True, flat=True,
        prefetch=1,
    ),
    Workload(
        name="imagefolder", format="jpeg", sample_bytes=110_000, sigma=0.5, batch=256, readers=8,
        compute_s={"a100": 0.435, "h100": 0.224}, handed_bytes=150_528, shuffled=True,
    ),
    Workload(
        name="tokens", format="tokens", sample_bytes=16_384, samples_a_file=0, batch=64, readers=4,
        compute_s={"a100": 0.05, "h100": 0.05}, handed_bytes=16_384, shuffled=True,
    ),
)  # fmt: skip
"""All workloads. Of two of the same name, the one of the newer version is the later."""


def workload(name: str, *, version: str = "", accelerator: str = "") -> Workload:
    """Return the workload of that name.

    version: by default the newest that has the workload, for that accelerator if one is given. Workloads of ours are in
    every version. Raises UsageError, which lists what there is.
    """
    named = [each for each in WORKLOADS if each.name == name]
    if not named:
        raise UsageError(f"workload {name}", why="there is none", hint=", ".join(names()))
    if version and version not in VERSIONS:
        raise UsageError(f"--version {version}", why="unknown", hint=", ".join(VERSIONS))
    of_version = [each for each in named if each.version in ("", version) or not version]
    if not of_version:
        hint = f"--version {named[-1].version}"
        raise UsageError(f"workload {name}", why=f"MLPerf Storage {version} has none", hint=hint)
    fitting = [each for each in of_version if not accelerator or accelerator in each.compute_s]
    if not fitting:
        kinds = [kind for each in of_version for kind in each.compute_s]
        why = f"{name} has no compute time for it"
        raise UsageError(f"--accelerator {accelerator}", why=why, hint=", ".join(kinds))
    return fitting[-1]


def names() -> list[str]:
    """Return the name of each workload once."""
    return list(dict.fromkeys(each.name for each in WORKLOADS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Hold the values of a run that the rules check. memory_bytes: memory of all hosts."""

    sizes: float
    times: float
    dataset_bytes: int
    memory_bytes: int
    steps: int
    epochs: int
    shuffle: bool
    cache_dropped: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """Report whether a rule is kept."""

    text: str
    needed: str
    measured: str
    kept: bool


def rules(scaled: Workload, run: Setting) -> list[Rule]:
    """Check each rule and return it with the measured value.

    Each rule names where its version states it. Workloads of ours are checked against the newest.
    """
    gib = 1 << 30
    needed, size = MEMORY_MULTIPLE * run.memory_bytes / gib, run.dataset_bytes / gib
    of_size, of_steps = CHAPTERS[scaled.version or VERSIONS[-1]]
    listed = [
        Rule(
            f"data set of 5 times the hosts' memory ({of_size})",
            f"{needed:.1f} GiB",
            f"{size:.1f} GiB",
            size >= needed,
        ),
        Rule(f"500 steps an epoch ({of_steps})", str(STEPS_MIN), str(run.steps), run.steps >= STEPS_MIN),
        Rule(f"{scaled.epochs} epochs (workload)", str(scaled.epochs), str(run.epochs), run.epochs >= scaled.epochs),
        Rule(
            "sizes and times as they are",
            "1, 1",
            f"{run.sizes:g}, {run.times:g}",
            run.sizes == run.times == 1.0,
        ),
        Rule("page cache empty before an epoch (ours)", "yes", "yes" if run.cache_dropped else "no", run.cache_dropped),
    ]  # fmt: skip
    if scaled.version and not scaled.shuffled:
        listed.append(Rule("files in a fixed order", "yes", "no" if run.shuffle else "yes", not run.shuffle))
    return listed


def called(scaled: Workload, kept: list[Rule]) -> str:
    """Return the name that a run may bear. It is never an MLPerf result: MLPerf's code makes those, and MLPerf reviews
    them."""
    if not scaled.version:
        return OURS
    return UNSCALED if all(rule.kept for rule in kept) else SCALED
