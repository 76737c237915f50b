"""Checkpoints of a training job: model, optimizer, place in the data and random state, at any number of ranks.

Each rank writes its own shards; a job of another size reads the pieces that it needs. While the files are written the
training goes on: it waits only until its tensors are copied to the host's memory.
"""

import base64
import errno
import json
import os
import random
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import state_dict as states

from scaleout import checkpoints, torch_dcp


class Checkpoints:
    """The checkpoints of one job in a folder that all its nodes share. Making one is collective.

    s: a lab.Session. keep: how many of the last are kept; the one with the lowest loss is kept as well. asynchronous:
    write while training goes on. faults: an object with `writing(step)` and `saving(step)`, which are called before a
    file is written and before the checkpoint is published (torch_watch.Faults).

    said: lines for the screen and the Record, the same on all ranks. blocked: seconds that training waited, one a
    checkpoint. written: seconds from the call to the published checkpoint.
    """

    def __init__(self, s, folder, keep=2, asynchronous=True, faults=None):
        checkpoints.keepers([], keep)                   # says what is wrong with keep
        self.s, self.folder, self.keep, self.asynchronous, self.faults = s, Path(folder), keep, asynchronous, faults
        self.said, self.blocked, self.written, self.damaged = [], [], [], set()
        self.attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.thread, self.group, self.pending, self.last = ThreadPoolExecutor(1), None, None, None
        # one process needs no group, which torch thinks worth a warning each time
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninit")
        self.said += self._together(self._start)

    def _start(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        left = checkpoints.sweep(self.folder)
        return [f"removed {len(left)} unfinished checkpoint(s)"] if left else []

    # --- saving ---------------------------------------------------------------------------------------------

    def save(self, step, model, optimizer, extra, loss=None):
        """Begin a checkpoint after `step` steps. Returns the seconds (float) that training was blocked.

        extra: dict of what JSON can hold, the same on all ranks. loss: a number by which the best is known. Waits for
        the checkpoint before, which is where its ValueError appears.
        """
        start = self.s.clock()
        self.finish()
        begun = time.perf_counter()
        tensors, settings = state(model, optimizer)
        body = json.dumps({"step": step, "loss": loss, "world": self.s.world, "settings": settings, "extra": extra},
                          allow_nan=False)
        mine, place = json.dumps(random_state(self.s.device)), checkpoints.temporary(self.folder, step, self.attempt)
        writer = torch_dcp.Writer(place, self.faults and (lambda: self.faults.writing(step)))
        upload = self._upload(tensors, writer)
        self.pending = self.thread.submit(self._complete, upload, writer, json.loads(body), mine, begun)
        if not self.asynchronous:
            self.finish()
        self.blocked.append(self.s.clock() - start)
        return self.blocked[-1]

    def _upload(self, tensors, writer):
        """A Future of torch's save: done, or at work in a thread of its own."""
        where = {"storage_writer": writer, "process_group": self._ranks(), "no_dist": self._ranks() is None}
        if self.asynchronous:
            return dcp.async_save(tensors, **where)
        upload = Future()
        try:
            upload.set_result(dcp.save(tensors, **where))
        except BaseException as error:                  # DCP's own is no Exception
            upload.set_exception(error)
        return upload

    def _complete(self, upload, writer, body, mine, begun):
        """Once torch has written: each rank reports what it wrote, rank 0 publishes. The outcome is the same on all."""
        place, rank = Path(writer.path), self.s.rank
        try:
            upload.result()
            if self.faults:
                self.faults.saving(body["step"])
            checkpoints.write_text(place / _random_file(rank), mine)
            names = [path.name for path in place.glob(f"__{rank}_*")] + [_random_file(rank)]
            names += [".metadata", torch_dcp.INDEX] if rank == 0 else []
            found, wrong = {name: checkpoints.checksum(place / name) for name in names}, None
        except BaseException as error:
            found, wrong = {}, _reason(writer.refused or error, rank)
        reports = self._gather((found, wrong))
        line = self._together(lambda: self._publish(place, body, reports))
        if line:
            raise ValueError(line)
        self.last = body["step"]
        self.written.append(time.perf_counter() - begun)

    def _publish(self, place, body, reports):
        """Rank 0's part: None, or the line that says why there is no checkpoint."""
        wrong = next((wrong for _, wrong in reports if wrong), None)
        try:
            if wrong is None:
                files = {name: facts for found, _ in reports for name, facts in found.items()}
                checkpoints.publish(place, self.folder, body | {"files": files})
                self.damaged.discard(body["step"])
                checkpoints.prune(self.folder, self.keep, self.damaged)
                return None
        except (OSError, ValueError) as error:
            wrong = _reason(error, 0)
        checkpoints.remove(place) if place.exists() else None
        good = f"the last good one is step {self.last}" if self.last is not None else "there is no earlier one"
        return f"checkpoint step {body['step']} could not be written: {wrong}; {good}"

    def finish(self):
        """Wait until the checkpoint on its way is published. ValueError, one line on all ranks, where it cannot be."""
        pending, self.pending = self.pending, None
        if pending:
            pending.result()

    # --- loading --------------------------------------------------------------------------------------------

    def load(self, model, optimizer=None, which="auto"):
        """Load the newest good checkpoint in place. Returns its extra facts (dict), or None where there is none.

        which: "auto", or a step (int). Any number of ranks may have written it. Random state comes back where the
        number of ranks is the same. Where newer ones are damaged, `said` names them. ValueError where none is good,
        the step is not there, or it is of another model.
        """
        self.finish()
        steps = self._together(lambda: [checkpoints.step_of(path) for path in checkpoints.every(self.folder)])
        if which != "auto" and int(which) not in steps:
            raise ValueError(f"{self.folder} has no checkpoint of step {which}: use auto, or one of {sorted(steps)}")
        bad = []
        for step in steps if which == "auto" else [int(which)]:
            body, wrong = self._inspect(step)
            if wrong is None:
                self.damaged |= {worse for worse, _ in bad}
                self.said += checkpoints.damage(bad, step)
                return self._fill(body, model, optimizer)
            bad.append((step, wrong))
        if bad:
            listed = "; ".join(f"step {step}: {wrong}" for step, wrong in bad)
            raise ValueError(f"no checkpoint in {self.folder} is good ({listed}): remove them to start anew")
        return None

    def _inspect(self, step):
        """(manifest's body, what is wrong or None); the ranks share the work of reading all files."""
        path = self.folder / checkpoints.name(step)
        body, wrong = self._together(lambda: _manifest(path))
        if wrong is None:
            share = sorted(body["files"].items())[self.s.rank::self.s.world]
            wrongs = self._gather(checkpoints.problem(path, dict(share)), everywhere=True)
            wrong = next((text for text in wrongs if text), None)
        return body, wrong

    def _fill(self, body, model, optimizer):
        path = self.folder / checkpoints.name(body["step"])
        tensors, _ = state(model, optimizer)
        try:
            dcp.load(tensors, storage_reader=torch_dcp.Reader(path, body["files"]), planner=torch_dcp.Planner(),
                     process_group=self._ranks(), no_dist=self._ranks() is None)
        except BaseException as error:
            if not isinstance(error, (Exception, dcp.api.CheckpointException)):
                raise
            wrong = _reason(error, self.s.rank)
            raise ValueError(f"checkpoint step {body['step']} cannot be loaded: {wrong}") from None
        put(model, optimizer, tensors, body["settings"])
        if body["world"] == self.s.world:
            set_random_state(json.loads((path / _random_file(self.s.rank)).read_text()), self.s.device)
        self.last = body["step"]
        return body["extra"]

    # --- among ranks ----------------------------------------------------------------------------------------

    def _ranks(self):
        """A group of all ranks for the host's memory: NCCL moves no files' names, and a thread needs its own group."""
        if self.group is None and dist.is_initialized():
            self.group = dist.new_group(backend="gloo")
        return self.group

    def _gather(self, value, everywhere=False):
        """The values (list) of all ranks, on rank 0 or everywhere; else a list of nothing."""
        if self._ranks() is None:
            return [value]
        values = [None] * self.s.world
        if everywhere:
            dist.all_gather_object(values, value, group=self._ranks())
        else:
            dist.gather_object(value, values if self.s.main else None, group=self._ranks())
        return values

    def _together(self, work):
        """What `work()` returns on rank 0, on all ranks; its ValueError or OSError as a ValueError on all."""
        box = [None, None]
        if self.s.main:
            try:
                box[0] = work()
            except (ValueError, OSError) as error:
                box[1] = _reason(error, 0)
        if self._ranks() is not None:
            dist.broadcast_object_list(box, 0, group=self._ranks())
        if box[1]:
            raise ValueError(f"{self.folder}: {box[1]}")
        return box[0]


# --- what is saved ------------------------------------------------------------------------------------------

def state(model, optimizer=None):
    """({name: tensor}, settings as JSON) of a plain, DDP or FSDP2 model and its optimizer, by parameters' names."""
    tensors = {f"model.{name}": value for name, value in states.get_model_state_dict(model).items()}
    if optimizer is None:
        return tensors, None
    found = states.get_optimizer_state_dict(model, optimizer)
    for name, kept in found["state"].items():
        tensors |= {f"optimizer.{name}.{key}": value for key, value in kept.items() if torch.is_tensor(value)}
    plain = {name: {key: value for key, value in kept.items() if not torch.is_tensor(value)}
             for name, kept in found["state"].items()}
    groups = [{key: value.item() if torch.is_tensor(value) else value for key, value in group.items()}
              for group in found["param_groups"]]
    return tensors, {"plain": plain, "groups": groups}


def put(model, optimizer, tensors, settings):
    """Give a model and its optimizer what `state` returned, tensors of this job's sharding."""
    states.set_model_state_dict(model, {name.removeprefix("model."): value for name, value in tensors.items()
                                        if name.startswith("model.")})
    if optimizer is None:
        return
    kept = {name: dict(plain) for name, plain in settings["plain"].items()}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            name, _, what = key.removeprefix("optimizer.").rpartition(".")
            kept.setdefault(name, {})[what] = value
    now = states.get_optimizer_state_dict(model, optimizer)["param_groups"]
    groups = [{key: _as(group.get(key), value) for key, value in saved.items()}
              for saved, group in zip(settings["groups"], now, strict=True)]
    states.set_optimizer_state_dict(model, optimizer, {"state": kept, "param_groups": groups})


def _as(now, value):
    """A setting as the optimizer holds it: JSON has neither tuples nor tensors."""
    if torch.is_tensor(now):
        return torch.full_like(now, value)
    return tuple(value) if isinstance(now, tuple) else value


def random_state(device):
    """The state of this process's random numbers (dict, JSON): Python's, torch's, and the GPU's where there is one."""
    kind, words, gauss = random.getstate()
    found = {"python": [kind, list(words), gauss], "torch": _text(torch.get_rng_state())}
    return found | ({"cuda": _text(torch.cuda.get_rng_state(device))} if device.type == "cuda" else {})


def set_random_state(found, device):
    """Undo: what `random_state` returned."""
    kind, words, gauss = found["python"]
    random.setstate((kind, tuple(words), gauss))
    torch.set_rng_state(_tensor(found["torch"]))
    if device.type == "cuda" and "cuda" in found:
        torch.cuda.set_rng_state(_tensor(found["cuda"]), device)


def _text(tensor):
    return base64.b64encode(bytes(tensor.tolist())).decode()


def _tensor(text):
    return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)


def _random_file(rank):
    return f"random-{rank:05d}.json"


def _manifest(path):
    try:
        return checkpoints.manifest(path), None
    except ValueError as error:
        return None, str(error)


def _reason(error, rank):
    """One line of what went wrong on which rank, out of what torch wraps around it."""
    if isinstance(error, dcp.api.CheckpointException):
        rank, (error, _) = sorted(error.failures.items())[0]
    if isinstance(error, OSError):
        hint = ": free some space, or use a smaller --keep" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return f"rank {rank}: {(error.strerror or str(error)).lower()}{hint}"
    return " ".join(str(error).split())[:300] or type(error).__name__
