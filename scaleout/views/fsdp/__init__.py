"""One step of FSDP: memory over time, what is gathered and computed when, and whether it fits and is fast."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import cast

from scaleout.draw import fsdp_hill, fsdp_life, fsdp_units
from scaleout.memory import allocator
from scaleout.memory.activations import Sizes, block_kept
from scaleout.memory.fsdp import FsdpAccount, fsdp_account
from scaleout.spec import topology
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import program
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.sharding import Sharding, alike
from scaleout.spec.transformer import PRESETS
from scaleout.timing import fsdp_lives
from scaleout.timing.fsdp import volume
from scaleout.timing.fsdp_lives import Life
from scaleout.timing.fsdp_short import ShortTimeline
from scaleout.timing.job import Step, step
from scaleout.views import guess, more, play, select, slider, toggle
from scaleout.views.choices import LINKS, NAMES, NODE, cards, programs
from scaleout.views.fsdp import moments, picture, record, words
from scaleout.views.fsdp.levers import EXPOSED

TITLE = "One step of FSDP"

MODELS = tuple(key for key in PRESETS if key != "zero-1t")
LEAST = 10**8  # parameters of a unit when wrapping by size: the default of torch's size_based_auto_wrap_policy
GIB = 2**30
BLOCKS = 16  # about, whose memory is drawn of those that are alike, by one moment each
WRAPS = {"layer": "matrix", "block": "block", "size": "by size", "model": "model"}
RESHARD = {"yes": "free it", "node": f"keep 1/{NODE}", "no": "keep it"}
SHARD_GROUPS = {"all": "all GPUs", "node": f"each {NODE} GPUs, copies across (hybrid)"}
# What is stored is fp32. Gradients that are reduced in bf16 leave an update as many bytes to move, 28 a parameter, as
# bf16 weights with an fp32 copy.
PRECISION = {"fp32": "fp32", "bf16": "autocast-bf16", "bf16-reduce": "bf16-master"}
_POWERS = [(str(2**k), f"{2**k:,}") for k in range(17)]

CONTROLS = (
    guess("16 H100s train Llama 3 8B in bf16, wrapped block by block, each on 2 sequences of 4,096 tokens. What does "
          "**one GPU** hold at its fullest moment?", "peak_gib", "GiB", lo=0, hi=100, step=1),
    play("moment", "Life of a unit", moments.SHOWN, 0, moments.LAST),
    select("wrap", "A unit is", "block", list(WRAPS.items())),
    select("reshard", "After its forward", "yes", list(RESHARD.items())),
    select("checkpointing", "Checkpointing", "none",
           [("none", "none"), ("selective", "selective"), ("full", "full")]),
    slider("batch", "Sequences per GPU", 2, 1, 64, log=True),
    *more(
        select("model", "Model", "llama-3-8b", [(key, NAMES[key]) for key in MODELS]),
        select("device", "GPU", "h100-sxm", cards()),
        select("ranks", "GPUs (ranks)", "16", _POWERS[:11]),
        select("link", "Joined by", "node-ib", [(key, words) for key, (*_, words) in LINKS.items()]),
        slider("prefetch", "Units gathered ahead", 1, 0, 4),
        select("over", "Shards over", "all", list(SHARD_GROUPS.items())),
        select("seq", "Tokens per sequence", "4096", _POWERS[7:15]),
        select("precision", "Gather, compute and reduce in", "bf16",
               [("fp32", "fp32"), ("bf16", "bf16, reduce in fp32"), ("bf16-reduce", "bf16")]),
        toggle("offload", "Offload shards to the host's memory", False),
        select("program", "Run by", "compiled", programs("compiled", "eager")),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What a reader chose; what follows from it is made once."""

    model: str
    device: str
    ranks: int
    link: str
    wrap: str
    reshard: str
    prefetch: int
    over: str
    batch: int
    seq: int
    checkpointing: str
    precision: str
    offload: bool
    program: str

    @cached_property
    def tokens(self) -> int:
        """Tokens a sequence: no more than a table of positions has rows."""
        return PRESETS[self.model].tokens(self.seq)

    @cached_property
    def job(self) -> Job:
        group = min(self.ranks, NODE) if self.over == "node" else self.ranks
        replicas = Replicas(
            wrap=self.wrap,
            least_parameters=LEAST,
            prefetch=self.prefetch,
            shards=group,
            reshard={"yes": True, "no": False, "node": NODE if group > NODE else True}[self.reshard],
            offload="parameters" if self.offload else "none",
        )
        node_gpus, node_link, adapters, rdma, _ = LINKS[self.link]
        device, gpus = DEVICES[self.device], min(node_gpus, self.ranks)
        return Job(
            PRESETS[self.model],
            self.tokens,
            device,
            topology.cluster(self.ranks // gpus, gpus, device.link, node_link, adapters, rdma),
            self.batch,
            Layout(dp=self.ranks, zero=2 if replicas.reshard is False else 3),
            Recipe(PRECISION[self.precision], checkpointing=self.checkpointing),
            program(self.program),
            replicas,
        )

    @cached_property
    def sharding(self) -> Sharding:
        return self.job.sharding

    @cached_property
    def account(self) -> FsdpAccount:
        """What a rank holds. The link, the device and the program do not matter."""
        return _account(replace(self, link="ib", device="h100-sxm", program="compiled"))

    @property
    def time(self) -> Step:
        return step(self.job)

    @cached_property
    def line(self) -> ShortTimeline:
        """Its lanes, up to the end of the update."""
        return cast("ShortTimeline", self.time.timeline).updated(self.time.parts["update"])

    @property
    def memory_bytes(self) -> int:
        return DEVICES[self.device].memory_bytes

    @property
    def fits(self) -> bool:
        """Whether a GPU has usable memory for it, and its node's host for what is offloaded."""
        return allocator.fits(self.account.peak_bytes, self.memory_bytes) and self.host_fits

    @cached_property
    def host_fits(self) -> bool:
        return allocator.host_fits(sum(self.account.host.values()), self.job.cluster.gpus_per_node)

    @property
    def waiting(self) -> float:
        """Share of the step in which the GPU waits: exposed communication, and the host's update with offload."""
        waiting_seconds = self.line.exposed_seconds + (self.line.update_seconds if self.offload else 0.0)
        return waiting_seconds / self.time.seconds

    # --- what is drawn -----------------------------------------------------------------------------------------------

    @cached_property
    def lives(self) -> tuple[list[Life], int]:
        """Of the units that are drawn, and how many there are."""
        return fsdp_lives.lives(self.line, fsdp_units.ROWS)

    @cached_property
    def life(self) -> Life:
        """Of the unit that is followed: the one half way through the model."""
        rows, count = self.lives
        return next(row for row in rows if row.number == count // 2)

    @cached_property
    def followed(self) -> str:
        return moments.named(self.life.name) if self.lives[1] > 1 else "the one unit, the model"

    @cached_property
    def unit(self) -> fsdp_life.Unit:
        """The unit that is followed, on as many ranks as are drawn."""
        recipe = Recipe(precision="fp32" if self.precision == "fp32" else "bf16")
        z = Sizes(PRESETS[self.model], self.batch, self.tokens, recipe, Layout())
        kept_bytes = sum(block_kept(z, self.checkpointing).values())
        all_bytes = sum(block_kept(z, "none").values())
        ranks = min(fsdp_life.DRAWN, self.sharding.ranks)
        return fsdp_life.Unit(ranks, self.life.regather is None, self.offload, kept_bytes / all_bytes)

    @cached_property
    def rows(self) -> list[fsdp_hill.Placed]:
        """What is held when: of blocks that are alike the fullest moment of each of some."""
        chosen_moments = self.account.sampled(self.account.extra // BLOCKS + 1, self.account.extra > 2)
        return fsdp_hill.placed(chosen_moments, self.line)

    @cached_property
    def _seconds(self) -> list[float]:
        return moments.seconds(self.life, self.line)

    def seconds_at(self, moment: int) -> float:
        return self._seconds[moment]


@lru_cache(maxsize=64)
def known(setting: Setting) -> Setting:
    """The setting that equals this one, with all that has been found of it: for both widths, and each moment."""
    return setting


@lru_cache(maxsize=128)
def _account(setting: Setting) -> FsdpAccount:
    recipe = Recipe(precision="fp32", checkpointing=setting.checkpointing)
    return fsdp_account(PRESETS[setting.model], setting.batch, setting.tokens, recipe, setting.sharding)


def draw(params: dict, width: int, run: dict | None = None) -> dict:
    """The life of a unit, and under one cursor when each is whole and what a GPU holds; the verdict in the sentence."""
    setting, moment = _setting(params), params["moment"]
    result = _result(setting)
    values = {**result["values"], **_at_moment(setting, moment)}
    same_setting = run is not None and record.belongs(run, setting.model, setting.ranks)
    return {**result, "svg": picture.picture(setting, moment, values, width, run, same_setting), "values": values}


measured = record.measured


def advice(params: dict) -> str:
    """The lever worth trying now, with what it gives."""
    setting = _setting(params)
    return words.advice(setting, _result(setting)["values"])


def locked(params: dict, width: int) -> str:
    """A unit's life and what runs when, over an empty plane."""
    return picture.locked(_setting(params), params["moment"], width)


def slips(params: dict) -> list[tuple[float, str]]:
    """Peaks that likely mistakes give, of the opening setting."""
    setting = _setting(params)
    return words.slips(setting, _result(setting)["values"])


def _setting(params: dict) -> Setting:
    fields = {name: value for name, value in params.items() if name != "moment"}
    setting = Setting(**{**fields, "ranks": int(params["ranks"]), "seq": int(params["seq"])})
    if setting.ranks == 1 and not setting.offload:  # nothing is gathered
        setting = replace(setting, prefetch=1)
    return known(setting)


def _at_moment(setting: Setting, moment: int) -> dict:
    """What there is at a moment of the unit's life."""
    seconds, unit = setting.seconds_at(moment), setting.unit
    return {
        "moment": fsdp_life.MOMENTS[moment],
        "moment_said": fsdp_life.caption(unit, moment),
        "moment_seconds": seconds,
        "moment_gib": moments.held_bytes(setting.rows, seconds) / GIB,
        "sent_units": sum(unit.sent(moment)) * (1 - 1 / setting.sharding.ranks),
        "followed": setting.followed,
        "drawn": unit.ranks,
    }


@lru_cache(maxsize=16)  # for both widths, and each moment
def _result(setting: Setting) -> dict:
    """What is the same at every width."""
    values = _values(setting)
    return {
        "sentence": words.sentence(setting, values),
        "values": values,
        "law": words.law(setting, values),
        "levers": _levers(setting, values),
    }


def _levers(setting: Setting, values: dict) -> dict:
    """Controls that change nothing now, and why; and how many units there are to gather ahead."""
    levers = {}
    if setting.ranks <= NODE:
        levers["over"] = {"off": f"{NODE} GPUs or fewer are one group."}
    if values["units"] == 1:
        levers["reshard"] = {"off": "The only unit is the root, which is kept whole."}
        levers["prefetch"] = {"off": "There is one unit: none is ahead of it."}
    elif setting.ranks == 1 and not setting.offload:
        levers["prefetch"] = {"off": "One GPU has nothing to gather."}
    if setting.ranks == 1:
        levers["link"] = {"off": "One GPU is joined to none."}
    return levers


def _values(setting: Setting) -> dict:
    account, time = setting.account, setting.time
    line, moment = setting.line, account.peak_moment
    sent = volume(PRESETS[setting.model], setting.sharding)
    healthy = setting.waiting <= EXPOSED
    verdict = allocator.verdict(account.peak_bytes, setting.memory_bytes) if setting.host_fits else "does not fit"
    return {
        "peak_gib": account.peak_bytes / GIB,
        "peak_gb": account.peak_bytes / 1e9,
        "peak_phase": moment.phase,
        "peak_unit": moment.unit,
        "device_gib": setting.memory_bytes / GIB,
        "usable_gib": allocator.usable(setting.memory_bytes) / GIB,
        "spare_percent": 100 * (1 - account.peak_bytes / allocator.usable(setting.memory_bytes)),
        **{
            f"{name}_gib": sum(moment.held.get(kind, 0) for kind in kinds) / GIB
            for name, (*_, kinds) in fsdp_hill.STACK.items()
        },
        "gathered_most_gib": account.most_bytes("gathered") / GIB,
        "host_gib": sum(account.host.values()) / GIB,
        "host_fits": setting.host_fits,
        "fits": setting.fits,
        "healthy": healthy,
        "verdict": ("healthy" if healthy else "merely fits") if setting.fits else verdict,
        "step_seconds": time.seconds,
        "compute_seconds": line.compute_seconds,
        "communication_seconds": time.communication,
        "exposed_seconds": line.exposed_seconds,
        "beside_seconds": max(0.0, time.parts["exposed data"] - line.exposed_seconds),
        "update_seconds": line.update_seconds,
        "host_seconds": time.parts["host"] + time.parts["stragglers"],
        "exposed_percent": 100 * line.exposed_seconds / time.seconds,
        "waiting_percent": 100 * setting.waiting,
        "overlap_fraction": line.overlap_fraction,
        "tokens_per_second": time.tokens_per_second,
        "mfu": time.mfu,
        "units": sum(times for _, times in alike(PRESETS[setting.model], setting.sharding)),
        "gathers": line.gathers,
        "scatters": line.scatters,
        "sent_gb": sent["total"] / 1e9,
        "ddp_sent_gb": sent["ddp"] / 1e9,
    }
