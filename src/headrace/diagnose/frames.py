"""Classify threads by their Python stacks, by one table of rules and without system calls.

A rule identifies a library by the end of a file's path and the last word of a function's name. So it holds for every
installation. Stacks contain names of classes since Python 3.11, but no rule needs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum, StrEnum
from functools import lru_cache

from headrace.diagnose.recording import Frame

Stack = tuple[Frame, ...]


class TrainerPhase(IntEnum):
    """List the phases of a trainer's main thread. Of the phases of its frames, the smallest counts.

    So a transform that is a torch module is FETCH, and a save is not FORWARD.
    """

    CHECKPOINT = 1
    LOADER_START = 2
    FETCH = 3  # the data set itself, in the trainer's process
    UNPACK = 4  # rebuilds a batch from its parts
    WAIT_DATA = 5
    IMPORT = 6
    BACKWARD = 7
    OPTIMIZER = 8
    FORWARD = 9
    COPY = 10
    OWN = 11  # the script's own code


class WorkerActivity(StrEnum):
    """List the activities of a thread that prepares samples."""

    DECODE = "decoding"
    TRANSFORM = "transforms"
    COLLATE = "collating"
    NETWORK = "network"
    PACK = "packing"
    IDLE = "idle"  # a worker without a task
    OWN = "the data set's own code"


_NAME = str
_PHASES: tuple[tuple[TrainerPhase, str, _NAME], ...] = (
    (TrainerPhase.CHECKPOINT, r"torch/serialization\.py", r"save|_save|_legacy_save"),
    (TrainerPhase.CHECKPOINT, r"torch/distributed/checkpoint/.*", r"\w*save\w*|\w*write\w*|\w*stage\w*"),
    (TrainerPhase.CHECKPOINT, r"safetensors/\w+\.py", r"save\w*"),
    (TrainerPhase.CHECKPOINT, r"headrace/checkpoint/.*", r"save|stage|wait"),
    (TrainerPhase.CHECKPOINT, r".*", r"save_checkpoint|_?save_pretrained|dump_checkpoint|save_state_dict"),
    (
        TrainerPhase.LOADER_START,
        r"torch/utils/data/dataloader\.py",
        r"__init__|_get_iterator|_?shutdown_workers?",
    ),
    (TrainerPhase.LOADER_START, r"torch/utils/data/dataloader\.py", r"_reset|__del__|_shutdown_worker"),
    (TrainerPhase.FETCH, r"torch/utils/data/_utils/fetch\.py", r"fetch"),
    (TrainerPhase.UNPACK, r"torch/multiprocessing/reductions\.py", r"rebuild_\w+"),
    (TrainerPhase.UNPACK, r"torch/utils/data/dataloader\.py", r"_process_data"),
    (
        TrainerPhase.WAIT_DATA,
        r"torch/utils/data/dataloader\.py",
        r"_next_data|_get_data|_try_get_data|__next__",
    ),
    (TrainerPhase.BACKWARD, r"torch/_tensor\.py|torch/autograd/.*", r"backward|_engine_run_backward"),
    (TrainerPhase.OPTIMIZER, r"torch/optim/.*", r"(?!__init__$|add_param_group$).*"),
    (TrainerPhase.OPTIMIZER, r"torch/nn/utils/clip_grad\.py", r".*"),
    (TrainerPhase.FORWARD, r"torch/nn/modules/module\.py", r"_call_impl|_wrapped_call_impl"),
    (TrainerPhase.COPY, r"torch/nn/modules/module\.py", r"to|cuda|convert"),
    (TrainerPhase.COPY, r".*", r"send_to_device|move_data_to_device|batch_to_device|_prepare_inputs"),
    (TrainerPhase.COPY, r"torch/utils/data/_utils/pin_memory\.py", r"pin_memory"),
    (TrainerPhase.IMPORT, r"<frozen importlib\._bootstrap.*", r".*"),
)

_WORKS: tuple[tuple[WorkerActivity, str, _NAME], ...] = (
    (
        WorkerActivity.DECODE,
        r"(PIL|cv2|imageio|simplejpeg|turbojpeg|nibabel|pydicom|soundfile|librosa|av)/.*",
        r".*",
    ),
    (WorkerActivity.DECODE, r"torchvision/(io|datasets)/.*|torchaudio/.*|torchcodec/.*", r".*"),
    (WorkerActivity.DECODE, r"numpy/lib/(_?npyio|_?format)\w*\.py", r".*"),
    (WorkerActivity.DECODE, r"(gzip|bz2|lzma|zipfile|tarfile|pickle|json/\w+|_compression)\.py", r".*"),
    (WorkerActivity.DECODE, r"(pyarrow|h5py|zarr|numcodecs|tensorflow|tfrecord|webdataset)/.*", r".*"),
    (
        WorkerActivity.TRANSFORM,
        r"torchvision/transforms/.*|(albumentations|kornia|imgaug|monai|skimage)/.*",
        r".*",
    ),
    (WorkerActivity.TRANSFORM, r"(transformers|tokenizers|sentencepiece)/.*", r".*"),
    (WorkerActivity.TRANSFORM, r".*", r"\w*(transform|augment|normali[sz]e|resize|crop|tokenize)\w*"),
    (WorkerActivity.DECODE, r".*", r"\w*(decode|decompress|parse|unpack)\w*"),
    (WorkerActivity.COLLATE, r"torch/utils/data/_utils/collate\.py", r".*"),
    (WorkerActivity.COLLATE, r".*", r"\w*collate\w*"),
    (
        WorkerActivity.PACK,
        r"multiprocessing/(reduction|connection|queues)\.py",
        r"dumps|_?send\w*|_feed|put|send_bytes",
    ),
    (
        WorkerActivity.NETWORK,
        r"(fsspec|s3fs|gcsfs|adlfs|boto3|botocore|aiobotocore|obstore|smart_open)/.*",
        r".*",
    ),
    (WorkerActivity.NETWORK, r"(urllib3|requests|aiohttp|httpx|httpcore|http|urllib)/.*", r".*"),
    (WorkerActivity.NETWORK, r"(socket|ssl)\.py", r".*"),
)
_IDLE = re.compile(r"(.*/)?multiprocessing/(queues|connection)\.py")
_WORKER_LOOP = re.compile(r"(.*/)?torch/utils/data/_utils/worker\.py")

_COPY_LINE = re.compile(r"\.(to|cuda|pin_memory|copy_)\(")
_SAVE_LINE = re.compile(
    r"\b(torch|pickle|np|numpy|joblib|orbax)\.(save|dump|savez\w*)\(|\.state_dict\(\)|fsync\("
)
_DECODE_LINE = re.compile(
    r"\b(zlib|gzip|bz2|lzma|zstandard|zstd|lz4|blosc|snappy)\b|imdecode|decode|np\.load\("
)
_WAIT_LINE = re.compile(r"\.(acquire|wait|join|result|get|recv|put|select|poll|communicate|sleep)\(")
_WAITS = re.compile(
    r"(.*/)?((threading|queue|selectors|subprocess)\.py|(concurrent/futures|multiprocessing|asyncio)/.*)"
)
_OURS = re.compile(r"(.*/)?headrace/(client|vfs|sdk|integrations)/.*")
_POLLS = frozenset(("wait", "poll", "_poll", "select", "accept", "acquire"))
_TORCH = re.compile(r"(.*/)?torch/(nn|optim|autograd|utils|_\w+|overrides|functional|cuda|amp)\b.*")


def last_word(name: str) -> str:
    return name.rsplit(".", 1)[-1]


@lru_cache(maxsize=65_536)
def phase_of(stack: Stack) -> TrainerPhase | None:
    """Return the phase of a trainer's main thread; None without a stack."""
    if not stack:
        return None
    result = min(
        (phase for frame in stack for phase in _phases(frame.file, frame.name)), default=TrainerPhase.OWN
    )
    if result is TrainerPhase.IMPORT or result > TrainerPhase.FORWARD:
        line = stack[-1].text
        if _SAVE_LINE.search(line):
            return TrainerPhase.CHECKPOINT
        if result is TrainerPhase.OWN and _COPY_LINE.search(line):
            return TrainerPhase.COPY
    return result


@lru_cache(maxsize=65_536)
def work_of(stack: Stack) -> WorkerActivity:
    """Return the activity of a thread that prepares samples, by the innermost frame that a rule recognizes."""
    if not stack:
        return WorkerActivity.OWN
    if _DECODE_LINE.search(stack[-1].text):
        return WorkerActivity.DECODE
    for index in range(len(stack) - 1, -1, -1):
        frame = stack[index]
        if _WORKER_LOOP.fullmatch(frame.file):
            return (
                WorkerActivity.IDLE
                if index + 1 < len(stack) and _idle(stack[index + 1])
                else WorkerActivity.OWN
            )
        for work, file, name in _compiled_works():
            if name.fullmatch(last_word(frame.name)) and file.fullmatch(frame.file):
                if work is WorkerActivity.PACK and _gets(stack):
                    break
                return work
    return WorkerActivity.OWN


def is_worker(stack: Stack) -> bool:
    """Return whether this is the main thread of a process of torch's loader."""
    return any(
        _WORKER_LOOP.fullmatch(frame.file) and last_word(frame.name) == "_worker_loop" for frame in stack
    )


def waits(stack: Stack) -> bool:
    """Return whether the innermost line is a wait in the program's own code.

    Sleeping there is not a wait for the interpreter's lock.
    """
    if not stack:
        return True
    return bool(_WAITS.fullmatch(stack[-1].file) or _WAIT_LINE.search(stack[-1].text))


def calls_headrace(stack: Stack) -> bool:
    """Return whether it is inside a call of Headrace's library, and so waits for this host's node."""
    return any(_OURS.fullmatch(frame.file) for frame in stack)


def polls(stack: Stack) -> bool:
    """Return whether the innermost line waits for a message; a running thread there was woken just now."""
    return bool(stack) and last_word(stack[-1].name) in _POLLS and bool(_WAITS.fullmatch(stack[-1].file))


def in_torch(stack: Stack) -> bool:
    """Return whether the innermost line is torch's own Python: the overhead of a step."""
    return bool(stack) and bool(_TORCH.fullmatch(stack[-1].file))


def innermost_own(stack: Stack) -> Frame | None:
    """Return the innermost frame outside of libraries, which is shown to the user."""
    for frame in reversed(stack):
        if "site-packages" not in frame.file and not re.search(r"/lib/python\d|^<", frame.file):
            return frame
    return stack[-1] if stack else None


def _idle(frame: Frame) -> bool:
    return bool(_IDLE.fullmatch(frame.file)) and last_word(frame.name) in ("get", "poll", "_poll", "wait")


def _gets(stack: Stack) -> bool:
    return any(last_word(frame.name) == "get" for frame in stack)


@lru_cache(maxsize=1)
def _compiled_phases() -> tuple[tuple[TrainerPhase, re.Pattern[str], re.Pattern[str]], ...]:
    return tuple((phase, re.compile(f"(.*/)?({file})"), re.compile(name)) for phase, file, name in _PHASES)


@lru_cache(maxsize=1)
def _compiled_works() -> tuple[tuple[WorkerActivity, re.Pattern[str], re.Pattern[str]], ...]:
    return tuple((work, re.compile(f"(.*/)?({file})"), re.compile(name)) for work, file, name in _WORKS)


@lru_cache(maxsize=16_384)
def _phases(file: str, name: str) -> tuple[TrainerPhase, ...]:
    return tuple(_matching(file, last_word(name)))


def _matching(file: str, function_name: str) -> Iterator[TrainerPhase]:
    for phase, files, names in _compiled_phases():
        if names.fullmatch(function_name) and files.fullmatch(file):
            yield phase
