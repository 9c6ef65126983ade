"""Holds the examples of each command, and the fields that it prints with --json.

`--help` and docs/cli.md are made from these tables; tests compare what commands print with FIELDS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

EXAMPLES: dict[str, tuple[str, ...]] = {
    "up": (
        "headrace up s3://training-data/imagenet /mnt/imagenet",
        "headrace up s3://data /mnt/data --endpoint http://minio:9000 \\",
        "    --cache /nvme0/headrace:800GiB --cache /nvme1/headrace:800GiB",
        "headrace up /nfs/dataset /mnt/dataset --detach",
    ),
    "down": ("headrace down", "headrace down /mnt/imagenet", "headrace down --all"),
    "ls": ("headrace ls -l /train", "headrace ls -R /mnt/imagenet/train"),
    "stat": ("headrace stat /mnt/imagenet/train/0.tar",),
    "cat": ("headrace cat /train/labels.json | head",),
    "load": (
        "headrace load",
        "headrace load /mnt/imagenet/train",
        "headrace load s3://training-data/imagenet/train",
        "headrace load /imagenet --replicas 2 --verify --detach",
    ),
    "free": ("headrace free /mnt/imagenet/old",),
    "pin": ("headrace pin /mnt/imagenet/validation",),
    "unpin": ("headrace unpin /mnt/imagenet/validation",),
    "sync": ("headrace sync /mnt/imagenet/train",),
    "persist": ("headrace persist", "headrace persist /mnt/results --json", "headrace persist --no-wait"),
    "status": ("headrace status", "headrace status /mnt/imagenet --json"),
    "fsck": ("headrace fsck",),
    "fuse": ("headrace fuse /mnt/second", "headrace fuse /mnt/second --cache /nvme0/headrace"),
    "rest": (
        "headrace rest",
        "headrace rest --address 127.0.0.1:7480 --token /etc/headrace/rest-token",
    ),
    "s3": (
        "headrace s3",
        "headrace s3 --address 127.0.0.1:9000 --credentials /etc/headrace/s3-keys",
    ),
    "webhdfs": (
        "headrace webhdfs",
        "headrace webhdfs --address 127.0.0.1:9870",
    ),
    "job list": ("headrace job list",),
    "job show": ("headrace job show 7", "headrace job show 7 --follow"),
    "job cancel": ("headrace job cancel 7",),
    "job retry": ("headrace job retry 7",),
    "run": (
        "headrace run -- python train.py",
        "headrace run --name resnet -- torchrun --nproc-per-node 8 train.py",
    ),
    "policy set": ("headrace policy set policy.toml", "headrace policy set policy.toml --base 3"),
    "policy show": ("headrace policy show", "headrace policy show 2 > earlier.toml"),
    "policy rule": (
        "headrace policy rule '/scratch/**' ttl=2d admit=second-read",
        "headrace policy rule '/scratch/**' --remove",
    ),
    "policy history": ("headrace policy history",),
    "policy rollback": ("headrace policy rollback", "headrace policy rollback 2"),
    "policy explain": ("headrace policy explain /datasets/imagenet/train/0001.jpg",),
    "policy try": ("headrace policy try policy.toml",),
    "policy check": ("headrace policy check policy.toml",),
    "policy advise": ("headrace policy advise",),
    "plan show": ("headrace plan show", "headrace plan show resnet --json"),
    "mount add": (
        "headrace mount add /imagenet s3://training-data/imagenet",
        "headrace mount add /local /nfs/dataset",
    ),
    "mount list": ("headrace mount list",),
    "seal make": (
        "headrace seal /mnt/data/imagenet --in-place",
        "headrace seal /imagenet --as imagenet@3 --at /mnt/imagenet",
        "headrace seal /mnt/data/imagenet --in-place --lazy",
    ),
    "seal complete": ("headrace seal complete imagenet@3",),
    "seal mount": (
        "headrace seal mount imagenet@2 --at /mnt/imagenet",
        "headrace seal mount imagenet@3 --in-place",
    ),
    "seal list": ("headrace seal list", "headrace seal list --origin"),
    "seal show": ("headrace seal show imagenet@3",),
    "seal diff": ("headrace seal diff imagenet@2 imagenet@3",),
    "seal verify": ("headrace seal verify imagenet@3",),
    "seal remove": ("headrace seal remove imagenet@2",),
    "seal push": ("headrace seal push imagenet@3",),
    "seal pull": ("headrace seal pull imagenet@3", "headrace seal pull imagenet@3 /mnt/data"),
    "mount remove": ("headrace mount remove /imagenet",),
    "node run": (
        "headrace node run --cache /nvme0/headrace:800GiB",
        "headrace node run --cache /nvme0/headrace:800GiB --cluster https://etcd.example:2379/training",
    ),
    "node drain": ("headrace node drain",),
    "node break-claim": ("headrace node break-claim /out",),
    "checkpoint list": ("headrace checkpoint list /mnt/checkpoints/run7",),
    "checkpoint show": (
        "headrace checkpoint show /mnt/checkpoints/run7",
        "headrace checkpoint show run7 4000 --json",
    ),
    "checkpoint verify": ("headrace checkpoint verify run7", "headrace checkpoint verify run7 --all"),
    "checkpoint prune": (
        "headrace checkpoint prune run7 --last 3 --every 1000",
        "headrace checkpoint prune run7 --step 4000 --dry-run",
    ),
    "checkpoint export": ("headrace checkpoint export run7 model.safetensors --only 'model.*'",),
    "checkpoint pin": ("headrace checkpoint pin run7 4000",),
    "checkpoint unpin": ("headrace checkpoint unpin run7 4000",),
    "bench training": (
        "headrace bench training unet3d /mnt/scratch --scale 0.1 --epochs 2",
        "headrace bench training imagefolder s3://bench/images --endpoint http://minio:9000 --by obstore",
        "headrace bench training cosmoflow /mnt/data --accelerators 4 --by-the-rules --json",
        "srun --ntasks-per-node=1 headrace bench training unet3d /mnt/scratch --accelerators 8",
    ),
    "bench compare": (
        "headrace bench compare unet3d --scale 0.05 --report report",
        "headrace bench compare imagefolder --origin s3://bench/a --endpoint http://minio:9000 --folder /nfs/scratch",
        "headrace bench compare unet3d --scale 0.02 --nodes 4 --rate 500Mbit --origin-latency-ms 20",
    ),
    "bench checkpoint": ("headrace bench checkpoint /mnt/scratch --model llama3-70b --scale 0.05",),
    "config show": ("headrace config show",),
    "config explain": ("headrace config explain readahead_bytes",),
    "tls init": ("headrace tls init training",),
    "tls issue": (
        "headrace tls issue node-1 node-2 node-3",
        "headrace tls issue ci --role client --days 1",
        "headrace tls issue etcd-1 --role service --host etcd-1.example --host 10.0.0.7 --days 90",
    ),
    "tls renew": ("headrace tls renew", "headrace tls renew node-1 --days 1"),
    "tls show": ("headrace tls show", "headrace tls show /etc/headrace/tls"),
    "diagnose": (
        "headrace diagnose -- python train.py --epochs 2",
        "headrace diagnose --pid 4711 --seconds 60 --timeline wait.json",
    ),
    "lab up": (
        "headrace lab up --nodes 4",
        "headrace lab up s3://data --endpoint http://minio.example:9000 --nodes 8 --rate 1Gbit --zones 2",
    ),
    "lab status": ("headrace lab status",),
    "lab kill": ("headrace lab kill 2", "headrace lab kill 2 --only node"),
    "lab stop": ("headrace lab stop 2",),
    "lab cont": ("headrace lab cont 2",),
    "lab cut": ("headrace lab cut 3", "headrace lab cut 3 --one-way out"),
    "lab heal": ("headrace lab heal 3",),
    "lab start": ("headrace lab start 2",),
    "lab add": ("headrace lab add",),
    "lab down": ("headrace lab down",),
}


def _fields(names: str) -> tuple[str, ...]:
    """Return the names of fields, separated by spaces."""
    return tuple(names.split())


_JOB = _fields(
    "kind path took_s done files_done files_total bytes_done bytes_total failed_files failed listing id state data"
)
_JOB_ROW = _fields(
    "id kind path options node state attempt files_done files_total bytes_done bytes_total failed_files "
    "failed listing bytes_s eta_s took_s files_by_node data"
)
_READY = _fields(
    "ready ready_s kind pid socket cache mountpoint url s3 webhdfs rest io why node_pid fd_store_pid "
    "session_pid log"
)
_SEAL = _fields("seal id path files size_bytes created_s missing mounted")
_LAB = _fields("node address running cut pids mountpoint socket zone")
_CHECKPOINT = _fields("step saved kind ranks full data_bytes written_bytes pinned problem")

FIELDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("up", "fuse"), _READY),
    "s3": _fields("ready url socket pid"),
    "rest": _fields("ready url socket pid"),
    "webhdfs": _fields("ready url socket pid"),
    "down": _fields("kind pid mountpoint socket"),
    "ls": _fields("name kind size_bytes mtime"),
    "stat": _fields("path kind id size_bytes mtime cached version origin location tier volume placed"),
    "cat": _fields("path base64"),
    **dict.fromkeys(
        ("load", "free", "pin", "unpin", "sync", "persist", "fsck", "node drain", "job retry"), _JOB
    ),
    "status": _fields(
        "node cache index origin mounts plans predictions seals seals_in_use seals_unread seal_auto seal_trouble "
        "policy costs events expiry scrub fill peers write cluster rebalance copies sessions gateways"
    ),
    **dict.fromkeys(("job list", "job show"), _JOB_ROW),
    "job cancel": _fields("id"),
    "node break-claim": _fields("path"),
    "run": _fields("job socket"),
    "plan show": _fields(
        "stream job rank world state epoch position samples step_s needed_bytes_s fetched_bytes_s "
        "ahead_samples ahead_s hits misses model issued right wrong estimates "
        "hit_share utilization"
    ),
    **dict.fromkeys(
        ("policy set", "policy show", "policy rule", "policy rollback"), _fields("number text versions")
    ),
    "policy history": _fields("number author set_at_s"),
    "policy explain": _fields("effect value source rule line"),
    "policy try": _fields("outcomes unanswered"),
    "policy check": _fields("rules tenants origins"),
    "policy advise": _fields("outlooks advice"),
    "mount add": _fields("path url"),
    "mount list": _fields("path url sync_interval_s"),
    "seal make": _SEAL,
    "seal complete": _JOB,
    "seal mount": _fields("seal mountpoint"),
    "seal list": _SEAL,
    "seal show": (*_SEAL, "image"),
    "seal diff": _fields("old new added removed changed differences"),
    "seal verify": _JOB,
    "seal remove": _fields("seal in_use"),
    "seal push": _fields("seal id path"),
    "seal pull": _SEAL,
    "mount remove": _fields("path"),
    "node run": _fields("ready socket pid"),
    "checkpoint list": _CHECKPOINT,
    "checkpoint show": (*_CHECKPOINT, "save", "metadata", "data", "packs", "leaves"),
    "checkpoint verify": _fields("step bytes took_s problem"),
    "checkpoint prune": _fields("steps packs bytes corrupt"),
    "checkpoint export": _fields("step file tensors bytes left_out"),
    "checkpoint pin": _fields("step"),
    "checkpoint unpin": _fields("step"),
    "bench training": _fields(
        "called workload format where accelerator accelerators hosts readers batch compute_s sizes times "
        "shuffle files samples dataset_bytes memory_bytes steps epochs au au_needed passed failed page_cache "
        "rules notes"
    ),
    "bench compare": _fields(
        "called workload origin nodes rate_bits_s origin_bytes_s origin_latency_s dataset_bytes price ways "
        "notes"
    ),
    "bench checkpoint": _fields(
        "called model mode folder scale ranks ranks_of_model files checkpoint_bytes full_bytes writes reads "
        "page_cache notes"
    ),
    "config show": _fields("setting value from"),
    "config explain": _fields("name variable default meaning"),
    **dict.fromkeys(
        ("tls init", "tls issue", "tls renew", "tls show"), _fields("file who names ends left_s")
    ),
    "diagnose": _fields(
        "summary healthy wall_s before_s steps_share causes cores gpus steps samples places moments missing"
    ),
    "lab down": _fields("down"),
    **{
        f"lab {verb}": _LAB
        for verb in ("up", "status", "kill", "stop", "cont", "cut", "heal", "start", "add")
    },
}
"""Fields that each command prints with --json. The head of docs/cli.md names the commands that print a list."""


def add_examples(app: typer.Typer) -> None:
    """Add its examples below the help of every registered command."""
    for command in app.registered_commands:
        _add(command, str(command.name))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            for command in group.typer_instance.registered_commands:
                _add(command, f"{group.name} {command.name}")


def _add(command: typer.models.CommandInfo, name: str) -> None:
    if name in EXAMPLES:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[name])
