"""A lab for the tests: many cases in one launch; prints what it saw as one line of JSON on rank 0.

torchrun --nproc-per-node 2 tests/ranks/specimen_lab.py cases | refuse | refuse-one | crash | hang
"""

import gc
import json
import sys
import time
import weakref

import torch
import torch.distributed as dist

from scaleout.lab import recording, session
from scaleout.lab.text import progress
from scaleout.parallel.replicas import ROUTES, Replicas


def kept(s):
    """The routes whose model, and with it weights and buckets, outlives its last use."""
    models = {}
    for via in ROUTES if s.world > 1 else ("hand",):
        model = torch.nn.Linear(4, 4)
        replicas = Replicas(s, model, via)
        replicas.backward(replicas(torch.ones(1, 4)).sum())
        models[via] = weakref.ref(model)
    del model, replicas
    gc.collect()
    return [via for via, model in models.items() if model() is not None]


def cases(s):
    """Everything a session promises, as values."""
    text = session.as_tensor(bytes(range(256)) * 40)
    mine = session.batch(text, 3, 2, 16, s.rank, s.world)[0]
    whole = session.batch(text, 3, 2 * s.world, 16)[0]
    shares = [torch.empty_like(mine) for _ in range(s.world)]
    if s.world > 1:
        dist.all_gather(shares, mine)
    else:
        shares = [mine]
    start = s.clock()
    time.sleep(0.01)
    seen = {
        "world": s.world,
        "backend": s.backend,
        "device": str(s.device),
        "nodes": s.nodes,
        "mean": s.mean(s.rank),
        "largest": s.largest(s.rank),
        "clock": s.clock() - start,
        "agree": s.agree(True),
        "disagree": s.agree(s.rank != s.world - 1),
        "shares make the whole": torch.equal(torch.cat(shares), whole),
        "group": dist.get_world_size() if dist.is_initialized() else 0,
        "facts": recording.facts(s),
        "kept": kept(s),
    }
    list(progress([1, 2], "silent", s.main))
    s.say(json.dumps(seen))


def main(s):
    """Do what the first argument says."""
    mode = sys.argv[1]
    if mode == "cases":
        cases(s)
    elif mode == "refuse":
        raise ValueError("world size 3 does not divide 8 heads: use 1, 2, 4 or 8")
    elif mode == "refuse-one" and s.rank == s.world - 1:
        raise ValueError("one rank is unhappy")
    elif mode == "crash" and s.rank == s.world - 1:
        raise RuntimeError("bang")
    elif mode == "hang":
        s.say("ready")
        while True:
            s.mean(1.0)
            time.sleep(0.01)


session.run(main)
