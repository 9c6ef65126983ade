"""Moments written by hand."""

from __future__ import annotations

from headrace.diagnose.recording import Frame, KernelCall, Recording, Thread, TimelineSample, Worker

DATALOADER = "/x/site-packages/torch/utils/data/dataloader.py"
WORKER = "/x/site-packages/torch/utils/data/_utils/worker.py"
FETCH = "/x/site-packages/torch/utils/data/_utils/fetch.py"
MULTI = "_MultiProcessingDataLoaderIter"

SCRIPT = Frame("<module>", "/home/me/train.py", 20, "")
WAITS = (
    SCRIPT,
    Frame("_BaseDataLoaderIter.__next__", DATALOADER, 720),
    Frame(f"{MULTI}._next_data", DATALOADER, 1468),
    Frame(f"{MULTI}._get_data", DATALOADER, 1433),
    Frame("wait", "/usr/lib/python3.11/multiprocessing/connection.py", 930),
)
STARTS = (
    SCRIPT,
    Frame("DataLoader.__iter__", DATALOADER, 492),
    Frame("DataLoader._get_iterator", DATALOADER, 433),
    Frame(f"{MULTI}.__init__", DATALOADER, 1101),
    Frame("Popen._launch", "/usr/lib/python3.11/multiprocessing/popen_fork.py", 70),
)
LOOP = (*STARTS, Frame("_worker_loop", WORKER, 350))
IDLE = (*LOOP, Frame("Queue.get", "/usr/lib/python3.11/multiprocessing/queues.py", 113))
FETCHES = (*LOOP, Frame("_MapDatasetFetcher.fetch", FETCH, 54))
DECODES = (*FETCHES, Frame("open", "/x/site-packages/PIL/Image.py", 3000))
AUGMENTS = (*FETCHES, Frame("augment", "/home/me/train.py", 5))
READS = (*FETCHES, Frame("Files.__getitem__", "/home/me/train.py", 9, "file.read()"))
STEPS = (SCRIPT, Frame("step", "/home/me/train.py", 30, "time.sleep(0.1)"))


def worker(call: KernelCall, stack: tuple[Frame, ...], path: str = "", pid: int = 100) -> Worker:
    return Worker(pid, Thread(call, stack, path))


def waiting(*workers: Worker, call: KernelCall = KernelCall.WAIT) -> TimelineSample:
    return TimelineSample(0, 0.02, Thread(call, WAITS), workers, running=0)


def stepping(
    call: KernelCall = KernelCall.SLEEP, *, running: int = 1, stack: tuple[Frame, ...] = STEPS
) -> TimelineSample:
    return TimelineSample(0, 0.02, Thread(call, stack), running=running)


def recording(*moments: tuple[int, TimelineSample], cores: int = 8, **more: object) -> Recording:
    """moments: each so many times."""
    return Recording(
        tuple(sample for count, moment in moments for sample in [moment] * count),
        cores,
        **more,  # type: ignore[arg-type]
    )
