"""Break one formula at a time, and see that a test notices: what the grids of the tests are still worth.

    .venv/bin/python tools/mutants.py [--only WORD]

Each break is made in a copy of the tree, never here, and the tests named beside it run there until the first failure.
Exit code 1 where a break goes unnoticed, 2 where its text is not in the module exactly once: then it is to be written
anew.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("scaleout", "tests", "tools", "labs", "book", "notebooks")

# (module, what stands there, what it becomes, the tests)
BREAKS = [
    ("timing/rates.py", "computes = count * 2 * rows * columns * (depth + self.depth) * wave",
     "computes = 2 * rows * columns * (depth + self.depth)", "timing/test_compute.py"),
    ("timing/rates.py", "size = count * width * (rows * depth + depth * columns + rows * columns)",
     "size = width * rows * columns", "timing/test_compute.py"),
    ("timing/rates.py", "idle = 1 + TAIL[phase] / tiles if tiles else 1.0", "idle = 1.0", "timing/test_compute.py"),
    ("timing/rates.py", "reached = keys / (keys + self.ramp)", "reached = 1.0", "timing/test_compute.py"),
    ("timing/rates.py", '"backward": 2.5}', '"backward": 2.0}', "timing/test_compute.py"),
    ("timing/compute.py", "return total - (1 - job.program.contention) * hidden, total",
     "return total - hidden, total", "timing/test_compute.py"),
    ("timing/compute.py", "moved = job.program.moves * passes.moved(job, cut, half, phase, kind)",
     "moved = passes.moved(job, cut, half, phase, kind)", "timing/test_compute.py"),
    ("timing/compute.py", "gaps = (1 + phase) * (kernels * rates.kernel_seconds",
     "gaps = (kernels * rates.kernel_seconds", "timing/test_compute.py"),
    ("timing/products.py", "cp * flops, job.seq", "flops, job.seq", "timing/test_compute.py"),
    ("timing/passes.py", "passes += norms * RMS_NORM[phase] * _split_norm(job)", "pass", "timing/test_compute.py"),
    ("timing/compute.py", '"tp" in rank.crossing or not', "not", "timing/test_compute.py"),
    ("timing/products.py", "return 1 - (1 - window / seq) ** 2", "return window / seq", "timing/test_kinds.py"),
    ("timing/passes.py", "(norms - 1) * NORM[phase]", "0 * NORM[phase]", "timing/test_kinds.py"),
    ("timing/passes.py", "(each * experts.active + once) * row", "each * experts.active * row", "timing/test_kinds.py"),
    ("timing/products.py", "(1 if free else 2) * down", "2 * down", "timing/test_adapters.py"),
    ("timing/products.py", "job.tokens * m.active / m.count", "job.tokens * m.active", "timing/test_kinds.py"),
    ("spec/adapters.py", "ALIAS.get(m.name, m.name) in", "m.name in", "timing/test_adapters.py"),
    ("spec/adapters.py", 'not matrix.name.startswith("expert_")', "True", "timing/test_adapters.py"),
    ("memory/adapters.py", "firsts=[x.bytes], scratch=unpacked)", "firsts=[x.bytes])", "memory/test_adapters.py"),
    ("memory/adapters.py", 'weight = Storage(self.tape, "temporaries", unpacked)', "weight = None",
     "memory/test_adapters.py"),
    ("memory/transformers.py", "self.shared[first] = [one.storage for one in positions[first] or ()]", "pass",
     "memory/test_adapters.py"),
    ("memory/graph.py", "if not viewed:", "if True:", "memory/test_hugging_face.py"),
    ("memory/graph.py", "if len(frame.again) == frame.saves:", "if False:", "memory/test_hugging_face.py"),
    ("memory/operations.py", "scratch=2 * x.bytes)", "scratch=x.bytes)", "memory/test_hugging_face.py"),
    ("memory/optimizers.py", "return 4 * n if n < EIGHT_BIT_FROM else", "return", "memory/test_optimizers.py"),
    ("fit/tuning.py", "one.rate * (1 + first.band.share) >= first.rate", "True", "fit/test_tuning.py"),
    ("timing/exchange.py", "shares[piece.name][1] * piece.reduce_bytes", "piece.reduce_bytes",
     "timing/test_adapters.py"),
    ("timing/job.py", "one = recipe.fused_update or", "one = False or", "timing/test_adapters.py"),
    ("timing/job.py", 'return utilization(self.job, self.seconds, "forward", "backward")', "return self.hfu",
     "timing/test_mfu.py"),
    ("timing/compute.py", "backward + repeated, repeated, context", "backward + repeated, Phase(), context",
     "timing/test_compute.py"),
    ("timing/compute.py", "self.backward.launches - self.repeated.launches", "self.backward.launches",
     "timing/test_job.py"),
    ("timing/exchange.py", "seconds = (m - 1) * silent.seconds + last.seconds",
     "seconds = m * last.seconds", "timing/test_exchange.py"),
    ("timing/exchange.py", "return seconds - (1 - job.program.contention) * min(seconds, forward), seconds",
     "return seconds - min(seconds, forward), seconds", "timing/test_exchange.py"),
    ("timing/exchange.py", "(3 if twice and name else 1) * gathered", "gathered", "timing/test_exchange.py"),
    ("timing/pipeline_exchange.py", "exposed + job.program.contention * max(0.0, total - exposed)",
     "exposed", "timing/test_exchange.py"),
    ("timing/job.py", "job.program.jitter * log2(job.cluster.nodes)", "job.program.jitter", "timing/test_job.py"),
    ("timing/job.py", "return 2 * rank.hop(size / 2) if size else 0.0", "return 0.0", "timing/test_exchange.py"),
    ("timing/job.py", "(job.shards if job.layout.zero else 1)",
     "(job.shards if job.layout.zero > 1 else 1)", "timing/test_exchange.py"),
    ("timing/job.py", "tuple(value + action for value in forward)", "tuple(forward)", "timing/test_exchange.py"),
    ("timing/machine.py", "return mesh.group_cluster(group, (ranks, group.ranks // ranks))",
     "return mesh.group_cluster(group, (1, group.ranks // ranks))", "timing/test_exchange.py"),
    ("collectives/job.py", "gathers = m * (2 if replicas.reshard is True else 1) if job.sharded else 1",
     "gathers = 1", "collectives/test_job.py"),
    ("collectives/job.py", "gradients / ranks),)", "gradients),)", "collectives/test_job.py"),
    ("collectives/job.py", 'forwards = 1 + (job.recipe.checkpointing == "full")',
     "forwards = 1", "collectives/test_job.py"),
    ("collectives/job.py", "(stage > 0) + (stage < layout.stages - 1)", "2", "collectives/test_job.py"),
    ("spec/job.py", 'for axis in ("tp", "pp", "cp"):', 'for axis in ("tp", "pp"):', "spec/test_job.py"),
    ("spec/job.py", "self.batch * self.layout.m * self.layout.dp",
     "self.batch * self.layout.dp", "spec/test_job.py"),
    ("memory/states.py", '"optimizer": optimizer_width(recipe),', '"optimizer": 2 * optimizer_width(recipe),',
     "memory/test_published.py"),
    ("memory/activations.py", "z.per_token * (2 * z.r if", "z.per_token * (z.r if", "memory/test_published.py"),
    ("memory/backward.py", "n // self.z.layout.dp if self.z.layout.zero >= 2 else n", "n", "memory/test_layouts.py"),
    ("memory/fsdp_stretch.py", "grown.get(kind, 0) + (i - previous) * n", "(i - previous) * n", "memory/test_fsdp.py"),
    ("timing/recompute.py", "(ROTARY_UNFUSED[0] - ROTARY[0]) * size", "ROTARY[0] * size",
     "timing/test_recompute.py"),
    ("timing/recompute.py", "full if drop >= everything else", "full if not everything else",
     "timing/test_recompute.py"),
    ("memory/recompute.py", "if z.mask or inside or not early_stop", "if z.mask or not early_stop",
     "memory/test_recompute_truth.py"),
    ("memory/recompute_walk.py", 'cached += copies_kept(z, "none") if drop else 0', "cached += 0",
     "memory/test_recompute_truth.py"),
    ("timing/knapsack.py", "min(count, ceil(free / size)) if size", "min(count, free // size) if size",
     "timing/test_recompute.py"),
    ("timing/precision.py", "narrow.moved(CAST_BYTES * operands, 2 * CAST_KERNELS)", "0.0", "timing/test_precision.py"),
    ("timing/knapsack.py", "if point.seconds < least:", "if point.seconds <= least:", "timing/test_recompute.py"),
    ("numerics/scaling.py", "position + (not (repeats and skipped))", "position + 1", "numerics/test_scaling.py"),
    ("numerics/shared.py", "+ fixed * (shares[low] - shares[zero])", "", "numerics/test_shared.py"),
    ("numerics/shared.py", "smaller_weight = sizes.below[k + 1] ** n - ", "smaller_weight = sizes.below[k] ** n - ",
     "numerics/test_shared.py"),
    ("memory/allocator.py", "/ (1 + FRAGMENTS[1])", "/ (1 + FRAGMENTS[0])", "memory/test_allocator.py"),
    ("spec/sharding.py", "sum([-(-rows // ranks) * columns", "sum([rows // ranks * columns", "spec/test_sharding.py"),
    ("collectives/algorithms.py", "sent = steps * size / cluster.ranks", "sent = steps * size / (cluster.ranks + 1)",
     "collectives/test_alpha_beta.py"),
    ("collectives/algorithms.py", "[(2 * (h + k - 1), hop)]", "[(2 * (h + k), hop)]",
     "collectives/test_alpha_beta.py"),
    ("collectives/nccl.py", "+ 2 * hops, inside", "+ hops, inside", "collectives/test_nccl.py"),
    ("collectives/routes.py", "(i - step + shift + turn) % p", "(i - step + shift) % p",
     "collectives/test_messages.py"),
    ("parallel/kernels.py", "shrink * totals[..., rows] + weights.sum(-1)", "totals[..., rows] + weights.sum(-1)",
     "parallel/test_kernels.py"),
    ("parallel/ring.py", "adds = step < ranks - 1", "adds = step < ranks", "ranks/test_ring.py"),
    ("collectives/placements.py", 'READ = Placed("R", "P")', 'READ = Placed("R", "R")', "collectives/test_tensor.py"),
    ("collectives/tensor.py", "backward = forward + backward", "pass", "collectives/test_tensor.py"),
    ("memory/backward.py", "t.swap(\"temporaries\", z.y, z.gathered)", "t.hold(\"temporaries\", z.y)",
     "memory/test_layouts.py"),
    ("memory/zero_frames.py", "if self.stage >= 2 or last:", "if last:", "memory/test_zero.py"),
    ("memory/zero.py", 'offload == "optimizer" and kind != "weights"', 'offload == "optimizer"', "memory/test_zero.py"),
    ("collectives/zero.py", "parameters - resident", "parameters", "collectives/test_zero.py"),
    ("collectives/zero.py", "ceil(size / layout.dp)", "size", "collectives/test_zero.py"),
    ("timing/job.py", "max(0.0, weights - update)", "weights", "timing/test_exchange.py"),
    ("collectives/job.py", '"loss"] * (rank == job.layout.last_rank)', '"loss"] * (rank == job.layout.pp - 1)',
     "collectives/test_job_axes.py"),
    ("collectives/job.py", "count = layout.m * sum(", "count = layout.m // layout.chunks * sum(",
     "collectives/test_job_axes.py"),
    ("collectives/job.py", "m * blocks * (passes - 1), cp * keys_values)", "m * blocks * passes, cp * keys_values)",
     "collectives/test_job_axes.py"),
    ("collectives/job.py", "passes = 3 - ", "passes = 1 + ", "collectives/test_job_axes.py"),
    ("timing/job.py", "return 2 * rank.hop(size / 2)", "return rank.hop(size / 2)", "collectives/test_job_axes.py"),
    ("timing/job.py", "forward[stage] += end.forward_seconds", "pass", "timing/test_layouts.py"),
    ("timing/sent.py", "else 2 * machine.hop(sent.size / 2))", "else machine.hop(sent.size / 2))",
     "timing/test_sent.py"),
    ("timing/sent.py", "return sent.count * machine.keepers(", "return sent.count * machine.data(",
     "timing/test_sent.py"),
    ("timing/quick.py", "* hop + tied_seconds(", "* hop + 0 * tied_seconds(", "timing/test_quick.py"),
    ("timing/quick.py", "2 * (p * v - 1) * hop", "2 * (p - 1) * hop", "timing/test_quick.py"),
    ("timing/quick.py", "share * min(sent, backward", "0 * min(sent, backward", "timing/test_quick.py"),
    ("timing/quick.py", "3 * moved(weights)", "2 * moved(weights)", "timing/test_quick.py"),
    ("timing/search.py", "size[way] <= max(least, self.usable)", "size[way] <= max(least, 2 * self.usable)",
     "timing/test_search.py"),
    ("timing/search.py", "if reason := self.cannot(ways[0], checkpointing):", "if reason := False:",
     "timing/test_search.py"),
    ("timing/search.py", "if not (self._dominated(best, plans) or", "if not (False or", "timing/test_search_best.py"),
    ("timing/search.py", "(pair[0].layout.stages, pair[0].seconds)", "pair[0].seconds", "timing/test_search_best.py"),
    ("timing/plan.py", "layout.cp > 1, layout.pp > 1)", "layout.cp > 1, layout.zero > 0)",
     "timing/test_search_best.py"),
    ("spec/launchers.py", "if job.tokens <= n * most", "if job.tokens <= 2 * n * most", "spec/test_launchers.py"),
    ("timing/band.py", "ceil(0.9 * len(ordered)) - 1", "ceil(0.8 * len(ordered)) - 1", "timing/test_band.py"),
    ("spec/launchers.py", "layout.sequence_parallel and in_node", "layout.sequence_parallel", "spec/test_launchers.py"),
    ("spec/mesh.py", "in_node = prod(gcd(size", "in_node = max(gcd(size", "spec/test_mesh.py"),
    ("spec/mesh.py", "(tp > shape.kv and tp != layout.tp)", "False", "spec/test_mesh.py"),
    ("timing/machine.py", "by_profile(known.get(ranks, base))", "by_profile(base)", "train/test_mesh_forecast.py"),
    ("spec/mesh.py", "cluster.pool.bytes_per_s * in_node / g", "cluster.pool.bytes_per_s / g", "spec/test_mesh.py"),
    ("spec/mesh.py", "reach = grid.stride(axis) * grid.size(axis)", "reach = grid.stride(axis)", "spec/test_mesh.py"),
    ("memory/mesh.py", "2 * z.kv * (min(2, cp - 1)", "z.kv * (min(2, cp - 1)", "memory/test_mesh.py"),
    ("memory/mesh_peaks.py", "busy += root + 3 * block", "busy += root", "memory/test_mesh.py"),
    ("timing/pipeline_exchange.py", "- remaining * p * chunk", "- remaining * chunk", "timing/test_layouts.py"),
    ("timing/quick.py", '"imbalance": m * (busiest - mean)', '"imbalance": busiest - mean', "timing/test_quick.py"),
    ("numerics/blocks.py", "octave - (significand == 0.5)", "octave", "numerics/test_blocks.py"),
    ("numerics/scaling.py", "if self.good + 1 < self.interval:", "if self.good < self.interval:",
     "numerics/test_scaling.py"),
    ("numerics/octaves.py", "f.lowest_octave - f.mantissa - 1", "f.lowest_octave - f.mantissa",
     "numerics/test_octaves.py"),
    ("timing/precision.py", "1 - share + share / FASTER", "1 - share / FASTER", "timing/test_precision.py"),
    ("timing/compute.py", "product * (tp - 1) / tp if", "product if", "timing/test_tensor_block.py"),
    ("timing/compute.py", "hides = [product] * len(moves)", "hides = [product / 2] * len(moves)",
     "timing/test_tensor_block.py"),
    ("collectives/vocabulary.py", "block.sums * layers + model_ends.sums", "block.sums + model_ends.sums",
     "collectives/test_job.py"),
    ("spec/pipeline.py", '"zbv": 2 * p - 1', '"zbv": p', "timing/test_pipeline.py"),
    ("timing/pipeline_queues.py", "1e-12 * max", "1e-6 * max", "timing/test_pipeline.py"),
    ("timing/pipeline_queues.py", "remaining % period + rank", "rank", "timing/test_pipeline.py"),
    ("timing/pipeline_sweep.py", "starts[rank:] if", "starts if", "timing/test_pipeline.py"),
    ("timing/pipeline_sweep.py", "enumerate([*waiting[:-1], last])", "enumerate(waiting)", "timing/test_pipeline.py"),
    ("timing/ddp.py", "for i in reversed(range(len(layers))):\n        if not layers",
     "for i in range(len(layers)):\n        if not layers", "timing/test_ddp.py"),
    ("timing/ddp.py", "min(*sent, part.seconds - part.compute_seconds)", "min(*sent, part.seconds)",
     "timing/test_ddp.py"),
    ("timing/fsdp_short.py", "extra - copy if block == self.middle", "copy if block == self.middle",
     "timing/test_fsdp_short.py"),
    ("timing/fsdp_streams.py", 'self._wait(self.scattered, "reduce")', "pass", "timing/test_fsdp.py"),
    ("timing/reliability.py", "math.sqrt(2 * checkpoint_seconds *", "math.sqrt(checkpoint_seconds *",
     "timing/test_reliability.py"),
    ("views/memory/levers.py", "if candidate.after.peak_bytes <= (1 - LEAST_SAVING) * peak_bytes:",
     "if candidate.after.peak_bytes <= peak_bytes:", "views/test_memory_levers.py"),
    ("views/ddp/levers.py", "if candidate.after.efficiency >= max(current + WORTH, best - loss)",
     "if candidate.after.efficiency >= current", "views/test_ddp_levers.py"),
    ("views/capstone/levers.py", "(strong_at(trial.after, trial.after.world)",
     "(-strong_at(trial.after, trial.after.world)", "views/test_capstone.py"),
    ("views/tensor/levers.py", "if for_memory and holds < (1 - WORTH) * held_bytes:",
     "if for_memory and holds < held_bytes:", "views/test_tensor.py"),
    ("views/tensor/setting.py", "first = rank * self.shape.kv // self.tp", "first = rank", "views/test_tensor.py"),
    ("views/controls.py", '"play" else 4', '"play" else 2', "views/test_controls.py"),
    ("exercises/engine/units.py", '"GiB": 2**30', '"GiB": 10**9', "exercises/test_units.py"),
    ("train/order.py", "first = step * batch + rank * share", "first = step * batch + rank", "train/test_order.py"),
    ("records/checkpoints.py", "for _, body in sound], keep)", "for _, body in sound], keep + 1)",
     "records/test_checkpoints.py"),
    ("timing/budget.py", "answering = FORWARD * parameters * self.answers * samples",
     "answering = FORWARD * parameters * self.answers", "timing/test_budget.py"),
    ("timing/budget.py", "return 1 - exp(_log_beta(a, b + samples) - _log_beta(a, b))",
     "return 1 - (b / (a + b)) ** samples", "timing/test_budget.py"),
    ("numerics/decoding.py", "power = 1 / temperature", "power = temperature",
     "numerics/test_decoding.py"),
]  # fmt: skip


def copied(folder: Path) -> None:
    """What the tests read; `book/node_modules` and what is built stay behind."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    for path in ROOT.glob("*.*"):
        if path.is_file():
            shutil.copy(path, folder)


def tested(folder: Path, *words: str, **options) -> subprocess.CompletedProcess[str]:
    """What pytest says in the copy until the first failure; words: its arguments, options: the process's."""
    command = [sys.executable, "-m", "pytest", "-xq", "-rfE", "-p", "no:cacheprovider", *words]
    here = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=here, capture_output=True, text=True, **options)


def first_failure(done: subprocess.CompletedProcess[str]) -> str:
    """The first test or file that failed; "" where none did."""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    return found[1] if found else "a test" if done.returncode else ""


def noticed(folder: Path, module: str, old: str, new: str, tests: str) -> str:
    """The first test that fails; "" where none does. ValueError where `old` is not there once, or nothing ran."""
    path = folder / "scaleout" / module
    text = path.read_text("utf-8")
    if text.count(old) != 1:
        raise ValueError(f"scaleout/{module} has {old!r} {text.count(old)} times, not once")
    path.write_text(text.replace(old, new), "utf-8")
    done = tested(folder, f"tests/{tests}")
    path.write_text(text, "utf-8")
    if done.returncode not in (0, 1):
        raise ValueError(f"tests/{tests} did not run: {(done.stdout + done.stderr).strip().splitlines()[-1]}")
    return first_failure(done)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="breaks in modules with this in their name")
    only, missed = parser.parse_args().only, 0
    with tempfile.TemporaryDirectory() as folder:
        copied(Path(folder))
        for module, old, new, tests in [one for one in BREAKS if only in one[0]]:
            try:
                found = noticed(Path(folder), module, old, new, tests)
            except ValueError as error:
                print(f"mutants: {error}", file=sys.stderr)
                return 2
            missed += not found
            print(f"{f'caught by {found}' if found else 'NOT CAUGHT'}: {module}, {new.strip()}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
