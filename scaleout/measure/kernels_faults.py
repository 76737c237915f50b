"""Three kernels that are not what they seem: compiled again at each step, a mask that takes the slow path, slow FP8.

Each is found by what torch counts or names: graphs in `torch._dynamo`'s counters, operations in a profile, and a
roofline for FP8.
"""

from __future__ import annotations

import logging
import re
import statistics
import warnings
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from scaleout.measure import kernels_fp8
from scaleout.measure.kernels_attention import draw, in_turn
from scaleout.measure.recompute import saved
from scaleout.parallel import kernels, private
from scaleout.parallel.kernels_ways import no_compiler
from scaleout.spec.devices import DEVICES, reported_as
from scaleout.timing.precision import matmul_seconds

STEPS = 12  # of a run whose sequences have another length each time: more than torch compiles a function for
SHORTEST, LONGER = 40, 8  # tokens of the first step, and by how much each step is longer
PADDED = 64  # to a multiple of so many tokens
ROOFLINE = "h100-sxm"  # where this machine's own GPU has no FP8, or is unknown


# --- compiled again at each step --------------------------------------------------------------------------------------


@contextmanager
def heard():
    """What torch warns of while it compiles (list of str), which is not printed meanwhile."""
    lines, logger = [], logging.getLogger("torch._dynamo.convert_frame")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    before = logger.propagate, list(logger.handlers)
    logger.propagate, logger.handlers = False, [handler]
    try:
        yield lines
    finally:
        logger.propagate, logger.handlers = before


def lengths():
    """Tokens of the sequences of each step."""
    return [SHORTEST + LONGER * i for i in range(STEPS)]


def compilations(s, o, tokens, dynamic):
    """([(tokens, graphs compiled so far, seconds)] of each step, torch's reason for giving up or ""). The graphs are
    torch's own count. On a CPU the backend is "eager": the graphs are the same, and no compiler is needed."""
    torch.compiler.reset()
    private.dynamo_counters.clear()
    backend = "inductor" if s.device.type == "cuda" and not no_compiler(s.device) else "eager"
    run, rows = torch.compile(kernels.naive, backend=backend, dynamic=dynamic), []
    with heard() as lines:
        for seq in tokens:
            qkv = [x.detach() for x in draw(s, o, seq, o.head_dims[0], o.precision)]
            start = s.clock()
            run(*qkv, kernels.causal)
            rows.append((seq, private.dynamo_counters["stats"]["unique_graphs"], s.clock() - start))
    reason = re.search(r"last reason: (?:\d+/\d+: )?(.*)", "\n".join(lines))
    torch.compiler.reset()
    return rows, reason[1].split("#")[0].strip() if reason else ""


def recompile(s, o):
    """{case: (rows, reason)} of `compilations`: as found, with the lengths as variables, and padded."""
    padded = [-(-seq // PADDED) * PADDED for seq in lengths()]
    return {
        "dynamic=False": compilations(s, o, lengths(), False),
        "dynamic=None": compilations(s, o, lengths(), None),
        f"padded to {PADDED}": compilations(s, o, padded, False),
    }


# --- a mask that takes the slow path ----------------------------------------------------------------------------------


def kernel_names(run):
    """The attention kernels that torch dispatched to, as a profile names them (list of str)."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    names = {event.name for event in seen.events()}
    return sorted(n.removeprefix("aten::_") for n in names if n.startswith("aten::_scaled_dot") and "backward" not in n)


def masks(seq, heads, device):
    """{what the caller wrote: options of scaled_dot_product_attention}, all of the same causal attention."""
    lower = torch.ones(seq, seq, dtype=torch.bool, device=device).tril()
    return {
        "is_causal=True": {"is_causal": True},
        "booleans, (s, s)": {"attn_mask": lower},
        "booleans, (heads, s, s)": {"attn_mask": lower.expand(heads, seq, seq)},
    }


def only_flash(run):
    """(whether a call runs where FlashAttention is the only kernel allowed, why it does not in torch's words): what an
    assertion in a job would ask."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                run()
        except RuntimeError:
            reasons = [str(warning.message).split(" (Triggered")[0] for warning in said]
            return False, next((reason for reason in reversed(reasons) if not reason.endswith("because:")), "")
    return True, ""


def slow_path(s, o):
    """{what the caller wrote: {"kernels", "saved", "seconds", "flash", "reason", "error"}}, on the longest sequence."""
    seq, head = max(o.lengths), o.head_dims[0]
    qkv = draw(s, o, seq, head, o.precision)
    right = F.scaled_dot_product_attention(*qkv, is_causal=True).detach()
    rows, works = {}, {}
    for name, options in masks(seq, qkv[0].shape[1], s.device).items():
        run = lambda inputs=qkv, options=options: F.scaled_dot_product_attention(*inputs, **options)  # noqa: E731
        works[name] = lambda run=run: torch.autograd.grad(run(), qkv, right)
        flash, reason = only_flash(run)
        rows[name] = {
            "kernels": kernel_names(run),
            "saved": saved(run, qkv, nn.Identity()),
            "flash": flash,
            "reason": reason,
            "error": ((run() - right).abs().max() / right.abs().max()).item(),
        }
    for name, samples in in_turn(s, works, o.rounds, "masks").items():
        rows[name]["seconds"] = statistics.median(samples)
    return rows


# --- FP8 that is slower -----------------------------------------------------------------------------------------------


def slow_fp8(s, o):
    """(name of the GPU, {width: {way: predicted seconds}}, {(width, way): measured seconds}, empty without FP8)."""
    able = kernels_fp8.has_fp8(s.device)
    device = (reported_as(torch.cuda.get_device_name(s.device)) if able else None) or DEVICES[ROOFLINE]
    rows = {width: matmul_seconds(device, o.fp8_tokens, width, width) for width in o.fp8_sides}
    measured = kernels_fp8.by_shape(s, o.fp8_tokens, o.fp8_sides, o.rounds) if able else {}
    return device.name, rows, measured
