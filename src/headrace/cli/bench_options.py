"""Declares the options of `headrace bench`."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import define

WorkloadName = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="Workload to run: unet3d, retinanet, resnet50, cosmoflow, imagefolder or tokens.",
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="WHERE",
        help="Place of the data set: a directory, a mount, headrace:///PATH, s3://… or another fsspec URL.",
    ),
]
Version = Annotated[
    str,
    define(
        "--version",
        "VERSION",
        "Version of MLPerf Storage whose workload is run: v2.0 or v3.0.",
        default="the newest that has the workload for the accelerator",
    ),
]
Accelerator = Annotated[
    str,
    define(
        "--accelerator",
        "KIND",
        "Accelerator whose compute time is simulated: b200 in v3.0, otherwise a100 or h100.",
        default="the first that the workload has",
    ),
]
Accelerators = Annotated[
    int, define("--accelerators", "N", "Number of accelerators to simulate on each host.")
]
Steps = Annotated[int, define("--steps", "N", "Steps of each epoch; MLPerf Storage runs 500 or more.")]
ByTheRules = Annotated[
    bool,
    typer.Option(
        "--by-the-rules",
        help="Run as many steps as MLPerf Storage requires for this host's memory; --steps is ignored.",
    ),
]
Epochs = Annotated[int, define("--epochs", "N", "Number of epochs to run.")]
Scale = Annotated[float, define("--scale", "F", "Scale sample sizes and compute times by this factor.")]
ScaleSizes = Annotated[
    float | None,
    define(
        "--scale-sizes", "F", "Scale sample sizes by this factor instead.", default="the factor of --scale"
    ),
]
ScaleTimes = Annotated[
    float | None,
    define(
        "--scale-times", "F", "Scale compute times by this factor instead.", default="the factor of --scale"
    ),
]
Shuffle = Annotated[bool, typer.Option("--shuffle", help="Read the samples in another order in each epoch.")]
Readers = Annotated[
    int | None,
    define("--readers", "N", "Number of loader workers for each accelerator.", default="the workload's"),
]
Loader = Annotated[
    str,
    define(
        "--loader",
        "LIBRARY",
        "Data loader: torch, or tensorflow for tfrecord files as MLPerf Storage reads them.",
    ),
]
Seed = Annotated[int, define("--seed", "N", "Seed of the generated data and of shuffled orders.")]
KeepCache = Annotated[
    bool, typer.Option("--keep-cache", help="Keep the page cache instead of dropping it before each pass.")
]
NoGenerate = Annotated[
    bool, typer.Option("--no-generate", help="Fail when there is no data set instead of generating it.")
]
By = Annotated[str, define("--by", "LIBRARY", "Library used to read URLs: fsspec or obstore.")]
HostCount = Annotated[int, define("--hosts", "N", "Number of hosts that take part.")]
HostNumber = Annotated[int, define("--host", "I", "Number of this host among them, from 0.")]
Meet = Annotated[
    str,
    define("--meet", "HOST:PORT", "Address of the first host, which listens on this port and the next one."),
]
Ssh = Annotated[str, define("--ssh", "HOST,HOST", "Run the benchmark on these hosts, started through ssh.")]
Remote = Annotated[str, define("--remote", "COMMAND", "Command that starts headrace on the hosts of --ssh.")]
ModelName = Annotated[
    str, define("--model", "MODEL", "Model to save: llama3-8b, llama3-70b, llama3-405b or llama3-1t.")
]
Folder = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER", help="Directory to write to; the benchmark creates a directory of its own in it."
    ),
]
ScaleOfSizes = Annotated[float, define("--scale", "F", "Scale all file sizes by this factor.")]
Mode = Annotated[
    str,
    define("--mode", "MODE", "Ranks that take part: subset for the first 8, default for all of the model."),
]
Writes = Annotated[int, define("--writes", "N", "Number of checkpoints to write; MLPerf Storage writes 10.")]
Reads = Annotated[
    int, define("--reads", "N", "Number of checkpoints to read back, at most as many as are written.")
]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the written files instead of deleting them.")]
Origin = Annotated[
    str,
    define(
        "--origin",
        "s3://…",
        "Bucket and prefix where the data set is generated.",
        default="an object store that the benchmark starts",
    ),
]
Folders = Annotated[
    list[str] | None,
    define(
        "--folder", "DIR", "Mounted directory to compare as one more way, such as a NAS; may be repeated."
    ),
]
Only = Annotated[
    str,
    define(
        "--only",
        "WAY,WAY",
        "Ways to run: local, s3fs-library, obstore, rclone, s3fs-fuse, juicefs, headrace.",
        default="all that are installed",
    ),
]
Nodes = Annotated[
    int, define("--nodes", "N", "Number of nodes of a lab on this machine; 0 runs without a lab.")
]
Rate = Annotated[
    str,
    define(
        "--rate", "RATE", "Rate of each lab node's link in bits a second, such as 1Gbit.", default="unlimited"
    ),
]
OriginRate = Annotated[
    str,
    define(
        "--origin-rate",
        "SIZE",
        "Rate limit of the origin in bytes a second, such as 1GB.",
        default="unlimited",
    ),
]
OriginLatency = Annotated[
    float,
    define("--origin-latency-ms", "MS", "Latency added to each request to the origin, in milliseconds."),
]
CacheSize = Annotated[str, define("--cache", "SIZE", "Cache capacity of each way on each host.")]
Work = Annotated[
    str,
    define(
        "--work",
        "DIR",
        "Directory on a disk for caches and mounts.",
        default="the system's temporary directory",
    ),
]
Price = Annotated[str, define("--price", "NAME", "Row of the price table to compute costs with.")]
Prices = Annotated[
    str, define("--prices", "FILE", "TOML file with a price table.", default="the built-in table")
]
Report = Annotated[
    str, define("--report", "DIR", "Directory where compare.html and compare.png are written.")
]
