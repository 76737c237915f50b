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


def extend(spans, step, options):
    """(the spans of a run that goes on after a step with the options `options`, a line for each changed option)."""
    previous = spans[-1]["options"] if spans else {}
    lines = [
        f"{name} {previous[name]} -> {value} from step {step + 1:,} on"
        for name, value in options.items()
        if previous.get(name, value) != value
    ]
    return (spans if spans and not lines else [*spans, {"after": step, "options": options}]), lines


def words(spans, name):
    """The value of an option, or its values: "fp32 to step 200, bf16 after it"."""
    parts = [] if not spans[0]["after"] else [(0, "not known")]  # begun by an older version of the book
    for span in spans:
        value = span["options"].get(name, "not known")
        if not parts or parts[-1][1] != value:
            parts.append((span["after"], value))
    ends = [f" to step {start:,}" for start, _ in parts[1:]] + [" after it" if len(parts) > 1 else ""]
    return ", ".join(value + end for (_, value), end in zip(parts, ends, strict=True))


def notes(spans):
    """One line (list of str) for each option that has changed."""
    lines = {name: words(spans, name) for name in spans[-1]["options"]}
    return [f"{name}: {line}" for name, line in lines.items() if " to step " in line]
