"""The choices of the view `finetune`, and what follows: the job, its memory, what else fits on the same GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from scaleout.memory import allocator
from scaleout.memory import job as memory
from scaleout.memory.accounts import Account
from scaleout.spec import frameworks
from scaleout.spec.devices import DEVICES, Device
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import Shape, unpriced
from scaleout.timing.band import Band, band
from scaleout.timing.job import Step, step
from scaleout.views import base
from scaleout.views.choices import name_of, shape_of

GPUS = (1, 2, 4, 8)
METHODS = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}
SEQS = tuple(512 * 2**k for k in range(7))  # tokens of a sequence
BATCHES = tuple(2**k for k in range(7))  # sequences of a micro-batch
RANKS = (4, 8, 16, 32, 64, 128, 256)
PASSES = (1, 2, 4, 8, 16, 32)  # micro-batches of a step on each GPU
LAYOUTS = {"ddp": "a copy on each (DDP)", "fsdp": "sharded (FSDP)", "offload": "FSDP, offloaded to CPU"}
PRECISIONS = {"bf16": "all in bf16", "autocast-bf16": "fp32, autocast to bf16"}
RUNS = {"huggingface": "Hugging Face", "liger": "Hugging Face with Liger", "compiled": "torchtune, compiled",
        "eager": "torchtune"}  # fmt: skip
OPERATIONS = {
    "huggingface": "transformers",
    "liger": "liger",
}  # of the recipe; of torchtune the book's, which are alike
# Liger's kernels make norms, rotary positions and activations one each: as many as a block of fused ones has.
LIGER = replace(PROGRAMS["huggingface"], fused=True, kernels=PROGRAMS["compiled"].kernels)
PAGED = "paged-"  # begins the names of bitsandbytes' optimizers whose states CUDA moves to the host when it must
OPTIMIZERS = {"adamw": "AdamW", "adamw-8bit": "AdamW, 8 bits", "paged-adamw-8bit": "AdamW, 8 bits, paged",
              "adafactor": "Adafactor", "lion": "Lion", "lion-8bit": "Lion, 8 bits", "muon": "Muon",
              "momentum": "SGD with momentum", "sgd": "SGD"}  # fmt: skip
ANYWHERE = {name: words for name, words in OPTIMIZERS.items() if name not in ("adafactor", "muon")}  # FSDP prices them
TARGETS = {"all": "all linear layers", "attention": "q, k, v and o", "q+v": "q and v", "mlp": "the MLP"}
UNQUANTIZED = {"compute": "16 bits", "fp32": "fp32 (PEFT prepares it)"}
ONE_MATRIX = ("phi3", "gpt_neox", "falcon")  # families with qkv_proj or query_key_value (transformers 5.24, models/*)
LARGEST = 4096  # sequences of a micro-batch that are tried
VERDICTS = ("fits", "may fit", "does not fit")  # of `allocator.verdict`


class Cell(NamedTuple):
    """A sequence length and a micro-batch. verdict: one of VERDICTS, "" where the model has no positions for it; rate:
    tokens per second of all GPUs, 0 where it does not fit."""

    seq: int
    batch: int
    verdict: str
    rate: float


def most(fits: Callable[[int], bool], limit: int = LARGEST) -> int:
    """The largest number up to about the limit that fits, where a larger one never fits better; 0 where 1 does not."""
    low, high = 0, 1
    while high <= limit and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class Setting(base.Setting, remembered=512):
    """Controls by name. model: a name or a config.json; method: a key of METHODS; batch: sequences of a micro-batch on
    one GPU; passes: micro-batches of a step; layout: a key of LAYOUTS; precision: of full fine-tuning; rank and
    targets: of adapters; unquantized: dtype of what QLoRA leaves out, embeddings, norms and head."""

    model: str
    device: str
    gpus: int
    method: str
    seq: int
    batch: int
    checkpointing: str
    loss: str
    optimizer: str
    rank: int
    passes: int
    layout: str
    precision: str
    program: str
    targets: str
    unquantized: str

    @classmethod
    def of(cls, params: dict) -> Setting:
        """A config.json that is pasted is the model."""
        return super().of(params | {"model": params.get("config") or params["model"]})

    # --- the job ----------------------------------------------------------------------------------------------------

    @cached_property
    def shape(self) -> Shape:
        return shape_of(self.model)

    @property
    def name(self) -> str:
        return name_of(self.model)

    @property
    def card(self) -> Device:
        return DEVICES[self.device]

    @property
    def tokens(self) -> int:
        """Tokens of a sequence: no more than a table of positions has rows."""
        return self.shape.tokens(self.seq)

    @property
    def adapter(self) -> str:
        return "none" if self.method == "full" else self.method

    @property
    def sharded(self) -> bool:
        """Whether FSDP shards the weights; on one GPU there is nothing to shard, only to offload."""
        return self.layout == "offload" or (self.layout == "fsdp" and self.gpus > 1)

    @property
    def runs(self) -> str:
        """The program that is priced: Liger's kernels for Llama's modules, and for others as without them."""
        llamas = self.shape.llama and not self.shape.features.family
        return "huggingface" if self.program == "liger" and not llamas else self.program

    @cached_property
    def recipe(self) -> Recipe:
        """As transformers' Trainer with PEFT, or torchtune, trains it. PEFT has fp32 adapters under autocast, a base
        in 16 bits (autocast_adapter_dtype); torchtune, and FSDP, whose shards are of one dtype, have both in bf16."""
        theirs, precision = self.runs in OPERATIONS, self.precision
        if self.adapter != "none":
            precision = "autocast-bf16" if theirs and not self.sharded else "bf16"
        optimizer = self.optimizer.removeprefix(PAGED)
        recipe = Recipe(
            precision,
            optimizer,
            foreach=False,
            fused_update=optimizer == "adamw"
            and not self.paged,  # the default of transformers' Trainer since torch 2.8
            paged=self.paged,
            checkpointing=self.checkpointing,
            adapter=self.adapter,
            adapter_rank=self.rank,
            adapter_targets="q+k+v" if self.targets == "q+v" and self.fused else self.targets,
            unquantized=self.unquantized,
            loss="chunked" if self.runs == "liger" else self.loss,
            operations=OPERATIONS.get(self.runs, "book"),
            compiled=self.runs == "compiled",
            buckets="beside" if self.gpus > 1 and not self.sharded else "none",
        )
        if self.sharded and precision == "autocast-bf16":  # as Accelerate has it
            trained = frameworks.trained(PROGRAMS["huggingface"], Layout(dp=self.gpus, zero=3), recipe)
            return replace(trained, operations=recipe.operations)
        return recipe

    @property
    def fused(self) -> bool:
        """Whether q, k and v are one matrix in the program's modules, which an adapter stands beside as a whole."""
        return self.runs in OPERATIONS and self.shape.features.family in ONE_MATRIX

    @property
    def paged(self) -> bool:
        return self.optimizer.startswith(PAGED)

    @cached_property
    def job(self) -> Job:
        layout = Layout(dp=self.gpus, zero=3 if self.sharded else 0, micro_batches=self.passes)
        replicas = Replicas(offload="parameters" if self.layout == "offload" else "none")
        nodes, program = cluster(1, self.gpus, self.card.link), PROGRAMS.get(self.runs, LIGER)
        return Job(self.shape, self.tokens, self.card, nodes, self.batch, layout, self.recipe, program, replicas)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What of the model is neither in its memory nor in its time."""
        return unpriced(self.shape, self.recipe.operations)

    # --- its memory and its time ------------------------------------------------------------------------------------

    @cached_property
    def account(self) -> Account:  # ValueError, in one line, for what is not priced
        return memory.fullest(self.job)

    @cached_property
    def refusal(self) -> str:
        """Why this cannot be, or is not priced, in one line; "" where it is."""
        try:
            self.account  # noqa: B018
        except ValueError as error:
            return str(error)
        return ""

    @property
    def peak(self) -> int:
        """Bytes of a GPU."""
        return self.account.peak_bytes

    @cached_property
    def usable(self) -> int:
        """Bytes that tensors may take on a GPU."""
        return allocator.usable(self.card.memory_bytes)

    @property
    def host_fits(self) -> bool:
        """Whether the host has memory for what is offloaded."""
        return allocator.host_fits(sum(self.account.host.values()), self.gpus)

    @cached_property
    def verdict(self) -> str:
        """One of VERDICTS."""
        if not self.host_fits:
            return VERDICTS[-1]
        return allocator.verdict(self.peak, self.card.memory_bytes)

    @property
    def fits(self) -> bool:
        return self.verdict == VERDICTS[0]

    @cached_property
    def step(self) -> Step:
        return step(self.job)

    @property
    def rate(self) -> float:
        """Tokens per second of all GPUs."""
        return self.step.tokens_per_second

    @cached_property
    def band(self) -> Band:
        return band(self.job)

    # --- what else there is -----------------------------------------------------------------------------------------

    @cached_property
    def largest(self) -> int:
        """The most sequences of a micro-batch that fit, 0 where not even one does."""
        return most(lambda batch: self.other(batch=batch).fits)

    @property
    def standing(self) -> Setting:
        """The same setting for every cell of its grid."""
        return self.other(seq=SEQS[0], batch=1)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every sequence length at every micro-batch, row by row from the smallest batch. Longer sequences and larger
        batches need more memory, so that only the edges of what fits are looked for."""
        if self != self.standing:
            return self.standing.cells
        edges = [self._edge(VERDICTS[:1]), self._edge(VERDICTS[:2])]
        return tuple(self._cell(row, column, edges) for row in range(len(BATCHES)) for column in range(len(SEQS)))

    def _edge(self, verdicts: tuple[str, ...]) -> list[int]:
        """For each sequence length, how many of BATCHES are given one of these verdicts."""
        edge, count = [], len(BATCHES)
        for seq in SEQS:
            while count and self.other(seq=seq, batch=BATCHES[count - 1]).verdict not in verdicts:
                count -= 1
            edge.append(count)
        return edge

    def _cell(self, row: int, column: int, edges: list[list[int]]) -> Cell:
        seq, batch = SEQS[column], BATCHES[row]
        if self.shape.tokens(seq) < seq:
            return Cell(seq, batch, "", 0.0)
        place = next((i for i, edge in enumerate(edges) if row < edge[column]), 2)
        return Cell(seq, batch, VERDICTS[place], self.other(seq=seq, batch=batch).rate if place < 2 else 0.0)

    @property
    def methods(self) -> dict[str, Setting]:
        """The same for each method."""
        return {method: self.other(method=method) for method in METHODS}

    @property
    def layouts(self) -> dict[str, Setting]:
        """The same for each layout that is priced and is another: on one GPU DDP and FSDP are one."""
        names = ("ddp", "offload") if self.gpus == 1 else LAYOUTS
        every = {name: self.other(layout=name) for name in names}
        return {name: one for name, one in every.items() if not one.refusal}
