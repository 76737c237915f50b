"""Checkpoints of a training job: model, optimizer, place in the data and random state, at any number of ranks.

Each rank writes its own shards; a job of another size reads the pieces that it needs. While the files are written the
training goes on: it waits only until its tensors are copied to the host's memory.
"""

import json
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import BlockingAsyncStager

from scaleout.lab import join
from scaleout.records import checkpoints, chunks
from scaleout.records.files import is_count
from scaleout.train import attempts, watch
from scaleout.train import dcp as train_dcp
from scaleout.train.state import put, random_state, set_random_state, state

NO_ROOM = ": free some space, or use a smaller --keep"


class Checkpoints:
    """The checkpoints of one job in a folder that all its nodes share. Making one is collective.

    s: a lab.session.Session. keep: how many of the last are kept; the one with the lowest loss is kept as well.
    asynchronous: write while training goes on. faults: an object with `writing(step)` and `saving(step)`, which are
    called before a file is written and before the checkpoint is published (train.faults.Faults).

    said: lines for the screen and the Record, the same on all ranks. blocked: seconds that training waited, one a
    checkpoint. written: seconds from the call to the published checkpoint.
    """

    def __init__(self, s, folder, keep=2, asynchronous=True, faults=None):
        checkpoints.keepers([], keep)  # says what is wrong with keep
        self.s, self.folder, self.keep, self.asynchronous, self.faults = s, Path(folder), keep, asynchronous, faults
        self.said, self.blocked, self.written, self.damaged = [], [], [], set()
        self.thread, self.group, self.pending, self.last = ThreadPoolExecutor(1), None, None, None
        # pinned memory, kept from one checkpoint to the next: a GPU copies to it several times as fast
        self.stager = BlockingAsyncStager(cache_staged_state_dict=True) if s.device.type == "cuda" else None
        # one process needs no group, which torch thinks worth a warning each time
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninit")
        self.said += self._together(self._start)

    def _start(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = checkpoints.sweep(self.folder)
        return [f"removed {len(unfinished)} unfinished checkpoint(s)"] if unfinished else []

    # --- saving ---------------------------------------------------------------------------------------------

    def save(self, step, model, optimizer, extra, loss=None):
        """Begin a checkpoint after `step` steps. Returns the seconds (float) that training was blocked.

        extra: dict of what JSON can hold, the same on all ranks. loss: a number by which the best is known. Waits for
        the checkpoint before, which is where its ValueError appears. Nothing is done where this step is saved already.
        """
        start = self.s.clock()
        self.finish()
        if self.last == step:
            return self.s.clock() - start
        begun = time.perf_counter()
        tensors, settings = state(model, optimizer)
        body = json.dumps(
            {"step": step, "loss": loss, "world": self.s.world, "settings": settings, "extra": extra}, allow_nan=False
        )
        mine = json.dumps(random_state(self.s.device))
        writer = train_dcp.Writer(
            checkpoints.temporary(self.folder, step, join.meeting()),
            self.faults and (lambda: self.faults.writing(step)),
        )
        upload = self._upload(tensors, writer)
        self.pending = self.thread.submit(self._complete, upload, writer, json.loads(body), mine, begun)
        if not self.asynchronous:
            self.finish()
        self.blocked.append(self.s.clock() - start)
        return self.blocked[-1]

    def _upload(self, tensors, writer):
        """A Future of torch's save: done, or at work in a thread of its own."""
        destination = {"storage_writer": writer, "process_group": self._ranks(), "no_dist": self._ranks() is None}
        if self.asynchronous:
            return dcp.async_save(tensors, async_stager=self.stager, **destination)
        upload = Future()
        try:
            upload.set_result(dcp.save(tensors, **destination))
        except BaseException as error:  # DCP's own is no Exception
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
            names += [".metadata", train_dcp.INDEX] if rank == 0 else []
            sums, wrong = {name: checkpoints.checksum(place / name) for name in names}, None
        except BaseException as error:
            sums, wrong = {}, _reason(writer.refused or error, rank)
        reports = self._gather((sums, wrong))
        line = self._together(lambda: self._publish(place, body, reports))
        if line:
            raise _refusal(f"{self.folder}: {line}")
        return body["step"], time.perf_counter() - begun

    def _publish(self, place, body, reports):
        """Rank 0's part: None, or the line that says why there is no checkpoint."""
        wrong = next((wrong for _, wrong in reports if wrong), None)
        try:
            if wrong is None:
                files = {name: facts for sums, _ in reports for name, facts in sums.items()}
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
            self.last, seconds = pending.result()  # here, not in the thread: ranks must know it at the same step
            self.written.append(seconds)

    @property
    def newest(self):
        """Step of the newest whole checkpoint as this rank sees it now, or None; `last` is what all ranks agree on."""
        complete = self.pending and self.pending.done() and not self.pending.exception()
        return self.pending.result()[0] if complete else self.last

    # --- loading --------------------------------------------------------------------------------------------

    def load(self, model, optimizer=None, which="auto", wrong_with=lambda extra: None, refuse=lambda extra: None):
        """Load the newest good checkpoint in place. Returns its extra facts (dict), or None where there is none.

        which: "auto", or a step (int). wrong_with(extra): None, or what keeps a checkpoint with such extra facts from
        being one. refuse(extra): raises ValueError where a good one is another run's, before anything is loaded. Any
        number of ranks may have written it. Random state comes back where the number of ranks is the same. Where newer
        ones are damaged, `said` names them. ValueError where none is good, the step is not there, or it is of another
        model.
        """
        self.finish()
        steps = self._together(lambda: [checkpoints.step_of(path) for path in checkpoints.listing(self.folder)])
        if which != "auto" and int(which) not in steps:
            there = f", or one of {sorted(steps)}" if steps else ": it has none yet"
            raise ValueError(f"{self.folder} has no checkpoint of step {which}: use auto{there}")
        bad = []
        for step in steps if which == "auto" else [int(which)]:
            body, table, wrong = self._inspect(step, wrong_with)
            if wrong is None:
                self.damaged |= {worse for worse, _ in bad}
                self.said += checkpoints.damage(bad, step)
                refuse(body["extra"])
                return self._fill(body, table, model, optimizer)
            bad.append((step, wrong))
        if bad:
            listed = "; ".join(f"step {step}: {wrong}" for step, wrong in bad)
            raise ValueError(f"no checkpoint in {self.folder} is good ({listed}): remove them to start anew")
        return None

    def _inspect(self, step, wrong_with):
        """(manifest's body, index of tensors, what is wrong or None); the ranks share the work of reading all files."""
        path, table = self.folder / checkpoints.name(step), None
        body, wrong = self._together(lambda: _manifest(path, wrong_with))
        if wrong is None:
            share = sorted(body["files"].items())[self.s.rank :: self.s.world]
            wrongs = self._gather(checkpoints.problem(path, dict(share)), everywhere=True)
            wrong = next((text for text in wrongs if text), None)
        if wrong is None:
            table, wrong = self._together(lambda: train_dcp.index(path, body["files"]))
        return body, table, wrong

    def _fill(self, body, table, model, optimizer):
        path, file = self.folder / checkpoints.name(body["step"]), train_dcp.INDEX
        tensors, _ = state(model, optimizer)
        try:
            wrong = self._gather(
                chunks.other(table, {name: [*tensor.shape] for name, tensor in tensors.items()}), everywhere=True
            )
            if any(wrong):
                raise ValueError(next(filter(None, wrong)))
            dcp.load(
                tensors,
                storage_reader=train_dcp.Reader(path, table),
                planner=train_dcp.Planner(),
                process_group=self._ranks(),
                no_dist=self._ranks() is None,
            )
            file = checkpoints.MANIFEST
            put(model, optimizer, tensors, body["settings"])
            if body["world"] == self.s.world:
                file = _random_file(self.s.rank)
                set_random_state(json.loads((path / file).read_text()), self.s.device)
        except BaseException as error:
            if not isinstance(error, (Exception, dcp.api.CheckpointException)):
                raise
            wrong = _reason(error, self.s.rank)
            raise ValueError(f"checkpoint step {body['step']} cannot be loaded: {file}: {wrong}") from None
        self.last = body["step"]
        return body["extra"]

    # --- among ranks ----------------------------------------------------------------------------------------

    def _ranks(self):
        """A group of all ranks for the host's memory: NCCL moves no files' names, and a thread needs its own group."""
        if self.group is None and dist.is_initialized():
            self.group = dist.new_group(backend="gloo", group_desc=watch.CHECKPOINTS)
        return self.group

    def _gather(self, value, everywhere=False):
        """The values (list) of all ranks, on rank 0 or everywhere; else a list of nothing."""
        if self._ranks() is None or everywhere:
            return self.s.gathered(value, self._ranks())
        values = [None] * self.s.world
        dist.gather_object(value, values if self.s.main else None, group=self._ranks())
        return values

    def _together(self, work):
        return together(self.s, work, self._ranks(), f"{self.folder}: ")


def together(s, work, group=None, prefix=""):
    """What `work()` returns on rank 0, on all ranks; its ValueError or OSError as a ValueError on all.

    group: of all ranks, or None for the default one. prefix: what the line begins with.
    """
    box = [None, None]
    if s.main:
        try:
            box[0] = work()
        except (ValueError, OSError) as error:
            box[1] = _reason(error, 0)
    if s.world > 1:
        dist.broadcast_object_list(box, 0, group=group)
    if box[1]:
        raise _refusal(prefix + box[1])
    return box[0]


def _random_file(rank):
    return f"random-{rank:05d}.json"


def _manifest(path, wrong_with):
    """(body, None), or (None, what is wrong with a checkpoint's manifest, as far as it is alone)."""
    try:
        body = checkpoints.manifest(path)
        for field in ("world", "settings", "extra"):
            if field not in body:
                raise ValueError(f"{checkpoints.MANIFEST} has no {field}")
        if not is_count(body["world"]) or not isinstance(body["settings"], dict):
            raise ValueError(f"{checkpoints.MANIFEST} has no sound world and settings")
        for file in (train_dcp.INDEX, *map(_random_file, range(min(body["world"], len(body["files"]))))):
            if file not in body["files"]:
                raise ValueError(f"{checkpoints.MANIFEST} lists no {file}")
        inner = body["extra"].get("step", body["step"]) if isinstance(body["extra"], dict) else body["step"]
        if inner != body["step"]:
            raise ValueError(
                f"{checkpoints.MANIFEST} is of step {body['step']}, and what the job left in it of step "
                f"{str(inner)[:20]}"
            )
        wrong = wrong_with(body["extra"])
        return body, wrong and f"{checkpoints.MANIFEST} {wrong}"
    except ValueError as error:
        return None, str(error)


def _refusal(line):
    """The error for a line: a disk without room is no accident of the machine."""
    return (attempts.Final if NO_ROOM in line else ValueError)(line)


def _reason(error, rank):
    """One line of what went wrong on which rank, out of what torch wraps around it."""
    if isinstance(error, dcp.api.CheckpointException):
        rank, (error, _) = sorted(error.failures.items())[0]
    if isinstance(error, OSError):
        hint = NO_ROOM if error.errno in attempts.FULL else ""
        return f"rank {rank}: {(error.strerror or str(error)).lower()}{hint}"
    return " ".join(str(error).split())[:300] or type(error).__name__
