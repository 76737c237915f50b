"""Which options made which steps of a run that was taken up again with other ones. Standard library only.

A span is {"after": step, "options": {flag: value as text}}: what the steps after that one were made with, up to the
next span. A checkpoint carries those of its run.
"""

from scaleout.spec.layout_words import written

NAMES = (
    "lr",
    "warmup",
    "clip",
    "weight_decay",
    "precision",
    "checkpointing",
    "attention",
    "compile",
    "micro_batch",
    "sync_every_pass",
    "wrap",
    "reshard",
    "prefetch",
    "replicas",
    "offload",
)


def options(o, world):
    """{flag: value as text} of what a job may change from one checkpoint to the next. o: a train.options.Options."""
    layout, strategy = o.layout_on(world), o.strategy_on(world)
    strategy = f"{strategy} {written(layout)}" if layout and world > 1 else strategy
    return {"--strategy": strategy} | {f"--{name.replace('_', '-')}": str(getattr(o, name)) for name in NAMES}


def extend(spans, after, now):
    """(the spans of a run that goes on after a step with the options `now`, a line for each option that changes)."""
    before = spans[-1]["options"] if spans else {}
    lines = [
        f"{name} {before[name]} -> {value} from step {after + 1:,} on"
        for name, value in now.items()
        if before.get(name, value) != value
    ]
    return (spans if spans and not lines else [*spans, {"after": after, "options": now}]), lines


def words(spans, name):
    """The value of an option, or its values: "fp32 to step 200, bf16 after it"."""
    parts = [] if not spans[0]["after"] else [(0, "not known")]  # begun by an older version of the book
    for span in spans:
        value = span["options"].get(name, "not known")
        if not parts or parts[-1][1] != value:
            parts.append((span["after"], value))
    ends = [f" to step {after:,}" for after, _ in parts[1:]] + [" after it" if len(parts) > 1 else ""]
    return ", ".join(value + end for (_, value), end in zip(parts, ends, strict=True))


def notes(spans):
    """One line (list of str) for each option that has changed."""
    told = {name: words(spans, name) for name in spans[-1]["options"]}
    return [f"{name}: {line}" for name, line in told.items() if " to step " in line]
