"""Options of `headrace bench`."""

from __future__ import annotations

from typing import Annotated

import typer

WorkloadName = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="unet3d, resnet50, cosmoflow, imagefolder or tokens.")
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="WHERE", help="A folder, a mount, headrace:///PATH, s3://… or another fsspec URL."
    ),
]
Accelerator = Annotated[
    str, typer.Option("--accelerator", metavar="KIND", help="Whose compute time: a100 or h100.")
]
Accelerators = Annotated[int, typer.Option("--accelerators", metavar="N", help="Simulated on each host.")]
Steps = Annotated[
    int, typer.Option("--steps", metavar="N", help="Of an epoch; MLPerf Storage has 500 or more.")
]
ByTheRules = Annotated[
    bool, typer.Option("--by-the-rules", help="Instead: a data set as large as MLPerf Storage asks for.")
]
Epochs = Annotated[int, typer.Option("--epochs", metavar="N")]
Scale = Annotated[float, typer.Option("--scale", metavar="F", help="A factor on sizes and times.")]
ScaleSizes = Annotated[float | None, typer.Option("--scale-sizes", metavar="F", help="On sizes only.")]
ScaleTimes = Annotated[float | None, typer.Option("--scale-times", metavar="F", help="On times only.")]
Shuffle = Annotated[bool, typer.Option("--shuffle", help="Another order in each epoch.")]
Readers = Annotated[
    int | None,
    typer.Option("--readers", metavar="N", help="Loader workers an accelerator, if not the workload's."),
]
Loader = Annotated[
    str,
    typer.Option(
        "--loader", metavar="LIBRARY", help="torch, or tensorflow for tfrecords, as MLPerf Storage has it."
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Of the data and of orders.")]
KeepCache = Annotated[bool, typer.Option("--keep-cache", help="Leave the page cache as it is.")]
NoGenerate = Annotated[bool, typer.Option("--no-generate", help="The data set must be there.")]
By = Annotated[str, typer.Option("--by", metavar="LIBRARY", help="Of a URL: fsspec or obstore.")]
HostCount = Annotated[int, typer.Option("--hosts", metavar="N", help="How many take part.")]
HostNumber = Annotated[int, typer.Option("--host", metavar="I", help="Which of them this is, from 0.")]
Meet = Annotated[
    str, typer.Option("--meet", metavar="HOST:PORT", help="Of the first host, which listens there.")
]
Ssh = Annotated[str, typer.Option("--ssh", metavar="HOST,HOST", help="Run this on these hosts, by ssh.")]
Remote = Annotated[str, typer.Option("--remote", metavar="COMMAND", help="How headrace is called there.")]
ModelName = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="llama3-8b, llama3-70b, llama3-405b or llama3-1t.")
]
Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="Where; a folder of its own is made in it.")]
ScaleOfSizes = Annotated[float, typer.Option("--scale", metavar="F", help="A factor on all sizes.")]
Mode = Annotated[str, typer.Option("--mode", metavar="MODE", help="subset: the first 8 ranks; default: all.")]
Writes = Annotated[int, typer.Option("--writes", metavar="N", help="MLPerf Storage has 10.")]
Reads = Annotated[int, typer.Option("--reads", metavar="N")]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the files.")]
Origin = Annotated[
    str, typer.Option("--origin", metavar="s3://…", help="Where the data set goes; else a store of its own.")
]
Folders = Annotated[
    list[str] | None,
    typer.Option(
        "--folder", metavar="DIR", help="One more way: a mounted folder, such as a NAS; may be repeated."
    ),
]
Only = Annotated[
    str,
    typer.Option(
        "--only",
        metavar="WAY,WAY",
        help="Of local, s3fs-library, obstore, rclone, s3fs-fuse, juicefs, headrace.",
    ),
]
Nodes = Annotated[int, typer.Option("--nodes", metavar="N", help="Hosts of a lab on this machine.")]
Rate = Annotated[str, typer.Option("--rate", metavar="RATE", help="Of each node's link, such as 1Gbit.")]
OriginRate = Annotated[
    str, typer.Option("--origin-rate", metavar="SIZE", help="Bytes a second of the origin, such as 1GB.")
]
OriginLatency = Annotated[
    float, typer.Option("--origin-latency-ms", metavar="MS", help="Of each request to the origin.")
]
CacheSize = Annotated[str, typer.Option("--cache", metavar="SIZE", help="Of each way, on each host.")]
Work = Annotated[
    str, typer.Option("--work", metavar="DIR", help="For caches and mounts: a folder of a disk.")
]
Price = Annotated[str, typer.Option("--price", metavar="NAME", help="Of the table of prices.")]
Prices = Annotated[str, typer.Option("--prices", metavar="FILE", help="Another table.")]
Report = Annotated[
    str, typer.Option("--report", metavar="DIR", help="Write compare.html and compare.png there.")
]
