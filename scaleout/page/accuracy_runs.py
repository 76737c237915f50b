"""The tables of `{accuracy}` about published fine-tuning runs: seconds, memory, and what public calculators say.

The numbers are those of tests/published/fine_tuning_judged.json, which tools/judge_fine_tuning.py writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median

from scaleout.page.tables import ROOT
from scaleout.spec.devices import DEVICES
from scaleout.spec.program import PROGRAMS
from scaleout.timing import band
from scaleout.words.tables import markdown

MODULES = ROOT / "tests" / "published" / "hugging_face_memory.json"
ADAPTERS = ROOT / "tests" / "published" / "adapters_memory.json"
JUDGED = ROOT / "tests" / "published" / "fine_tuning_judged.json"
METHODS = {"full": "all weights", "lora": "LoRA", "qlora": "QLoRA"}
KERNELS = {"plain": "", "kbit": ", norms cast to fp32", "fused": ", Triton kernels",
           "fused lora": ", Triton kernels, fused adapters"}  # fmt: skip
# Series by what their projects are called.
PROJECTS = {"fms-acceleration 2024-11": "IBM fms-acceleration: Mistral 7B, Llama 2 70B",
            "fms-acceleration liger": "IBM fms-acceleration: Llama 3 8B, Liger's loss",
            "fms-acceleration granite": "IBM fms-acceleration: PowerLM 3B", "fsdp_qlora": "Answer.AI fsdp_qlora",
            "qwen": "Qwen: 1.8B to 72B", "torchtune": "torchtune: Llama 3.1 and 3.2",
            "automodel": "NVIDIA NeMo AutoModel",
            "dgxc fine-tuning": "NVIDIA dgxc-benchmarking: Llama 3", "nanogpt": "nanoGPT: GPT-2 124M",
            "lit-gpt": "lit-gpt: Llama 2"}  # fmt: skip
WORST = 12


def runs(what: str) -> list[dict]:
    """The runs whose "seconds" or "gib" were measured and are predicted, with the `error` of the prediction."""
    judged = json.loads(JUDGED.read_text(encoding="utf-8"))
    table = [dict(zip(judged["columns"], values, strict=True)) for values in judged["rows"]]
    return [
        row | {"error": row[f"predicted_{what}"] / row[f"measured_{what}"] - 1}
        for row in table
        if row[f"measured_{what}"] and row[f"predicted_{what}"]
    ]


def calculators() -> list[str]:
    """The public calculators that were asked."""
    columns = json.loads(JUDGED.read_text(encoding="utf-8"))["columns"]
    return columns[columns.index("of_2024_gib") + 1 :]


def method(row: dict) -> str:
    """What is trained, on one GPU or on several."""
    return f"{METHODS[row['method']]}, {'one GPU' if row['gpus'] == 1 else 'several GPUs'}"


ORDER = [f"{words}, {gpus}" for words in METHODS.values() for gpus in ("one GPU", "several GPUs")]


def setting(row: dict) -> str:
    """What ran, and where: what decides how well its memory is predicted."""
    if not row["of_2024_gib"]:
        return project(row).partition(":")[0] + READ.get(row["memory"], "")
    if row["gpus"] > 1:
        return SETTINGS[2 if row["method"] == "full" else 3]
    return SETTINGS[row["loss"] == "fused"]


SETTINGS = ["IBM, one GPU", "IBM, one GPU, one kernel for the loss", "IBM, FSDP, all weights", "IBM, FSDP, adapters"]
# Of memory that is not the peak of what torch allocated.
READ = {"reserved": " (reserved memory)", "unsaid": " (not said which memory)"}


def project(row: dict) -> str:
    return PROJECTS[row["series"]]


def program(row: dict) -> str:
    return PROGRAMS[row["program"]].label


def run_words(row: dict) -> str:
    """A run in a few words."""
    gpus = f"{row['gpus']} × {DEVICES[row['device']].name}" if row["gpus"] > 1 else DEVICES[row["device"]].name
    model = row["model"].title().replace("Gpt", "GPT").replace("Powerlm", "PowerLM")
    words = f"{model}, {METHODS[row['method']]}{KERNELS[row['kernels']]}"
    return f"{words}, {row['batch']} × {row['tokens']:,} tokens on {gpus}"


def memory() -> str:
    """The memory of the runs by what ran, and with what programs of 2024 kept where that is known."""
    found = runs("gib")
    groups = dict.fromkeys([*SETTINGS, *map(setting, found)])
    lines = []
    for name, members in [(name, [row for row in found if setting(row) == name]) for name in groups]:
        errors = [row["error"] for row in members]
        then = [row["of_2024_gib"] / row["measured_gib"] - 1 for row in members if row["of_2024_gib"]]
        lines.append([name, str(len(members)), *spread(errors, 1), *(spread(then, 1)[::2] if then else ["", ""])])
    lines.append(["**all**", str(len(found)), *spread([row["error"] for row in found], 1), "", ""])
    head = ["What ran", "Runs", "Median", "Nine of ten within", "Worst", "2024: median", "Worst"]
    return markdown(head, lines, ("What ran",))


def families() -> str:
    """The account beside what modules of transformers and PEFT allocate on fake tensors, by family and adapter."""
    groups: dict[str, list[float]] = {}
    for row in json.loads(MODULES.read_text(encoding="utf-8"))["rows"]:
        error = max(row["predicted"].values()) / max(row["measured"].values()) - 1
        groups.setdefault(row["model"].partition(",")[0], []).append(error)
    for row in json.loads(ADAPTERS.read_text(encoding="utf-8"))["rows"]:
        name = f"PEFT's {METHODS[row['recipe']['adapter']]}"
        groups.setdefault(name, []).append(row["predicted"] / row["measured"] - 1)
    every = [error for errors in groups.values() for error in errors]
    lines = [[name, str(len(errors)), *spread(errors, 2)] for name, errors in [*groups.items(), ("**all**", every)]]
    return markdown(["Family", "Steps", "Median", "Nine of ten within", "Worst"], lines, ("Family",))


def worst(found: list[dict], what: str, unit: str) -> str:
    """The runs whose seconds or memory are farthest off."""
    return markdown(
        ["Project", "Run", "Measured", "Predicted", "Off"],
        [
            [
                project(row).partition(":")[0],
                run_words(row),
                f"{row[f'measured_{what}']:.3g} {unit}",
                f"{row[f'measured_{what}'] * (1 + row['error']):.3g} {unit}",
                f"{row['error']:+.0%}",
            ]
            for row in sorted(found, key=lambda row: -abs(row["error"]))[:WORST]
        ],
        ("Project", "Run"),
    )


def remaining() -> list[dict]:
    """The runs with memory, with the error that is left where it is known what a program of 2024 kept."""
    return [
        row | {"error": row["of_2024_gib"] / row["measured_gib"] - 1} if row["of_2024_gib"] else row
        for row in runs("gib")
    ]


def beside() -> str:
    """Public calculators beside the book's account, each on the runs for which it has an answer."""
    lines = []
    for name in calculators():
        answered = [row for row in runs("gib") if row[name]]
        theirs = [row[name] / row["measured_gib"] - 1 for row in answered]
        own = [row["error"] for row in answered]
        lines.append([name, str(len(answered)), *spread(theirs), f"{median(map(abs, own)):.1%}"])
    head = ["Calculator", "Runs", "Median", "Nine of ten within", "Worst", "The book, same runs"]
    return markdown(head, lines, ("Calculator",))


def spread(errors: list[float], digits: int = 0) -> list[str]:
    """The median, what nine of ten are within, and the worst."""
    sizes = [abs(error) for error in errors]
    return [f"{median(sizes):.{digits}%}", f"{band.ninth(sizes):,.{digits}%}", f"{max(errors, key=abs):+,.{digits}%}"]


def tables(grouped: Callable) -> dict[str, Callable[[], str]]:
    """The tables by the word after `{accuracy}`; grouped: as in `accuracy`, which imports this module."""
    return {
        "runs": lambda: grouped("What is trained", method, ORDER, runs("seconds")),
        "run-projects": lambda: grouped("Project", project, list(PROJECTS.values())[:-1], runs("seconds")),
        "run-worst": lambda: worst(runs("seconds"), "seconds", "s"),
        "run-memory": memory,
        "families": families,
        "run-memory-worst": lambda: worst(remaining(), "gib", "GiB"),
        "calculators": beside,
    }
