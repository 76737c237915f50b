"""Every size of every lab, and every command that the book names, up to its first training step or measured thing.

Models are shrunk to a block of width 32, and messages to a few bytes, by the labs' own flags; the text, the sequences,
the batch, the validation and all else stay as the tier or the command has them. A flag that parses is not enough: a
default that dies before step 1 is what this looks for.
"""

import importlib
import json
import re
import subprocess
import sys

import matplotlib
import pytest
import ready
import repo
from commands import LAUNCH, commands, modules
from lab_runs import ENVIRONMENT, TORCHRUN

from scaleout.lab import corpus, ddp_scaling, options
from scaleout.train import worlds

sys.path.insert(0, str(repo.ROOT / "labs"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("forked_python")]
PAGES = [
    "book/running.md",
    "book/how-to-use.md",
    "book/troubleshooting.md",
    "book/planner.md",
    "README.md",
    "labs/README.md",
]
PAGES += sorted(
    path.relative_to(repo.ROOT).as_posix()
    for folder, kind in (("labs/launch", "*"), ("labs", "*.py"), ("book/instructor", "*.md"), ("notebooks", "*.ipynb"))
    for path in (repo.ROOT / folder).glob(kind)
    if path.is_file()
)
MODEL = ["--layers", "1", "--hidden", "32", "--heads", "1"]
JOB = [*MODEL, "--ff", "32"]
SHRUNK = {
    "architecture": [*MODEL, "--injected-ms", "20"],
    "bottlenecks": [*MODEL, "--injected-ms", "20", "--matmuls", "2", "--additions", "4"],
    "budget": MODEL,
    "memory": MODEL,
    "ddp": MODEL,
    "fsdp": MODEL,
    "slow_link": MODEL,
    "capstone": JOB,
    "scaling": JOB,
    "tensor": ["--layers", "1", "--hidden", "32", "--heads", "4"],
    "recompute": MODEL,
    "collectives": ["--rounds", "3", "--smallest", "64", "--largest", "4096", "--factor", "64"],
    "calibrate": [
        "--seconds",
        "0.01",
        "--largest-mb",
        "0.1",
        "--largest-matrix",
        "64",
        "--tokens",
        "16",
        "--hidden",
        "16",
        "--seq",
        "8",
        "--head",
        "4",
        "--out",
        "machine.json",
    ],
    "pipeline": ["--layers", "4", "--hidden", "32", "--heads", "1", "--stage-ms", "1"],
    "preflight": [],
    "zero": MODEL,
    "precision": MODEL,
    "kernels": ["--seqs", "16,32", "--head-sizes", "16", "--heads", "2", "--rounds", "2", "--no-compile"],
    "mesh": ["--layers", "2", "--hidden", "32", "--heads", "4"],
}
CONFIG = repo.ROOT / "tests" / "ranks" / "small_llama.json"  # what --model is tried with
NO_SIZES = ("hang", "hang_job", "tour")  # tests/ranks/test_hang.py and test_tour.py run them
PLACES = ("--folder", "--save", "--out", "--resume", "--checkpoint-every")  # of what is kept: one of each kind will do
COUNTS = ("--steps", "--gpus")  # of what no first step depends on
MEASURES = ("collectives", "calibrate")  # train nothing
ENDS = {
    ("fsdp", "accelerate-naive"): "end",
    ("ddp", "--inject"): "end",
    ("memory", "--fake"): "end",
    ("pipeline", "both-send"): "end",
    ("zero", "--fault"): "end",
    ("zero", "deepspeed-2"): "ValueError: --via deepspeed-2 needs the package deepspeed",
    ("fsdp", "accelerate"): "ValueError: Accelerate takes its FSDP2 path on GPUs only",
    ("tensor", "kv-copies"): "ValueError: --fault kv-copies needs more processes than key-value heads",  # four
    ("mesh", "tp=4,pp=2"): "ValueError: dp 1 x cp 1 x tp 4 x pp 2 is 8 ranks, there are 2: ",
    ("mesh", "tp=2,pp=2"): "ValueError: dp 1 x cp 1 x tp 2 x pp 2 is 4 ranks, there are 2: ",
    ("capstone", "tp=2,pp=2"): "ValueError: --layout tp=2,pp=2: dp 1 x cp 1 x tp 2 x pp 2 is 4 ranks, there are 2",
    ("mesh", "--fault"): "end",
    ("tensor", "--fault"): "end",
    ("recompute", "--fault"): "end",
    ("kernels", "recompile"): "end",
    ("kernels", "fp8"): "end",
    ("architecture", "{path}"): "ValueError: {path}: the name must end in .json",  # the chapter makes it up
    ("architecture", "--score"): "ValueError: --score verdicts.txt: cannot be read",
}


def started(world, lab, words):
    """[(processes, lab, words)] of the shrunk launches, on one process or two, that a command comes down to."""
    if lab == "scaling":
        reads = {"--read", "--predict"} & set(words)  # runs nothing, and takes no size
        o, words, job = importlib.import_module("scaling").options([*words, *(() if reads else SHRUNK[lab])])
        runs = () if reads else worlds.plan(o.worlds, o.mode, o.strategies, job.batch)
        most = {(run.world, run.strategy): run for run in sorted(runs, key=lambda run: run.batch) if run.world <= 2}
        return [(run.world, "capstone", worlds.command(run, words, "record.json")) for run in most.values()]
    if lab == "ddp" and "--scaling" in words:
        ddp = importlib.import_module("ddp")
        o = options.parse(ddp.TIERS, "", words, anywhere=True)[1]
        found = {
            (world, each)
            for (_, world), each in ddp_scaling.plan(ddp_scaling.worlds(o.scaling), o.micro_batch).items()
            if world <= 2
        }
        rest = ddp_scaling.passed_words(words)
        return [(world, lab, [*rest, "--brief", "--micro-batch", str(each), *MODEL]) for world, each in sorted(found)]
    if lab in NO_SIZES:
        importlib.import_module(lab.removesuffix("_job")).options(words)
        return []
    if (lab, world) in (("preflight", 1), ("slow_link", 1)) or {"--link", "--placement"} & {
        *words
    }:  # these start processes: two
        world = 2
    # "--save" alone would write among the book's results
    words = [
        "--save=record.json" if word == "--save" and after.startswith("--") else word
        for word, after in zip(words, [*words[1:], "--"], strict=False)
    ]
    shrunk = () if {"--fake", "--model"} & {*words} else SHRUNK[lab]  # fake tensors have sizes only
    words = [str(CONFIG) if word == "config.json" else word for word in words]
    if "both-send" in words:  # stages that send, and compute nothing
        shrunk = shrunk[: shrunk.index("--stage-ms")]
    return [(world, lab, [*words, *shrunk])]


def tiers():
    """Every size of every lab, alone and on two processes."""
    for lab in SHRUNK:
        made = importlib.import_module(lab)
        for tier in getattr(made, "TIERS", options.TIERS):
            for world in (1, 2):
                yield from started(world, lab, ["--tier", tier])


def named():
    """Every command of a page, file or lab."""
    for page in PAGES:
        for launcher, lab, words in commands(page):
            yield from started(1 if launcher == ["python"] else 2, lab, words)


def kind(case):
    """What two commands share of which one is enough: all but where a run is kept and how much there is of it."""
    world, lab, words = case
    words = words[2:] if words[:2] == ["--tier", "smoke"] else words  # what it is without
    kept = [
        word
        for word, before in zip(words, ["", *words], strict=False)
        if word.split("=")[0] not in PLACES
        and before not in (*PLACES[:4], *COUNTS)
        and not (before == PLACES[4] and not word.isdigit())
    ]
    return world, lab, *kept, "--folder" in words


@pytest.fixture(scope="module")
def reached(forked_python, tmp_path_factory):
    """[(processes, lab, words, how it ended, what it said)] of all, in two launches."""
    folder, rows = tmp_path_factory.mktemp("cases"), []
    every = {kind(case): case for case in sorted([*tiers(), *named()], key=lambda case: len(case[2]))}
    for world in (1, 2):
        cases = [case for case in every.values() if case[0] == world]
        (folder / "cases.json").write_text(json.dumps([case[1:] for case in cases]))
        launcher = [*TORCHRUN, "2"] if world == 2 else []
        done = subprocess.run(
            [sys.executable, *launcher, "tests/ranks/specimen_first_step.py", str(folder / "cases.json")],
            cwd=repo.ROOT,
            capture_output=True,
            text=True,
            timeout=420,
            env=ENVIRONMENT
            | {"XDG_CACHE_HOME": str(folder), "LAB_DEVICE": "cpu", "MPLCONFIGDIR": matplotlib.get_cachedir()},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout.splitlines()[-1])
        rows += [(*case, *row) for case, row in zip(cases, found, strict=True)]
    return rows


def right(lab, words, how, said):
    """Whether a case ended as it has to on a CPU."""
    if lab == "preflight":  # FIX where GPUs are asked for, after all was tried
        return how in ("end", "SystemExit: 1") and re.search(r"all-reduce over 2 ranks +ok", said)
    usual = "end" if lab in MEASURES else "step"
    return how.startswith(next((end for (name, word), end in ENDS.items() if lab == name and word in words), usual))


def test_every_size_and_every_command_comes_to_its_first_step(reached):
    bad = {
        (world, lab, " ".join(words)): how
        for world, lab, words, how, said in reached
        if not right(lab, words, how, said)
    }
    assert bad == {}
    assert {lab for _, lab, *_ in reached} == {*SHRUNK} - {"scaling"}, "scaling starts capstone"
    large = [(world, lab) for world, lab, words, *_ in reached if "gpu" in words]
    for lab in (
        "memory",
        "ddp",
        "fsdp",
        "tensor",
        "pipeline",
        "zero",
        "mesh",
        "precision",
        "recompute",
        "architecture",
        "bottlenecks",
        "kernels",
        "budget",
        "capstone",
        "collectives",
        "calibrate",
    ):
        assert {1, 2} <= {world for world, name in large if name == lab}, lab


@pytest.mark.parametrize(
    ("lab", "words"),
    [
        ("architecture", ["--mixed"]),
        ("bottlenecks", ["--steps", "2"]),
        ("budget", ["--steps", "2", "--written", "8", "--tune-steps", "2", "--seeds", "2", "--windows", "4"]),
        ("memory", ["--steps", "6"]),
        ("ddp", ["--steps", "5"]),
        ("fsdp", ["--steps", "5"]),
        ("collectives", []),
        ("pipeline", ["--steps", "4"]),
        ("tensor", ["--steps", "5"]),
        ("zero", ["--steps", "5"]),
        ("mesh", ["--steps", "4"]),
        ("precision", ["--steps", "8", "--seeds", "1", "--ways", "bf16"]),
        ("capstone", ["--steps", "6", "--sample", "0"]),
        ("calibrate", []),
        ("kernels", ["--elements", "4096", "--fp8-seq", "256", "--hidden", "32", "--block-seq", "16"]),
    ],
)
def test_a_lab_imports_all_that_it_uses(lab, words, tmp_path):
    bare = ready.folder(bare=True) / "python"
    done = subprocess.run(
        [bare, repo.ROOT / "labs" / f"{lab}.py", *SHRUNK[lab], *words],
        cwd=tmp_path,
        env=ENVIRONMENT | {"LAB_DEVICE": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_no_lab_is_left_out():
    assert {path.stem for path in (repo.ROOT / "labs").glob("*.py")} == {*SHRUNK, *NO_SIZES}


def test_only_sizes_that_read_much_depend_on_the_python_that_runs():
    """What notebooks store, and tests compare, is of the smallest size, and trains on the book's own text."""
    other, small = set(), len(corpus.read())
    for lab in SHRUNK:
        for tier, o in getattr(importlib.import_module(lab), "TIERS", {}).items():
            sequences = getattr(o, "batch", None) or 8 * (getattr(o, "micro_batch", None) or 2)  # on eight ranks
            if getattr(o, "dataset", corpus.SHIPPED) != corpus.SHIPPED:
                other.add((lab, tier))
            elif hasattr(o, "dataset"):
                assert o.steps * sequences * o.seq < (0.3 if tier == "smoke" else 2) * small, (lab, tier)
    assert other == {
        ("capstone", "cpu"),
        *((lab, "gpu") for lab in ("budget", "capstone", "memory", "ddp", "fsdp", "recompute")),
    }
    assert not [
        words
        for page in PAGES
        if page.startswith("notebooks")
        for _, _, words in commands(page)
        if "--dataset" in words and "gpu" not in words
    ]


def test_the_job_says_how_often_it_reads_its_text(reached):
    """At every size, before the first step. The stated number is steps x batch x sequence over the text's bytes."""
    found = {}
    for world, lab, words, _, said in reached:
        tier = words[1] if words[0] == "--tier" else "smoke"
        if lab == "capstone" and not {"--minutes", "tp=2,pp=2"} & set(words):  # later, and on more ranks
            steps, megabytes, times = re.search(
                r"([\d,]+) steps read the ([\d.]+) MB of training text ([\d.]+) times", said
            ).groups()
            found.setdefault((tier, world), (int(steps.replace(",", "")), float(megabytes), float(times)))
    assert set(found) == {(tier, world) for tier in options.TIERS for world in (1, 2)}
    steps, megabytes, times = found["gpu", 2]
    assert steps * 64 * 2048 / (megabytes * 1e6) == pytest.approx(times, rel=0.05)
    assert times < 5, "a billion parameters do not read a few megabytes over and over"


# --- words that are not a lab's -----------------------------------------------------------------------------------


def test_commands_are_found():
    assert (["python"], "preflight", ["--gpus", "2"]) in commands("labs/launch/kaggle.ipynb")
    long = ["--tier", "gpu", "--folder", "runs/capstone", "--resume", "auto", "--checkpoint-every", "auto"]
    assert (["LAB:"], "capstone", [*long, "--save", "runs/capstone/record.json"]) in commands(
        "labs/launch/skypilot.yaml"
    )
    assert (["python"], "preflight", ["--gpus", "8"]) in commands("labs/launch/skypilot.yaml")
    assert ["slurm.sh", "preflight", ["--gpus", "8"]] in [
        [by[-1].split("/")[-1], lab, words] for by, lab, words in commands("book/running.md")
    ]
    assert (["set", "--"], "capstone", long) in commands("labs/launch/two_machines.sh")
    assert "slurm.sh" in next(by for by, _, words in commands("book/running.md") if "runs/capstone-JOB" in words)[0]
    assert [words[3:5] + words[-2:] for _, _, words in commands("labs/launch/slurm.sh") if "--resume" in words] == [
        ["x", "--resume", "--save", "x/record.json"]
    ]
    for page in PAGES:
        assert commands(page) or page not in ("book/running.md", "README.md", "labs/README.md"), page


def test_the_launchers_know_their_words():
    from accelerate.commands.launch import launch_command_parser
    from torch.distributed.run import get_args_parser

    count = 0
    for page in PAGES:
        for launcher, lab, words in commands(page):
            if launcher[0] == "torchrun":
                o = get_args_parser().parse_args([*launcher[1:], f"labs/{lab}.py", *words])
            elif launcher[0] == "accelerate":
                o = launch_command_parser().parse_args([*launcher[2:], f"labs/{lab}.py", *words])
                assert (repo.ROOT / o.config_file).is_file()
            else:
                continue
            assert (o.training_script, o.training_script_args) == (f"labs/{lab}.py", words), page
            count += 1
    assert count > 40


def test_every_launch_file_that_is_named_is_there():
    for page in PAGES:
        for name in re.findall(r"labs/launch/([\w.-]+\w)", repo.text(page)):
            assert (LAUNCH / name).is_file(), f"{page}: {name}"


def test_modules_of_the_package_that_are_commands_run(tmp_path):
    records = [str(path) for path in sorted((repo.ROOT / "labs" / "results" / "capstone").glob("*.json"))]
    found = {
        (module, *words)
        for page in PAGES
        for module, words in modules(page)
        if words and not module.startswith("scaleout.exercises.")
    }  # checkers have tests of their own
    assert {module for module, *_ in found} == {"scaleout.fit", "scaleout.timing.price", "scaleout.writeup"}
    llama = json.loads((repo.ROOT / "tests/published/hugging_face_parameters.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(llama["models"]["Llama 3.2 1B"]["config"]), encoding="utf-8")
    for module, *words in sorted(found):
        left = iter(records)
        words = [
            next(left)
            if (word.endswith(".json") and word != "config.json") or word in ("RECORD", "RECORD...")
            else str(tmp_path / "page.md")
            if word.endswith(".md")
            else word
            for word in words
        ]
        done = subprocess.run(
            [sys.executable, "-m", module, *words], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
        )
        assert done.returncode == 0, (module, words, done.stderr)
