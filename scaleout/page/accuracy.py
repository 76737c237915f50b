"""`{accuracy}`: the errors of predicted step times, compared with published ones, as a picture and as tables.

`{accuracy} picture`, or a table by `program`, `series`, `size` of the model, `gpus`, or the `worst` rows. The numbers
are those of tests/published/steps_judged.json: of each series, by constants that it did not make. `labs` is the table
of labs/results/judged.json: the labs' steps, as a profile of the same machine predicted them (tools/judge_labs.py).
Fine-tuning runs have their tables in `accuracy_runs`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from docutils import nodes

from scaleout.draw import errors
from scaleout.page import accuracy_runs
from scaleout.page.tables import ROOT, MarkdownDirective
from scaleout.spec.devices import DEVICES
from scaleout.spec.program import PROGRAMS
from scaleout.timing import band as bands
from scaleout.words.tables import markdown
from scaleout.writeup.drawings import drawing

LABS = ROOT / "labs" / "results" / "judged.json"
JUDGED = ROOT / "tests" / "published" / "steps_judged.json"
FAMILIES = {"ampere": ("c1", "A100"), "hopper": ("c6", "H100, H200"), "blackwell": ("c3", "B200"),
            "cdna3": ("c4", "MI300X")}  # fmt: skip
LIMIT = 0.4  # of the picture's axis
# Series by what they are called in the sources.
NAMES = {"kempner sweep": "KempnerForge, sweep", "kempner configs": "KempnerForge, layouts",
         "kempner weak": "KempnerForge, weak scaling", "kempner 175b": "KempnerForge, 175B",
         "torchtitan": "torchtitan", "torchtitan 2024-12": "torchtitan, December 2024",
         "torchtitan fused": "torchtitan, pull request 355", "torchao": "torchao",
         "ibm 2024-02": "IBM, February 2024", "ibm 2024-03": "IBM, March 2024", "ibm 2024-05": "IBM, May 2024",
         "tinyllama": "TinyLlama", "llm-foundry": "MosaicML llm-foundry", "dgxc": "NVIDIA dgxc-benchmarking",
         "narayanan": "Narayanan et al. 2021", "korthikanti": "Korthikanti et al. 2022",
         "simumax": "SimuMax"}  # fmt: skip
SIZES = ((1e9, "under 1 billion"), (1e10, "1 to 10 billion"), (1e11, "10 to 100 billion"),
         (1e13, "100 billion and more"))  # fmt: skip
COUNTS = ((8, "up to 8"), (64, "9 to 64"), (512, "65 to 512"), (10**6, "513 and more"))
WORST = 12


def rows() -> list[dict]:
    """Every published step, with `error`, of the prediction by constants that its series did not make."""
    judged = json.loads(JUDGED.read_text(encoding="utf-8"))
    table_rows = []
    for values in judged["rows"]:
        row = dict(zip(judged["columns"], values, strict=True))
        table_rows.append(row | {"error": row["apart"] / row["measured"] - 1})
    return table_rows


def ninth(values: Iterable[float]) -> float:
    """What nine of ten values are at most, without their signs."""
    return bands.ninth(map(abs, values))


def summary(group: list[dict]) -> list[str]:
    """Rows, median, nine of ten, the worst, and the share predicted too fast."""
    error = [row["error"] for row in group]
    return [
        str(len(group)),
        f"{median(map(abs, error)):.1%}",
        f"{ninth(error):.1%}",
        f"{max(error, key=abs):+.0%}",
        f"{100 * sum(value < 0 for value in error) / len(error):.0f}%",
    ]


HEAD = ["Steps", "Median", "Nine of ten within", "Worst", "Too fast"]


def grouped(
    word: str,
    key: Callable[[dict], str],
    order: Iterable[str] | None = None,
    of: list[dict] | None = None,
    head: Sequence[str] = HEAD,
) -> str:
    """A table with a line a group, and one for all. of: rows with `error`, all published steps if not given."""
    groups: dict[str, list[dict]] = {name: [] for name in order or ()}
    all_rows = rows() if of is None else of
    for row in all_rows:
        groups.setdefault(key(row), []).append(row)
    lines = [[name, *summary(group)] for name, group in groups.items() if group]
    return markdown([word, *head], [*lines, ["**all**", *summary(all_rows)]], (word,))


def _step(limits, value: float) -> str:
    return next(words for limit, words in limits if value <= limit)


def _series(row: dict) -> str:
    """Who measured, and on which cards."""
    name = row["series"].removesuffix(" A100").removesuffix(" H100").removesuffix(" B200").removesuffix(" MI300X")
    return f"{NAMES.get(name, name)}, {DEVICES[row['device']].name}"


TABLES = {
    "program": lambda: grouped("Program", lambda row: PROGRAMS[row["program"]].label,
                               [program.label for program in PROGRAMS.values()]),
    "series": lambda: grouped("Series", _series),
    "size": lambda: grouped("Parameters", lambda row: _step(SIZES, row["parameters"]), [words for _, words in SIZES]),
    "gpus": lambda: grouped("GPUs", lambda row: _step(COUNTS, row["gpus"]), [words for _, words in COUNTS]),
    "worst": lambda: worst(),
    "labs": lambda: labs(),
    **accuracy_runs.tables(grouped),
}  # fmt: skip


def worst() -> str:
    """The rows that are farthest off."""
    farthest = sorted(rows(), key=lambda row: -abs(row["error"]))[:WORST]
    return markdown(
        ["Series", "Job", "Measured", "Predicted", "Off"],
        [
            [
                _series(row),
                job_words(row),
                f"{row['measured']:.3g} s",
                f"{row['apart']:.3g} s",
                f"{row['error']:+.0%}",
            ]
            for row in farthest
        ],
        ("Series", "Job"),
    )


def labs() -> str:
    """The labs' steps by lab and number of processes, and all: how far predicted seconds were off."""
    table = json.loads(LABS.read_text(encoding="utf-8"))
    groups: dict[tuple[str, str], list[dict]] = {}
    for values in table["rows"]:
        row = dict(zip(table["columns"], values, strict=True))
        off = {"error": row["predicted"] / row["measured"] - 1}
        for key in ((row["lab"], str(row["processes"])), ("**all**", "")):
            groups.setdefault(key, []).append(off)
    last = groups.pop(("**all**", ""))
    lines = [[*key, *summary(group)] for key, group in [*sorted(groups.items()), (("**all**", ""), last)]]
    return markdown(["Lab", "Processes", *HEAD], lines, ("Lab",))


def job_words(row: dict) -> str:
    """A job in a few words."""
    size = row["parameters"]
    amount = f"{size / 1e9:.3g}B" if size >= 1e9 else f"{size / 1e6:.0f}M"
    return f"{amount} on {row['gpus']:,}, {row['tokens']:,} tokens, {row['layout']}"


def picture(width: float) -> str:
    """A lane a program."""
    all_rows, lanes = rows(), []
    for program in PROGRAMS.values():
        group = [row for row in all_rows if row["program"] == program.name]
        if group:
            band = ninth(row["error"] for row in group)
            words = f"{len(group)} steps, nine of ten within {100 * band:.0f}%"
            dots = tuple(
                errors.Dot(
                    row["error"],
                    FAMILIES[row["family"]][0],
                    f"{_series(row)}: {job_words(row)}: {row['error']:+.0%}",
                )
                for row in group
            )
            lanes.append(errors.Lane(SHORT.get(program.name, program.label), words, band, dots))
    return errors.draw(width, lanes, LIMIT, list(FAMILIES.values()))


SHORT = {"megatron": "Megatron with TE"}


class Accuracy(MarkdownDirective):
    """The directive."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        for path in (JUDGED, LABS, accuracy_runs.JUDGED):
            self.env.note_dependency(str(path))
        kind = self.arguments[0]
        if kind == "picture":
            return [nodes.raw("", drawing(picture)._repr_html_(), format="html")]
        if kind not in TABLES:
            raise self.error(f"{kind} is none of picture, {', '.join(TABLES)}")
        self.content_lines = [TABLES[kind]()]
        return super().run()

    def lines(self) -> list[str]:
        return self.content_lines


DIRECTIVES = {"accuracy": Accuracy}
