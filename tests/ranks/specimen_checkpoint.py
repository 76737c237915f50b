"""What ranks do with checkpoints: four begin a run, two go on and meet full and damaged disks, four go on again."""

import random
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from scaleout.lab.session import Session
from scaleout.parallel.transformer import Transformer
from scaleout.records import checkpoints
from scaleout.spec.transformer import Shape
from scaleout.train import faults
from scaleout.train.checkpoint import Checkpoints

SHAPE = Shape(layers=2, hidden=32, heads=4, vocab=64, max_seq=16, ff=50)  # 50 rows do not divide by four ranks


def model(kind="plain", seed=0, shape=SHAPE):
    """(model, optimizer) of the kind "plain", "ddp", "fsdp" or "hsdp"."""
    torch.manual_seed(seed)
    made = Transformer(shape)
    if kind == "ddp":
        made = DistributedDataParallel(made)
    if kind in ("fsdp", "hsdp"):
        world = dist.get_world_size()
        sizes, names = ((2, world // 2), ("replicate", "shard")) if kind == "hsdp" else ((world,), ("shard",))
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        for part in (*made.blocks, made):
            fully_shard(part, mesh=mesh)
    return made, torch.optim.AdamW(made.parameters(), lr=1e-2)


def train(made, optimizer, first, last):
    """Losses (list) of the steps first to last; every rank sees the same batch, so that any world trains alike."""
    losses = []
    for step in range(first, last + 1):
        chance = torch.Generator().manual_seed(step)
        text = torch.randint(64, (4, 17), generator=chance)
        loss = made(text[:, :-1], text[:, 1:])
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / step
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def whole(made):
    """{name: list of numbers} of all parameters, gathered."""
    return {
        name.removeprefix("module."): (p.full_tensor() if isinstance(p, DTensor) else p).flatten().tolist()
        for name, p in made.named_parameters()
    }


def session(rank, world):
    return Session(torch.device("cpu"), "gloo" if world > 1 else "none", rank, world, rank, 1, world)


# --- the phases --------------------------------------------------------------------------------------------


def begin(s, folder):
    """Four ranks: train, save while training goes on, and the losses that all others must meet."""
    made, optimizer = model("fsdp")
    losses = train(made, optimizer, 1, 3)
    kept = Checkpoints(s, folder / "run")
    kept.save(3, made, optimizer, {"step": 3, "place": [1, 2.5, "x"]}, losses[-1])
    weights = whole(made)
    losses += train(made, optimizer, 4, 9)  # while the files of step 3 are written
    kept.finish()
    hybrid, its = model("hsdp")
    train(hybrid, its, 1, 3)
    Checkpoints(s, folder / "hybrid", asynchronous=False).save(3, hybrid, its, {})
    return {"losses": losses, "weights": weights, "blocked": len(kept.blocked), "written": len(kept.written)}


def go_on(s, folder, first, last, kind="fsdp", run="run", save=True):
    """Load into other weights, train on, save."""
    made, optimizer = model(kind, seed=9)
    kept = Checkpoints(s, folder / run)
    extra = kept.load(made, optimizer)
    weights, rate = whole(made), optimizer.param_groups[0]["lr"]
    losses = train(made, optimizer, first, last)
    if save:
        kept.save(last, made, optimizer, extra | {"step": last}, losses[-1])
        kept.finish()
    return {
        "extra": extra,
        "losses": losses,
        "weights": weights,
        "rate": rate,
        "betas": isinstance(optimizer.param_groups[0]["betas"], tuple),
    }


def chance(s, folder):
    """Random numbers after a save and after its load, of all ranks."""
    made, optimizer = model()
    kept = Checkpoints(s, folder / "chance")
    random.seed(s.rank)
    torch.manual_seed(s.rank)
    kept.save(1, made, optimizer, {})
    first = [random.random(), torch.rand(1).item()]
    kept.load(made, optimizer)
    mine = [first, [random.random(), torch.rand(1).item()]]
    every = [None] * s.world
    dist.all_gather_object(every, mine)
    return every


def damaged(s, folder):
    """The newest of three is damaged in a file of rank 1."""
    made, optimizer = model("fsdp")
    kept = Checkpoints(s, folder / "damaged", keep=3)
    for step in (1, 2, 3):
        train(made, optimizer, step, step)
        kept.save(step, made, optimizer, {"step": step})
    kept.finish()
    if s.main:
        path = folder / "damaged" / "step-00000003" / "__1_0.distcp"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 16
        path.write_bytes(data)
    dist.barrier()
    again = Checkpoints(s, folder / "damaged", keep=3)
    extra = again.load(made, optimizer)
    train(made, optimizer, 3, 4)
    again.save(4, made, optimizer, {"step": 4})
    again.finish()
    left = [checkpoints.step_of(path) for path in checkpoints.listing(folder / "damaged")]
    return {"extra": extra, "said": again.said, "left": left}


def full(s, folder, where, fault):
    """A disk that is full at the second checkpoint, on one rank or really."""
    made, optimizer = model("fsdp")
    kept = Checkpoints(s, where, keep=1, faults=faults.parse(fault, s.rank, s.world))
    lines = []
    for step in range(1, 9):
        try:
            kept.save(step, made, optimizer, {"step": step})
            kept.finish()
        except ValueError as error:
            lines.append(str(error))
            break
    every = [None] * s.world
    dist.all_gather_object(every, lines)
    newest = checkpoints.listing(where)[0]
    extra = Checkpoints(s, where).load(made, optimizer)
    problem = checkpoints.problem(newest, checkpoints.manifest(newest)["files"])
    return {
        "lines": every,
        "newest": checkpoints.step_of(newest),
        "problem": problem,
        "extra": extra,
        "last": kept.last,
        "left": sorted(path.name for path in where.iterdir()),
    }


def two(s, folder, tmpfs):
    """All that two ranks do."""
    found = {
        "chance": chance(s, folder),
        "damaged": damaged(s, folder),
        "full on rank 1": full(s, folder, folder / "full", "full:1:2"),
        "full while publishing": full(s, folder, folder / "full0", "full:0:2"),
        "ddp": go_on(s, folder, 4, 6, "ddp", save=False),
        "fsdp": go_on(s, folder, 4, 6),
        "hybrid": go_on(s, folder, 4, 6, "fsdp", "hybrid", save=False),
    }
    if tmpfs:
        found["full tmpfs"] = full(s, folder, Path(tmpfs) / "run", None)
    return found
