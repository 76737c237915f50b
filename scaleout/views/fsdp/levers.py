"""Which control to change: what makes a setting of the view `fsdp` fit, and what makes it fast."""

from __future__ import annotations

from math import ceil, log2

from scaleout.memory.allocator import verdict
from scaleout.spec.hardware import NODE_HOST_BYTES
from scaleout.views.lever import Change
from scaleout.words.amounts import count, listed, quantity

# Throughput is healthy if a GPU waits no longer than this share of a step.
EXPOSED = 0.1
WORTH = 0.2  # of the peak, that checkpointing must save to be named
MOST_GPUS = 1024  # GPUs of the view
LONGEST = 64  # sequences of the view
NOTHING = "No control here helps further."
TRIES = 3  # levers that are priced for one sentence

# Kinds of the account by what relieves them
GROUPS = {
    "states": ("weights", "master", "optimizer", "gradients"),
    "units": ("gathered", "whole gradients", "buffers"),
    "activations": ("activations",),
    "logits": ("logits", "temporaries"),
}


def lever(setting) -> str:
    """What to try, with its effect. setting: of the view, with its `account`, `time`, `fits` and `waiting`."""
    return _hurrying(setting) if setting.fits else _fitting(setting)


def roomier(setting) -> tuple[str, float] | None:
    """GiB at the peak under full checkpointing, and by what share the step grows; None where that saves little."""
    tried = setting.other(checkpointing="full")
    if tried.account.peak_bytes > (1 - WORTH) * setting.account.peak_bytes:
        return None
    return _gib(tried), tried.time.seconds / setting.time.seconds - 1


# --- memory -----------------------------------------------------------------------------------------------------


def _fitting(setting) -> str:
    """Moves the lever of what is largest at the peak, until it fits."""
    tried, pulled = setting, []
    for _ in range(TRIES):
        lever = _for_memory(tried)
        if lever is None:
            break
        tried = tried.other(**lever[1])
        pulled.append(lever[0])
        if tried.fits:
            return f"Try **{listed(pulled)}**: {_gib(tried)} GiB."
    if not pulled:
        return f"{NOTHING} Split the layers themselves (tensor or pipeline parallel)."
    if not tried.host_fits:
        return "Nothing here frees enough CPU memory: shard over more GPUs."
    may = verdict(tried.account.peak_bytes, tried.card.memory_bytes) == "may fit"
    still = "which may fit" if may else "still too much"
    return f"Even {listed(pulled)} {'give' if len(pulled) > 1 else 'gives'} {_gib(tried)} GiB, {still}."


def _for_memory(setting) -> Change | None:
    """Where the host is too small, more of them; else the first lever of the group of kinds that holds most at the
    peak, or of the next one where it has none left."""
    peak = setting.account.peak
    if not setting.host_fits and setting.over == "all" and setting.ranks < MOST_GPUS:
        enough = 8 * setting.ranks * sum(setting.account.host.values()) / NODE_HOST_BYTES  # in nodes of 8
        gpus = min(MOST_GPUS, 2 ** ceil(log2(max(2 * setting.ranks, enough))))
        return f"{gpus:,} GPUs", {"ranks": gpus}
    if not setting.host_fits and setting.over == "node" and setting.ranks > 8:
        return "sharding over all GPUs", {"over": "all"}
    sizes = {group: sum(peak.get(kind, 0) for kind in kinds) for group, kinds in GROUPS.items()}
    excess = sum(peak.values()) - setting.usable
    for group in sorted(sizes, key=lambda group: -sizes[group]):
        lever = _LEVERS[group](setting, sizes[group], excess)
        if lever:
            return lever
    return None


def _states(setting, peak_bytes: float, excess: float) -> Change | None:
    if setting.over == "node" and setting.ranks > 8:
        return "sharding over all GPUs", {"over": "all"}
    if setting.ranks < MOST_GPUS:
        left = max(peak_bytes - excess, 0.3 * setting.card.memory_bytes)
        gpus = min(MOST_GPUS, setting.ranks * 2 ** max(1, ceil(log2(peak_bytes / left))))
        return f"{gpus:,} GPUs", {"ranks": gpus}
    return ("CPU offload", {"offload": True}) if not setting.offload else None


def _units(setting, peak_bytes: float, excess: float) -> Change | None:
    if setting.wrap == "model":
        return "wrapping by block", {"wrap": "block"}
    if setting.reshard != "yes":
        return "resharding after forward", {"reshard": "yes"}
    if setting.prefetch > 1:
        return "prefetching one unit", {"prefetch": 1}
    if setting.precision == "fp32":
        return "bf16", {"precision": "bf16"}
    return ("wrapping by matrix", {"wrap": "layer"}) if setting.wrap != "layer" else None


def _activations(setting, peak_bytes: float, excess: float) -> Change | None:
    if setting.checkpointing != "full":
        return "full checkpointing", {"checkpointing": "full"}
    return _fewer(setting, peak_bytes, excess)


def _fewer(setting, filled: float, excess: float) -> Change | None:
    """Fewer sequences, as many as there is room for in what they fill; then shorter ones."""
    if setting.batch > 1:
        filled = sum(setting.account.peak[kind] for kind in GROUPS["activations"] + GROUPS["logits"])
        batch = max(1, min(setting.batch - 1, int(setting.batch * (filled - excess) / filled)))
        return f"{count(batch, 'sequence')} per GPU", {"batch": batch}
    if setting.tokens >= 512:
        return f"{setting.tokens // 4:,} tokens per sequence", {"seq": setting.tokens // 4}
    return None


_LEVERS = {"states": _states, "units": _units, "activations": _activations, "logits": _fewer}


# --- time -------------------------------------------------------------------------------------------------------


def _hurrying(setting) -> str:
    """The first lever that brings the waiting down to EXPOSED and still fits, or the strongest of those priced."""
    priced, levers = [], _for_speed(setting)[:TRIES]
    for words, change in levers:
        tried = setting.other(**change)
        if "batch" in change and not tried.fits:
            words, tried = f"{words} with full checkpointing", tried.other(checkpointing="full")
        if tried.waiting < setting.waiting - 0.01 and tried.fits:
            if tried.waiting <= EXPOSED:
                return f"Try **{words}**: it waits for {tried.waiting:.1%}, with {_gib(tried)} GiB."
            priced.append((tried.waiting, words, tried))
    if not priced:
        return f"None of these helps and fits: {', '.join(words for words, _ in levers)}." if levers else NOTHING
    waiting, words, tried = min(priced, key=lambda item: item[0])
    return f"**{words[0].upper()}{words[1:]}** helps most: {waiting:.1%}, {_gib(tried)} GiB."


def _for_speed(setting) -> list[Change]:
    """Levers that this setting has not moved, the likeliest first."""
    line = setting.line
    times = max(2, 2 ** ceil(log2(max(1e-9, setting.waiting * setting.time.seconds / EXPOSED / line.compute_seconds))))
    batch = min(LONGEST, setting.batch * times)
    levers = (
        (setting.prefetch == 0, "prefetching one unit", {"prefetch": 1}),
        (setting.wrap == "model", "wrapping by block", {"wrap": "block"}),
        (setting.offload, "no CPU offload", {"offload": False}),
        (batch > setting.batch, f"{batch} sequences per GPU", {"batch": batch}),
        (setting.over == "all" and setting.ranks > 8, "hybrid sharding in groups of 8", {"over": "node"}),
        (setting.link != "node-ib", "nodes of 8 with InfiniBand", {"link": "node-ib"}),
        (setting.precision == "bf16", "reducing in bf16", {"precision": "bf16-reduce"}),
        (setting.reshard == "yes", "no reshard after forward", {"reshard": "no"}),
        (setting.wrap in ("layer", "size"), "wrapping by block", {"wrap": "block"}),
    )
    return [(words, change) for possible, words, change in levers if possible]


def _gib(setting) -> str:
    return quantity(setting.account.peak_bytes / 2**30)
