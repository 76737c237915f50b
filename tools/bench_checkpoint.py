"""What a checkpoint costs a training job: python tools/bench_checkpoint.py [--hidden 256] [--turns 6] [--smallest]

One process trains on one thread; checkpoints that are written meanwhile alternate with those that it waits for, in one
run. Given are medians: how long training was blocked, how long until the checkpoint was there, and by how much the
steps beside the writing were slower than quiet ones (they share the cores).
"""

import statistics
import tempfile
import time
from pathlib import Path

import launching
import torch

from scaleout.lab import recording, session
from scaleout.parallel.transformer import Transformer
from scaleout.spec.transformer import Shape, total_parameters
from scaleout.train.checkpoint import Checkpoints

QUIET = 3  # steps from one checkpoint to the next that nothing is written beside


def trained(made, optimizer, text):
    """Seconds of one step."""
    start = time.perf_counter()
    made(text[:, :-1], text[:, 1:]).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - start


def measure(s, shape, turns, folder):
    """{name: list of seconds}, one a checkpoint; the first of each kind is left out."""
    made = Transformer(shape).to(s.device)
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-4)
    text = torch.randint(256, (4, shape.max_seq + 1), device=s.device)
    kept = {name: Checkpoints(s, Path(folder) / name, 1, name == "beside") for name in ("beside", "waited")}
    found = {f"{name} {what}": [] for name in kept for what in ("blocked", "until there", "step beside")}
    found["quiet step"], step = [], 0
    trained(made, optimizer, text)
    for turn in range(turns + 1):
        for name, checkpoints in kept.items():
            step += 1
            checkpoints.save(step, made, optimizer, {})
            slow = []
            while checkpoints.pending and not checkpoints.pending.done():
                slow.append(trained(made, optimizer, text))
            checkpoints.finish()
            quiet = [trained(made, optimizer, text) for _ in range(QUIET)]
            if turn:
                found[f"{name} blocked"].append(checkpoints.blocked[-1])
                found[f"{name} until there"].append(checkpoints.written[-1])
                found[f"{name} step beside"] += slow
                found["quiet step"] += quiet
    return found


def main(s):
    o = launching.options(__doc__, hidden=256, turns=6).parse_args()
    if o.smallest:
        o.hidden, o.turns = 128, 1
    torch.set_num_threads(1)
    shape = Shape(layers=4, hidden=o.hidden, heads=4, vocab=256, max_seq=64)
    size = 12 * total_parameters(shape)
    with tempfile.TemporaryDirectory() as folder:
        every = measure(s, shape, o.turns, folder)
    empty = [name for name, values in every.items() if not values and name != "waited step beside"]
    if empty:
        raise ValueError(f"nothing was measured of: {', '.join(empty)}; give a larger --hidden or more --turns")
    found = {name: statistics.median(values) for name, values in every.items() if values}
    print(f"{size / 1e6:,.0f} MB a checkpoint (weights and AdamW in fp32), {recording.device_name(s.device)}")
    for name, seconds in found.items():
        print(f"{name:<44}{1e3 * seconds:9.2f} ms")
    print(f"{'blocked, beside over waited':<44}{found['beside blocked'] / found['waited blocked']:9.2f}")
    slower = found["beside step beside"] / found["quiet step"]
    print(f"{'a step beside the writing over a quiet one':<44}{slower:9.2f}")


if __name__ == "__main__":
    session.run(main)
