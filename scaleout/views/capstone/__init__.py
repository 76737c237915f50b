"""The scaling explorer: how a GPU spends its time, and the hours, energy and price of a training run, from 1 GPU to
thousands, in strong and in weak scaling."""

from __future__ import annotations

from dataclasses import dataclass

from scaleout.draw.svg import WIDE
from scaleout.spec.hardware import GPU_WATTS
from scaleout.spec.transformer import PRESETS
from scaleout.timing import scaling
from scaleout.timing.price import EXAMPLE, run_cost
from scaleout.timing.starts import starts
from scaleout.views import base, guess, more, number, play, select, slider
from scaleout.views.base import kept
from scaleout.views.capstone import lower, picture, record, words
from scaleout.views.capstone.levers import MOST_GPUS, SEQUENCES
from scaleout.views.capstone.published import comparable_series
from scaleout.views.capstone.speedup import Curves, Setting, curves, fits, peak_bytes_of
from scaleout.views.choices import LINKS, NAMES, cards, programs

TITLE = "From one GPU to thousands"

BILLION = 1e9  # tokens that hours, energy and price are of
MODELS = tuple(key for key in PRESETS if key != "zero-1t")
PROCESS_COUNTS = (1, 2, 4, 8)  # numbers of processes that a reader can type a rate for

CONTROLS = (
    guess("512 H100s in 64 nodes train Llama 3 8B on 512 sequences of 4,096 tokens per step. How many times as fast as "
          "**one** H100 on the same batch?", "strong_speed_up", lo=0, hi=512, step=1),
    play("world", "GPUs", 512, 1, MOST_GPUS, log=True),
    slider("batch", "Global batch, sequences", 512, 1, SEQUENCES, log=True),
    select("sharding", "Sharding", "full", [("full", "FSDP"), ("hybrid", "in each node"), ("ddp", "DDP")]),
    select("link", "Connected by", "node-ib", [(key, words) for key, (*_, words) in LINKS.items()]),
    *more(
        select("model", "Model", "llama-3-8b", [(key, NAMES[key]) for key in MODELS]),
        select("device", "GPU", "h100-sxm", cards()),
        slider("each", "Sequences per micro-batch, at most", 4, 1, 64, log=True),
        select("seq", "Tokens per sequence", "4096", [(str(2**k), f"{2**k:,}") for k in range(9, 15)]),
        select("checkpointing", "Checkpointing", "none", [("none", "none"), ("full", "full: recompute each block")]),
        select("program", "Run by", "compiled", programs("compiled", "eager")),
        select("lower", "The lower chart shows", "price", list(lower.NAMES.items())),
        number("price", "Price per GPU-hour", EXAMPLE.gpu_hour, 0.0, 1000.0, 0.1, unit=EXAMPLE.currency,
               help="An example, not a provider's price: look up what you would pay."),
        number("watts", "Power per GPU, with its share of the node", GPU_WATTS, 0.0, 10_000.0, 10.0, unit="W",
               help="At most an eighth of a DGX H100. The GPU's own limit is only a part of it."),
        *(number(f"own_{n}", f"Your own run on {n} process{'es' if n > 1 else ''}", 0.0, 0.0, 1e9, 1.0,
                 unit="tokens/s",
                 help="0: none. All on one batch; your fewest processes count as 100%." if n == 1 else "")
          for n in PROCESS_COUNTS),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Look(base.Setting):
    """What is shown besides the curves: the lower chart with its price and power, the reader's own rates."""

    lower: str
    price: float
    watts: float
    own_1: float
    own_2: float
    own_4: float
    own_8: float

    @property
    def rates(self) -> tuple[float, float]:
        """(watts, price)."""
        return self.watts, self.price

    @property
    def typed(self) -> dict[int, float]:
        """Tokens per second of the reader's own runs, by processes."""
        return {n: rate for n in PROCESS_COUNTS if (rate := getattr(self, f"own_{n}"))}


def draw(params: dict, width: int, reader_run: dict | None = None) -> dict:
    """Both panels at the chosen number of GPUs; beneath, time, price, energy or MFU."""
    setting, look = Setting.of(params), Look.of(params)
    result = _result(setting, look)
    run = record.point(reader_run, look.typed) if reader_run else None
    drawn = picture.picture(setting, curves(setting), result["values"], look.lower, width, run)
    return {"svg": drawn, **result}


def advice(params: dict) -> str:
    """What limits the run or keeps it from fitting, and the change that helps."""
    setting = Setting.of(params)
    return words.advice(setting, _result(setting, Look.of(params))["values"])


measured = record.measured


def locked(params: dict, width: int) -> str:
    """The batch, and the axes."""
    return picture.locked(Setting.of(params), Look.of(params).lower, width)


def slips(params: dict) -> list[tuple[float, str]]:
    """Speed-ups that likely mistakes give, of the opening setting."""
    return words.slips(draw(params, WIDE)["values"])


@kept
def _result(setting: Setting, look: Look) -> dict:
    """What is the same at every width."""
    scaled, (batch, count) = curves(setting), setting.passes(setting.world)
    published = comparable_series(setting, batch * count * setting.tokens)
    points = own_points(look.typed)
    values = _values(setting, scaled, look.rates) | {
        "own": [[n, share] for n, share in points.items()],
        "published": [[n, share] for n, share in published.on_curve(scaled.weak).items()] if published else [],
        "published_by": published.name if published else None,
        "lower_chart": {
            kind: [[n, amount] for n, amount in amounts(getattr(scaled, kind), look.lower, look.rates)]
            for kind in ("strong", "weak")
        },
    }
    return {
        "sentence": words.sentence(setting, values),
        "values": values,
        "law": words.law(setting, values),
        "levers": _levers(setting, values),
    }


def own_points(rates: dict[int, float]) -> dict[int, float]:
    """Efficiency by number of processes of the reader's own runs; the fewest count as 1. {} without any."""
    return scaling.efficiency(rates) if rates else {}


def amounts(sizes: dict, lower_kind: str, rates: tuple[float, float]) -> list[tuple[int, float]]:
    """(GPUs, what the lower chart shows) of a curve."""
    if lower_kind == "mfu":
        return [(m, 100 * point.mfu) for m, point in sizes.items()]
    field = {"hours": "hours", "price": "price", "energy": "kwh"}[lower_kind]
    return [(m, getattr(run_cost(BILLION, point.tokens_per_second, m, *rates), field)) for m, point in sizes.items()]


def _levers(setting: Setting, values: dict) -> dict:
    """Controls that change nothing now, and why."""
    one_each = setting.batch <= 2 and values["sequences_each"] == 1  # on one GPU alone passes cost nothing
    return {"each": {"off": "No GPU has a second sequence."}} if one_each else {}


@kept
def first_bytes(setting: Setting) -> float:
    """Seconds of a step that communication takes however few its bytes, of a GPU whose work stays."""
    return starts(setting.job_of(setting.world, *setting.passes(setting.world)))


def _values(setting: Setting, scaled: Curves, rates: tuple[float, float]) -> dict:
    n = setting.world
    amounts: dict[str, float] = {}
    for name, point in (("strong", scaled.strong[n]), ("weak", scaled.weak[n])):
        cost = run_cost(BILLION, point.tokens_per_second, n, *rates)
        amounts |= {
            f"{name}_{key}": value
            for key, value in {
                "efficiency": point.efficiency,
                "speed_up": point.efficiency * n,
                "seconds": point.seconds,
                "tokens_per_second": point.tokens_per_second,
                "mfu": point.mfu,
                "exposed": point.exposed,
                "waits": point.shares[2],
                "idle": 1 - point.busy,
                "hours": cost.hours,
                "gpu_hours": cost.gpu_hours,
                "kwh": cost.kwh,
                "price": cost.price,
            }.items()
        }
    busy = min(n, setting.batch)
    return amounts | {
        "weak_compute_seconds": point.compute,
        "weak_start_seconds": (first := min(first_bytes(setting), point.wire)),
        "weak_byte_seconds": point.wire - first,
        "peak_gb": peak_bytes_of(setting, setting.sharding) / 1e9,
        "fits": fits(setting, setting.sharding),
        "busy": busy,
        "sequences_each": setting.passes(n)[0] * setting.passes(n)[1],
        "alone_price": run_cost(BILLION, scaled.strong[1].tokens_per_second, 1, *rates).price,
        "weak_batch": scaled.weak_batch[n],
        "curve": [[m, scaled.strong[m].efficiency, scaled.weak[m].efficiency] for m in scaled.weak],
    }
