"""Faults for a lab to inject into a run of its own, so that a trace shows what each one looks like.

The reader's rank, link and input pipeline are slowed for real; nothing is written into a trace afterwards but the
span of a collective that waits for an injected link, which no profiler thread could see.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from scaleout.records import chrome

KINDS = {
    "straggler": "straggler:RANK:SHARE, rank RANK does SHARE more work in its backward (straggler:1:0.2)",
    "tiny-buckets": "tiny-buckets, an all-reduce for every tensor",
    "slow-link": "slow-link:MBPS, all-reduce no faster than MBPS million bytes per second (slow-link:50)",
    "starved": "starved:SECONDS, each batch comes SECONDS late (starved:0.05)",
}
TINY_MB = 256 / 2**20  # MiB: no tensor of a model is as small, so that each is a bucket


@dataclass(frozen=True)
class Fault:
    """One injected fault: its kind, and the numbers that follow it."""

    kind: str
    rank: int = 0
    amount: float = 0.0  # share of the backward, million bytes per second, or seconds


def parse(text, world):
    """The Fault that `--inject` names, or None for None. ValueError, one line, for anything else."""
    if text is None:
        return None
    kind, *numbers = text.split(":")
    if kind not in KINDS:
        raise ValueError(f"--inject {text}: use one of {', '.join(KINDS)}")
    try:
        values = [float(n) for n in numbers]
        if len(values) != {"straggler": 2, "tiny-buckets": 0}.get(kind, 1) or not all(0 <= v < 1e6 for v in values):
            raise ValueError
        fault = Fault(kind, int(values[0]) if kind == "straggler" else 0, values[-1] if values else 0.0)
        if (kind == "slow-link" and not fault.amount) or fault.rank != (values[0] if kind == "straggler" else 0):
            raise ValueError
    except ValueError:
        raise ValueError(f"--inject {text}: write it as {KINDS[kind]}") from None
    if world < 2:
        raise ValueError("--inject needs ranks that wait for each other: torchrun --nproc-per-node 2")
    if fault.rank >= world:
        raise ValueError(f"--inject {text}: there is no rank {fault.rank} among {world}, which are 0 to {world - 1}")
    return fault


class SlowLink:
    """Stands around a hook: one all-reduce at a time, and none done before its bytes would be through a slow link.

    A ring sends 2(p-1)/p of the bytes over each rank's link. `spans` are the collectives as the hook saw them.
    """

    def __init__(self, world, bytes_per_s):
        self.share, self.rate, self.spans = 2 * (world - 1) / world, bytes_per_s, []
        self.thread = ThreadPoolExecutor(1)  # one link: the next waits for the last

    def __call__(self, hook, state, bucket):
        future = torch.futures.Future()
        self.thread.submit(self._send, future, hook, state, bucket, bucket.buffer().nbytes)
        return future

    def _send(self, future, hook, state, bucket, size):
        start = time.time()
        try:
            flat = hook(state, bucket).wait()
            time.sleep(max(0.0, start + size * self.share / self.rate - time.time()))
            self.spans.append((start, time.time(), size))
            future.set_result(flat)
        except RuntimeError as error:
            future.set_exception(error)

    def events(self, rank):
        """The collectives as events of a trace (chrome.event), on the wall clock; forgets them."""
        spans, self.spans = self.spans, []
        return [
            chrome.event(rank, 1, "gloo:all_reduce", "user_annotation", start, end) | {"args": {"bytes": size}}
            for start, end, size in spans
        ]


def slow_down(model, share):
    """Hooks that make a backward take `share` longer, by computing: each adds a part of the time before it.

    They run matmuls instead of sleeping, because a slow device leaves no gap in its trace.
    """
    side = torch.ones(64, 64)
    last = [0.0]

    def start(*_):
        last[0] = time.perf_counter()

    def ready(_):
        end = time.perf_counter() + share * (time.perf_counter() - last[0])
        while time.perf_counter() < end:
            torch.mm(side, side)
        last[0] = time.perf_counter()

    model.register_forward_hook(start)
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(ready)
