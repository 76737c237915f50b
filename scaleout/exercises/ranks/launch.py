"""The launcher of the checkers of lab exercises: it starts the ranks, prints what they say, and names one that is lost.

It runs nothing of the reader's code. Ranks and launcher speak through a store, under a key that the reader's code is
not told, so that neither a forged line nor garbage in the store passes for a verdict.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from scaleout.exercises.engine import Verdict

TOKEN = "SCALEOUT_CHECK"  # the environment variable with that key
UNREAD = "unread"  # the slip of a file whose code cannot be loaded


def launch(module: str, world: int, files: list[str], seconds: float) -> int:
    """Check all files; the highest exit code. Where a rank is lost, new ones go on with the files that are left.

    module: the checker; world: the most ranks that it needs; seconds: that one file may take.
    """
    code, signals = 0, []
    # seen where all ranks are known, so that all are ended
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    while files:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        token = secrets.token_hex(8)
        verdicts = dist.PrefixStore(token, server)
        ranks = _start(module, world, files, server.port, token)
        judged = 0
        try:
            for judged, verdict in enumerate(
                _lines(ranks, verdicts, len(files), 20 + seconds * len(files), signals), 1
            ):
                code = max(code, tell(files[judged - 1], verdict))
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        files = files[judged:]
    return code


def tell(path: str, verdict: Verdict, stream=None) -> int:
    """Print the line on one file, and return its exit code: 0 right, 1 wrong, 2 where it cannot be loaded."""
    if verdict.slip == UNREAD:
        print(verdict.message, file=sys.stderr, flush=True)
        return 2
    print(
        f"{Path(path).name}: {'' if verdict.ok else f'not yet ({verdict.slip}): '}{verdict.message}",
        file=stream or sys.stdout,
        flush=True,
    )
    return int(not verdict.ok)


def say(store, number: int, verdict: Verdict) -> None:
    """Leave the verdict on file `number` for the launcher."""
    store.set(f"said/{number}", json.dumps(verdict.to_dict()))


def end(store, rank: int, code: int) -> NoReturn:
    """End a rank so that the launcher knows that it was meant to; threads that are left keep nobody waiting."""
    sys.stderr.flush()
    store.set(f"ended/{rank}", "1")
    os._exit(code)


def _start(module: str, world: int, files: list[str], port: int, token: str) -> list[subprocess.Popen]:
    job = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "FATAL",
        TOKEN: token,
    }
    return [
        subprocess.Popen(
            [sys.executable, "-m", module, *files],
            env={**os.environ, **job, "RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        for rank in range(world)
    ]


def _lines(ranks: list[subprocess.Popen], verdicts, files: int, seconds: float, signals: list[int]):
    """The verdicts as rank 0 gives them; the last is on a rank that was lost, where one was. SystemExit once a signal
    is in `signals` and asks this process to end."""
    end, number, lost = time.monotonic() + seconds, 0, None
    while number < files:
        if signals:
            sys.exit(128 + signals[0])
        ended = ranks[0].poll() is not None  # before the look at what it said
        if verdicts.check([f"said/{number}"]):
            yield Verdict(**json.loads(verdicts.get(f"said/{number}")))
            number += 1
        elif lost or ended:
            if lost or not number or not verdicts.check(["ended/0"]):
                yield lost or _lost(0, ranks[0].returncode)
            return
        else:
            lost = next(
                (
                    _lost(rank, process.returncode)
                    for rank, process in enumerate(ranks)
                    if process.poll() is not None and not verdicts.check([f"ended/{rank}"])
                ),
                None,
            )
            if time.monotonic() > end:
                lost = Verdict(False, f"stopped after {seconds:.0f} s: rank 0 did not come to its end", "no-end")
            time.sleep(0.02)


def _lost(rank: int, code: int) -> Verdict:
    """What ended a process. gloo ends its own with SIGABRT when a message is longer than its receiver expects."""
    if code == -signal.SIGABRT:
        return Verdict(
            False,
            f"rank {rank} was ended by gloo: a message was longer than what its receiver had ready. "
            "Does every rank receive the part that its neighbour sends, and is the neighbour taken "
            "modulo the number of ranks?",
            "mismatch",
        )
    cause = f"was ended by signal {-code}" if code < 0 else f"ended Python (exit code {code}): return instead"
    return Verdict(False, f"rank {rank} {cause}", "died")
