"""Exercises of `fsdp` on sharding that did not happen: equal losses, and what was really built."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.exercises.engine import Choice, Option


@dataclass(frozen=True)
class Built:
    """What rank 0 of a job on two processes had after `prepare`. Bytes; losses of its first steps."""

    processes: int
    kind: str
    wrapper: str
    model_bytes: int
    shard_bytes: int
    moments: int
    losses: tuple[float, ...]


# Accelerate 1.15.0 on CPUs, two processes of torchrun, asked for FSDP2 with cpu=True and without it, and for DDP; a
# test runs them again.
BUILT = {
    "cpu": Built(2, "MULTI_CPU", "DistributedDataParallel", 33_280, 33_280, 66_560, (1.0932, 0.9463, 1.0077, 0.9223)),
    "plain": Built(1, "NO", "Sequential", 33_280, 33_280, 66_560, (1.0932, 0.9623, 1.046, 0.9778)),
    "ddp": Built(2, "MULTI_CPU", "DistributedDataParallel", 33_280, 33_280, 66_560, (1.0932, 0.9463, 1.0077, 0.9223)),
}
_CPU, _PLAIN = BUILT["cpu"], BUILT["plain"]


def _losses(built: Built) -> str:
    return ", ".join(f"{loss:.4f}" for loss in built.losses)


def _table(built: Built) -> str:
    rows = (
        ("`num_processes`, `distributed_type`", f"{built.processes}, {built.kind}"),
        ("type of the prepared model", f"`{built.wrapper}`"),
        ("bytes of the model, in fp32", f"{built.model_bytes:,}"),
        ("bytes of the parameters on rank 0", f"{built.shard_bytes:,}"),
        ("bytes of AdamW's moments on rank 0", f"{built.moments:,}"),
        ("losses on rank 0", _losses(built)),
    )
    return "\n".join(f"- {name}: {words}" for name, words in rows)


_SOURCE = (
    "Source: `accelerate/state.py` of 1.15.0, `AcceleratorState`: the branch that turns a plugin into "
    "`DistributedType.FSDP` is entered for MULTI_GPU and its relatives. MULTI_CPU is not in that list. See it "
    "yourself: `torchrun --nproc-per-node 2 labs/fsdp.py --via accelerate-naive`."
)

SILENT = Choice(
    key="silent-fallback",
    level=3,
    minutes=4,
    title="The losses agree",
    prompt="On a laptop two processes ran `Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin("
    "fsdp_version=2))`. No warning, no error. Afterwards:\n\n"
    f"{_table(_CPU)}\n\nPlain DDP on the same data gave {_losses(BUILT['ddp'])}. What happened?",
    hints=("What would rank 0 of two hold if the model were sharded?", "Which of these lines differs from DDP's?"),
    solution="**Accelerate ignored the plugin and built DDP.** The culprit is `cpu=True`: it makes the job "
    f"`MULTI_CPU`, and Accelerate looks at the FSDP plugin only on GPUs and other accelerators. Rank 0 holds "
    f"{_CPU.shard_bytes:,} of {_CPU.model_bytes:,} bytes, where a shard would have {_CPU.model_bytes // 2:,}. The "
    f"losses agree to the last digit because DDP *is* right. They cannot tell you who computed them.\n\n{_SOURCE}",
    options=(
        Option(
            "ddp",
            "Accelerate ignored the plugin: this is plain DDP",
            f"Right: {_CPU.shard_bytes:,} of {_CPU.model_bytes:,} bytes on one of two ranks is no shard.",
            True,
        ),
        Option(
            "works",
            "Nothing is wrong: FSDP gives the losses of DDP",
            f"It should. But a shard of two has {_CPU.model_bytes // 2:,} bytes, and rank 0 holds "
            f"{_CPU.shard_bytes:,}.",
        ),
        Option(
            "gathered",
            "It is sharded; the bytes were read while gathered",
            f"Then the moments at least would be halved: AdamW only ever sees shards. There are {_CPU.moments:,} "
            f"bytes of them, two for each of the {_CPU.model_bytes:,}.",
        ),
        Option(
            "one-process",
            "Each process trained alone, on the same data",
            f"The job has {_CPU.processes} processes that know of each other, and DDP around the model averages "
            "their gradients.",
        ),
        Option(
            "no-shard",
            "It is FSDP with NO_SHARD, as the model is small",
            "FSDP2 has no such strategy, and no size below which it does not shard. The wrapper is "
            "DistributedDataParallel.",
        ),
        Option(
            "root-only",
            "It is sharded as one unit, whose root stays whole",
            "The root is kept from its forward to its backward. Between steps a rank has its shard, and the "
            "moments are of the shard.",
        ),
    ),
)

ALONE = Choice(
    key="silent-single",
    level=3,
    minutes=3,
    title="The losses fall",
    prompt="The colleague takes `cpu=True` away: `Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin("
    "fsdp_version=2))`, started by `torchrun --nproc-per-node 2` on the same machine without a GPU. Both processes "
    f"print the same:\n\n{_table(_PLAIN)}\n\nThe losses fall on both. What happened now?",
    hints=(
        "How many processes does Accelerate know of, and how many did torchrun start?",
        "Who chose the data of each process?",
    ),
    solution="**Two processes trained alone, each the whole model, on the same data.** Without a GPU and without "
    "`cpu=True` Accelerate finds no distributed setting that it knows, and goes on as a single process: no process "
    "group, no wrapper, and `process_index` 0 in both, so that both take rank 0's part of the data. The job does half "
    "of its work twice. Neither exit code nor loss curve says so.",
    options=(
        Option(
            "alone",
            "Two single processes, each a whole model on the same data",
            f"Right: num_processes is {_PLAIN.processes}, nothing is wrapped, and nobody talks to anybody.",
            True,
        ),
        Option(
            "ddp",
            "DDP again, without a word: Accelerate ignored the plugin",
            "The model's type is Sequential, without any wrapper, and num_processes is 1: no gradient is averaged.",
        ),
        Option(
            "fsdp",
            "FSDP2 at last: fully_shard keeps the class, so no wrapper shows",
            "It changes the class to one with FSDP in front of its name, and parameters become DTensors. "
            f"{_PLAIN.shard_bytes:,} of {_PLAIN.model_bytes:,} bytes on one rank is no shard.",
        ),
        Option(
            "world-one",
            "FSDP2 over one rank: torchrun started only one process",
            "Both processes printed. torchrun started two; Accelerate in each does not know of the other.",
        ),
        Option(
            "agree",
            "Gradients were averaged, as the losses are the same on both",
            "With their own data the losses of two ranks differ, averaged or not. They are the same because both "
            "take the same data.",
        ),
    ),
)

ASSERTION = Choice(
    key="fallback-assertion",
    level=3,
    minutes=3,
    title="The assertion that catches it",
    prompt="Which **one** assertion, made on every rank right after `prepare`, would have stopped both runs above, and "
    "would pass where the model is really sharded over two ranks?",
    hints=("Go through the two tables: which line is as it would be with FSDP?", "What is it that FSDP is there for?"),
    solution="**The bytes of this rank's parameters, against the model's bytes over the ranks.** It asks for what FSDP "
    f"is there for: {_CPU.model_bytes // 2:,} of {_CPU.model_bytes:,} bytes, up to padding. Both runs hold all "
    f"{_CPU.model_bytes:,}. Count collectives too, all-gathers and reduce-scatters, and you also know that it works "
    "during the step. The book's labs assert both on every path.",
    options=(
        Option(
            "shard-bytes",
            "This rank's parameters are half of the model's bytes",
            "Right, up to padding: it measures what was promised, whoever was to build it.",
            True,
        ),
        Option(
            "losses",
            "The losses agree with those of one process on all the data",
            "The first run passes: DDP's losses agree as well. Parity says that the sums are right, not who holds "
            "what.",
        ),
        Option(
            "world",
            "accelerator.num_processes is 2, as torchrun was told",
            "That stops the second run. The first has two processes, and does not shard.",
        ),
        Option(
            "plugin", "The plugin was given, and its fsdp_version is 2", "That is what was asked for. Both runs asked."
        ),
        Option(
            "wrapped",
            "The prepared model is of another class than before",
            "In the first run it is: DistributedDataParallel. A wrapper there is; the question is which.",
        ),
        Option(
            "equal-weights",
            "After some steps the whole weights are equal on both ranks",
            "They are in both runs: DDP keeps copies equal, and two processes with the same data and seed stay "
            "equal by themselves.",
        ),
    ),
)

EXERCISES = (SILENT, ALONE, ASSERTION)
