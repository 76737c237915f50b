"""Check the lab exercise `bytes-held` on two processes.

    python -m scaleout.exercises.torch_memory bytes_held.py

Starts two processes, unless torchrun has. Takes one file or several and prints one line for each. Exit code 0
when all are right, 1 when one is not, 2 when it could not be checked.
"""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
from datetime import timedelta
from numbers import Real
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from scaleout.exercises.engine import Verdict
from scaleout.lab import session

WORLD = 2
SECONDS = 60  # for both processes, from start to end; a check takes about 5
KINDS = ("weights", "gradients", "optimizer")
PART = {"weights": "the weights", "gradients": "the gradients", "optimizer": "the optimizer's states"}


def job(rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small model after one AdamW step: tied head, one layer in bf16, and on each rank one frozen."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"tokens": nn.Embedding(64, 16), "up": nn.Linear(16, 48), "down": nn.Linear(48, 16),
                           "head": nn.Linear(16, 64, bias=False)})  # fmt: skip
    model["down"].to(torch.bfloat16)
    model["head"].weight = model["tokens"].weight
    model["up" if rank else "head"].requires_grad_(False)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in trained:
        weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW(trained, lr=1e-3, foreach=False)
    optimizer.step()
    return model, optimizer


def truth(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, set[int]]:
    """Bytes by kind that count as right: the optimizer's with or without its step counters, 4 bytes each."""
    weights = list(model.parameters())
    states = [tensor for state in optimizer.state.values() for tensor in state.values()]
    return {
        "weights": {_bytes(weights)},
        "gradients": {_bytes([weight.grad for weight in weights if weight.grad is not None])},
        "optimizer": {_bytes(states), _bytes([tensor for tensor in states if tensor.dim()])},
    }


def own(function, rank: int) -> tuple[Verdict | None, int, object]:
    """Run a reader's function on this rank: what is wrong with its own part, if anything; total; largest."""
    model, optimizer = job(rank)
    given = function(model, optimizer)
    if given is ... or given is None:
        return _wrong("the function returns nothing yet: return (mine, largest)", "stub")
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], dict)):
        return _wrong(f"return a pair (mine, largest), with mine a dict, not {type(given).__name__}", "shape")
    mine, largest = given
    if set(mine) != set(KINDS):
        return _wrong(f"mine has the keys {sorted(map(str, mine))}: it needs {', '.join(KINDS)}", "shape")
    mine, right = {kind: _plain(size) for kind, size in mine.items()}, truth(model, optimizer)
    largest = _plain(largest)
    for name, size in (*mine.items(), ("largest", largest)):
        if isinstance(size, bool) or not isinstance(size, Real):
            return _wrong(f"{name} is a {type(size).__name__}: it should be one number", "shape")
    for kind, size in mine.items():
        if size not in right[kind]:
            slip, words = _slip(kind, size, model, optimizer)
            expected = f"{size:,} bytes, expected {max(right[kind]):,}. {words}"
            return _wrong(f"rank {rank}, {kind}: {expected}", slip)
    return None, sum(mine.values()), largest


def _wrong(words: str, slip: str) -> tuple[Verdict, int, object]:
    return Verdict(False, words, slip), 0, None


def _plain(size) -> float:
    """A size as Python's own number, where it was given as a tensor of one."""
    return size.item() if isinstance(size, torch.Tensor) and size.numel() == 1 else size


def _slip(kind: str, given: float, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[str, str]:
    """The misconception behind a wrong size, and what to do about it."""
    weights = list(model.parameters())
    trained = [weight for weight in weights if weight.grad is not None]
    copies = 2 if kind == "optimizer" else 1
    held = weights if kind == "weights" else trained
    states = [tensor for state in optimizer.state.values() for tensor in state.values()]
    known = {
        "nothing": (0, f"{PART[kind][:1].upper()}{PART[kind][1:]} are missing."),
        "counted-numbers": (copies * sum(weight.numel() for weight in held),
                            "That is the count of numbers: multiply by element_size()."),
        "four-bytes": (copies * 4 * sum(weight.numel() for weight in held),
                       "You gave every number 4 bytes. One layer is in bf16: ask element_size()."),
        "tied-twice": (_bytes(model.state_dict().values()),
                       "The head and the token table are one tensor, and you counted it twice."),
        "frozen": (copies * _bytes(weights), "You counted the frozen weights too. They have no gradient and "
        "no state."),
        "one-moment": (_bytes(states) / 2, "AdamW keeps two moments for each weight."),
    }  # fmt: skip
    if kind == "optimizer":
        numbers = sum(tensor.numel() for tensor in states)
        known["counted-numbers-with-steps"] = (numbers, known["counted-numbers"][1])
    for slip, (value, words) in known.items():
        if given == value:
            return slip.removesuffix("-with-steps"), words
    return "wrong-size", f"Add up numel() * element_size() over the tensors of {PART[kind]}."


def _judge_largest(largest: float, totals: list[int]) -> Verdict:
    if largest == max(totals):
        return Verdict(True, f"right: the ranks hold {' and '.join(f'{one:,}' for one in totals)} bytes")
    if largest == sum(totals):
        return Verdict(False, "largest is the sum over the ranks. Each rank has its own memory: take the "
                              "MAX", "sum")
    if largest == sum(totals) / len(totals):
        return Verdict(False, "largest is the mean over the ranks. The fullest one runs out first: take the "
                              "MAX", "mean")
    if largest in totals:
        return Verdict(False, "largest is right on one rank only: an all_reduce brings it to all of "
                              "them", "own-total")
    return Verdict(False, f"largest is {largest}, expected {max(totals):,}: the largest total of any "
                          f"rank", "wrong-largest")


def _bytes(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def load(path: str):
    """The function `bytes_held` of a reader's file. Raises ValueError, in one line, where there is none."""
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}: save your bytes_held in it")
    try:
        return runpy.run_path(path)["bytes_held"]
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}") from None
    except Exception as error:  # no such function, or a reader's import that fails
        if repr(error) == "KeyError('bytes_held')":
            raise ValueError(f"{path} has no function bytes_held") from None
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from None


def verdict(path: str, rank: int, group=None) -> Verdict:
    """The verdict on one file, the same on both ranks: of the first rank that has something to say.

    Every rank comes to the one collective here, whatever the reader's code did: a rank that left early would
    keep the other one waiting. It has a `group` of its own, so that it cannot meet a collective of the reader.
    """
    function = load(path)
    try:
        found = own(function, rank)
    except Exception as error:  # the reader's code: one line says what happened
        words = f"rank {rank}: {type(error).__name__}: {' '.join(str(error).split())}"
        if "NoneType" in words:
            found = _wrong(f"{words}. A frozen weight has no gradient: its grad is None", "no-gradient")
        else:
            found = _wrong(words, "exception")
    every = [found] * dist.get_world_size(group)
    dist.all_gather_object(every, found, group=group)
    totals = [total for _, total, _ in every]
    verdicts = [wrong for wrong, _, _ in every if wrong] or [
        _judge_largest(largest, totals) for _, _, largest in every]  # fmt: skip
    # An exception last: a collective that fails on one rank often follows from what is wrong on another.
    return min(verdicts, key=lambda one: (one.ok, one.slip == "exception"))


def launch(files: list[str]) -> int:
    """Check on two processes that talk over gloo; the exit code of the first that failed, else 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD),
           "LOCAL_WORLD_SIZE": str(WORLD), "OMP_NUM_THREADS": "1", "LAB_TIMEOUT": str(SECONDS // 4),
           "TORCH_CPP_LOG_LEVEL": "ERROR"}  # fmt: skip
    command = [sys.executable, "-m", "scaleout.exercises.torch_memory", *files]
    ranks = [subprocess.Popen(command, env={**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)})
             for rank in range(WORLD)]  # fmt: skip
    try:
        return max(process.wait(SECONDS) for process in ranks)
    except subprocess.TimeoutExpired:
        print(f"stopped after {SECONDS} s: do both ranks call the same collectives, in the same "
              f"order?", file=sys.stderr)
        return 2
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def main() -> None:
    files = sys.argv[1:]
    if not files:
        print("say which file holds your bytes_held: python -m scaleout.exercises.torch_memory bytes_held.py",
              file=sys.stderr)  # fmt: skip
        sys.exit(2)
    if "RANK" not in os.environ:
        try:
            for path in files:
                load(path)
        except ValueError as error:
            print(error, file=sys.stderr)
            sys.exit(2)
        sys.exit(launch(files))
    with session(device="cpu") as s:
        if s.world != WORLD:
            raise ValueError(f"this exercise is for {WORLD} processes, not {s.world}")
        try:
            # Waits longer than the reader's own collectives do, so that one that hangs is still reported.
            group = dist.new_group(timeout=timedelta(seconds=SECONDS // 2))
            verdicts = {path: verdict(path, s.rank, group) for path in files}
        except RuntimeError:
            raise ValueError("the ranks lost each other: both have to call the same collectives") from None
        for path, one in verdicts.items():
            s.say(f"{Path(path).name}: {'' if one.ok else f'not yet ({one.slip}): '}{one.message}")
        code = 0 if all(one.ok for one in verdicts.values()) else 1
    sys.exit(code)


if __name__ == "__main__":
    main()
