"""Exercises of `architecture` on placement and input: rings over nodes, ranks and nodes, bytes of text, resuming."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip

SPREAD = Choice(
    key="round-robin",
    level=2,
    minutes=4,
    title="Ranks dealt like cards",
    prompt="A job has 32 ranks on **4 nodes of 8 GPUs**. Its layout says: tensor parallelism over 8 ranks (0 to 7, 8 "
    "to 15, and so on), data parallelism over 4 (0, 8, 16, 24; 1, 9, 17, 25; and so on). The scheduler distributes the "
    "ranks **cyclically**: rank r runs on node r mod 4. Which communication crosses nodes now?",
    hints=("On which nodes are ranks 0 to 7?", "On which nodes are ranks 0, 8, 16 and 24?"),
    solution="**Tensor parallelism crosses on every hop, and data parallelism not at all.** Ranks 0 to 7 are on nodes "
    "0, 1, 2, 3, 0, 1, 2, 3, so neighbors in a tensor-parallel ring are never on one node. Ranks 0, 8, 16 and 24 are "
    "all on node 0. It is exactly the wrong way around: tensor parallelism communicates in every block of a model and "
    "needs NVLink, while data parallelism communicates once per step. Nothing fails, and nothing is logged; the job is "
    "several times as slow. In Slurm it is one word: `--distribution=block` in place of `cyclic`.",
    options=(
        Option(
            "tensor",
            "Tensor parallelism on every hop, data on none",
            "Right. The axis that communicates most now uses the slowest links.",
            True,
        ),
        Option(
            "data",
            "Data parallelism on every hop, tensor on none",
            "So it would be with ranks 0 to 7 on one node. Write down the node of each of them.",
        ),
        Option(
            "both",
            "Both, because each group has ranks on all nodes",
            "Ranks 0, 8, 16 and 24 leave the same remainder when divided by 4.",
        ),
        Option(
            "half",
            "Half of the hops of each, as ranks are mixed",
            "Ranks r and r + 1 are never on one node. And ranks r and r + 8?",
        ),
    ),
)

_STUB = '''\
def crossings(ring, node_of):
    """Hops of a ring that lead from one node to another.

    ring: ranks in the order of the ring; the last sends to the first
    node_of: the node of each rank of the job
    """
    return ...
'''
_SOLUTION = """\
def crossings(ring, node_of):
    hops = 0
    for i, rank in enumerate(ring):
        following = ring[(i + 1) % len(ring)]
        hops += node_of[rank] != node_of[following]
    return hops
"""


def crossings(ring: list, node_of: list, closed=True, of=lambda rank, nodes: nodes[rank]) -> int:
    """Hops between nodes. The other arguments each make one mistake."""
    hops = zip(ring, [*ring[1:], *(ring[:1] if closed else [])], strict=False)
    return sum(of(a, node_of) != of(b, node_of) for a, b in hops)


CROSSINGS = Function(
    key="ring-crossings",
    level=2,
    minutes=7,
    title="Hops between nodes",
    prompt="A ring all-reduce sends from each rank to the next one, and from the last to the first. Hops inside a node "
    "use NVLink, and the others use the network. Write `crossings(ring, node_of)`, which counts the hops that lead to "
    "another node. `ring` lists ranks in the order of the ring, and `node_of[rank]` is the node of a rank. A ring of "
    "one rank has no such hop.",
    hints=("Rank `ring[i]` sends to `ring[(i + 1) % len(ring)]`.", "Compare the nodes of both ranks."),
    solution=f"```python\n{_SOLUTION}```\n\nA ring that visits its nodes one after another crosses once per node, "
    "which is the least possible. A ring over ranks in another order may cross on every hop, and then the "
    "network carries eight times as much per node. NCCL orders its rings by topology, within one communicator; which "
    "ranks form a communicator is decided by your layout and your scheduler.",
    function="crossings",
    stub=_STUB,
    reference=crossings,
    cases=(
        ([0, 1, 2, 3], [0, 0, 1, 1]),
        ([0, 2, 1, 3], [0, 0, 1, 1]),
        ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 0, 1, 2, 3]),
        ([0, 8, 16, 24], [rank % 4 for rank in range(32)]),
        ([3], [0, 0, 0, 1]),
        ([0, 1], [0, 1]),
        ([0, 1], [5, 5]),
        ([4, 5, 6, 7, 0, 1, 2, 3], [rank // 4 for rank in range(8)]),
        ([1, 3, 5, 7], [0, 0, 1, 1, 2, 2, 0, 0]),
        ([2, 0, 5, 3, 4, 1], [0, 0, 0, 1, 1, 1]),
        ([0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2]),
        ([9, 1, 8, 0], [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]),
    ),
    mistakes=(
        Mistake(
            "open",
            lambda ring, nodes: crossings(ring, nodes, closed=False),
            "You leave out the hop from the last rank to the first.",
        ),
        Mistake(
            "positions",
            lambda ring, nodes: sum(nodes[i] != nodes[(i + 1) % len(ring)] for i in range(len(ring))),
            "You take positions in the ring for ranks: the ring lists them in an order of its own.",
        ),
        Mistake(
            "nodes",
            lambda ring, nodes: len({nodes[rank] for rank in ring}),
            "You count the nodes that the ring visits. It may visit a node more than once, or stay on one.",
        ),
        Mistake(
            "inside",
            lambda ring, nodes: len(ring) - crossings(ring, nodes),
            "You count the hops that stay inside a node.",
        ),
        Mistake(
            "eight-each",
            lambda ring, nodes: crossings(ring, nodes, of=lambda rank, _nodes: rank // 8),
            "You assume eight ranks per node, in order. The second argument says where each rank is.",
        ),
    ),
    right="The same group of ranks can be a good ring or a bad one, and no error message tells which.",
)

GPUS, TOKENS, WIDTH = 512, 8_000, 4  # of the job; tokens per second and GPU; bytes per token
RATE = Number(
    key="bytes-of-text",
    level=1,
    minutes=2,
    title="Is the disk too slow?",
    prompt=f"**{GPUS} GPUs** each train on **{TOKENS:,} tokens per second**. The text was tokenized before, and each "
    f"token is stored in **{WIDTH} bytes**. The loader falls behind, and somebody suspects the storage, which delivers "
    "10 GB/s. How many bytes per second does the whole job read?",
    hints=("How many tokens does the job use per second?", "And each of them has so many bytes."),
    solution=f"{GPUS} × {TOKENS:,} × {WIDTH} = **{GPUS * TOKENS * WIDTH / 1e6:.1f} MB/s**, which is less than a "
    "thousandth of what the storage delivers. Text is nearly never limited by the bandwidth of a disk. What limits it "
    "is Python that tokenizes, packs and collates, many small reads, or too few worker processes. Images and video are "
    "another matter.",
    value=GPUS * TOKENS * WIDTH,
    unit="MB/s",
    units=("MB/s", "GB/s", "kB/s"),
    dimension="bytes/s",
    slips=(
        Slip("tokens", GPUS * TOKENS, "Those are tokens per second. How many bytes has each?"),
        Slip("one-gpu", TOKENS * WIDTH, "That is what one GPU needs."),
        Slip("one-byte-less", GPUS * TOKENS * 2, "A token takes four bytes here, not two."),
        Slip("bits", GPUS * TOKENS * WIDTH * 8, "Those are bits per second."),
        Slip("divided", GPUS * TOKENS / WIDTH, "You divided by the bytes per token."),
    ),
    right="Compute the bytes before you buy faster storage.",
)

RESUME = Choice(
    key="exact-resume",
    level=2,
    minutes=3,
    title="Resuming in the middle of an epoch",
    prompt="A job shuffles its documents with a seed for each epoch and packs them into sequences of 4,096 tokens; "
    "what is left of a document stays in a buffer for the next sequence. It saves the weights, the optimizer, the "
    "epoch and the **number of sequences** that were used. After a restart it skips that many *documents* of the "
    "epoch. What is wrong?",
    hints=("How many documents does a sequence have?", "What was in the buffer when the job stopped?"),
    solution="**Some text is trained twice, or never.** A document is not a sequence: some fill several, and several "
    "fill one. And the tokens in the buffer at the time of the checkpoint are gone. What has to be saved is the state "
    "of the loader: the epoch, the position in the shuffled order, the offset within the document, the buffer, and the "
    "same for each worker process. `StatefulDataLoader` asks each worker for it. The loss shows nothing of this, which "
    "is why it is tested by comparing the batches, not the loss.",
    options=(
        Option(
            "units",
            "Documents are no sequences, and the buffer is lost",
            "Right. The position has to be saved in the loader's own terms, with what it holds.",
            True,
        ),
        Option(
            "seed",
            "The shuffled order is another one after a restart",
            "The order follows from the seed of the epoch, and the epoch was saved.",
        ),
        Option(
            "optimizer",
            "The optimizer has to be reset with new text",
            "Its state was saved and belongs to the weights. It knows nothing of the text.",
        ),
        Option(
            "nothing",
            "Nothing: on average, the same amount is skipped",
            "On average, perhaps. But which text is trained twice, and which is never seen?",
        ),
    ),
)

EXERCISES = (RATE, SPREAD, CROSSINGS, RESUME)
