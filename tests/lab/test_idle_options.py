"""An option that would change nothing is refused by its name, and so is a value that nothing can come of: before any
work, with nothing printed and nothing written."""

import importlib
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import repo
import samples
from cases import refused
from refused import WORK

from scaleout.lab import join, options, start
from scaleout.records import profiles

IDLE = [
    ("memory", 1, ["--fake", "gpt2", "--save"], "--fake runs by itself: leave out --save"),
    ("memory", 1, ["--fake", "7b", "--layers", "2", "--steps", "9"], "leave out --layers and --steps"),
    ("memory", 1, ["--fake", "7b", "--snapshot", "x.pickle", "--machine", "m.json"], "leave out --machine and --sna"),
    (
        "ddp",
        2,
        ["--inject", "tiny-buckets", "--save"],
        "--save: a run with a fault makes no Record: leave out --fa",
    ),
    ("ddp", 2, ["--inject", "tiny-buckets", "--steps", "9"], "--inject runs by itself: leave out --steps"),
    ("ddp", 1, ["--scaling", "1,2", "--inject", "tiny-buckets"], "--inject runs by itself: leave out --scaling"),
    ("ddp", 1, ["--scaling", "1,2", "--trace", "t.json"], "--scaling runs by itself: leave out --trace"),
    ("ddp", 1, ["--scaling", "2,3", "--micro-batch", "1"], "2 processes do not divide 3"),
    ("ddp", 1, ["--scaling", "two"], "--scaling two: give numbers"),
    ("ddp", 2, ["--thin"], "--thin is about the file of --trace: add --trace FILE.json, or leave out --thin"),
    ("fsdp", 2, ["--sweep", "--timeline"], "--sweep runs by itself: leave out --timeline"),
    ("fsdp", 2, ["--via", "accelerate-naive", "--steps", "9"], "--via accelerate-naive runs by itself: leave out"),
    ("fsdp", 2, ["--least-parameters", "9"], "--wrap block runs by itself: leave out --least-parameters"),
    ("tensor", 2, ["--fault", "no-backward-reduce", "--steps", "9"], "--fault runs by itself: leave out --steps"),
    ("tensor", 1, ["--link", "--via", "torch"], "--link runs by itself: leave out --via"),
    ("tensor", 1, ["--link", "--fault", "kv-copies"], "--fault runs by itself: leave out --link"),
    ("mesh", 1, ["--link", "--order", "tp,pp,dp"], "--link runs by itself: leave out --order"),
    ("mesh", 8, ["--search", "--layout", "tp=8"], "--search runs by itself: leave out --layout"),
    ("mesh", 8, ["--fault", "data", "--steps", "9"], "--fault runs by itself: leave out --steps"),
    ("pipeline", 2, ["--fault", "both-send", "--trace", "t.json"], "--fault both-send runs by itself: leave out"),
    ("pipeline", 2, ["--fault", "head", "--steps", "9"], "--fault head runs by itself: leave out --steps"),
    ("zero", 2, ["--fault", "clip", "--steps", "9"], "--fault runs by itself: leave out --steps"),
    ("precision", 1, ["--fault", "overflow", "--histogram"], "--fault runs by itself: leave out --histogram"),
    ("precision", 1, ["--fault", "overflow", "--compile", "--seeds", "3"], "leave out --compile and --seeds"),
    ("recompute", 1, ["--fault", "router", "--steps", "9"], "--fault runs by itself: leave out --steps"),
    ("recompute", 1, ["--compile", "--precision", "autocast-bf16"], "--compile runs by itself: leave out --prec"),
    ("kernels", 1, ["--fault", "fp8", "--ways", "naive"], "--fault runs by itself: leave out --ways"),
    ("kernels", 3, [], "--heads 4: 3 processes do not divide them: use a multiple of 3"),
    ("collectives", 1, ["--plot", "p.svg"], "one process sends nothing: start with torchrun --nproc-per-node 2"),
    ("collectives", 1, ["--own", "5,1"], "one process sends nothing: start with torchrun --nproc-per-node 2"),
    ("capstone", 1, ["--minutes", "1", "--steps", "9"], "--minutes fixes the number of steps: leave out --steps, or"),
    ("capstone", 2, ["--strategy", "ddp", "--wrap", "layer"], "--strategy ddp shards nothing and does not use -"),
    ("capstone", 2, ["--strategy", "ddp", "--reshard", "false"], "does not use --reshard: leave that out, or use"),
    ("capstone", 2, ["--strategy", "ddp", "--prefetch", "2", "--offload"], "does not use --prefetch and --offload: "),
    ("capstone", 1, ["--strategy", "one", "--replicas", "2"], "--strategy one shards nothing and does not use --r"),
    ("capstone", 2, ["--least-parameters", "9"], "--least-parameters is about --wrap size, and this is --wrap block"),
    ("capstone", 1, ["--keep", "3"], "--keep needs a place: add --folder FOLDER"),
    ("capstone", 1, ["--resume", "3"], "--resume needs a place: add --folder FOLDER"),
    ("capstone", 1, ["--folder", "r", "--checkpoint-every", "none", "--keep", "3"], "--keep is about checkpoints, and"),
    ("capstone", 1, ["--folder", "r", "--checkpoint-every", "3", "--mtbf-hours", "9"], "--mtbf-hours is about --check"),
]
NOTHING = [
    *(
        (name, 1, ["--dataset", "f.txt"], "the dataset holds 6 byte(s): it must be longer than one sequence, ")
        for name in (
            "memory",
            "ddp",
            "fsdp",
            "tensor",
            "mesh",
            "pipeline",
            "zero",
            "precision",
            "recompute",
            "slow_link",
        )
    ),
    ("tensor", 1, ["--hidden", "1", "--heads", "1"], "--hidden is 1: it must be from 2"),
    ("precision", 1, ["--hidden", "1", "--heads", "1"], "--hidden is 1: it must be from 2"),
    ("capstone", 1, ["--resume", "7", "--folder", "new"], "--resume 7: new has no checkpoint of that step: use auto"),
    ("capstone", 1, ["--inject", "kill:0:0"], "--inject: there is no step 0: this job has the steps 1 to 300"),
    ("capstone", 1, ["--inject", "nan:301"], "--inject: there is no step 301: this job has the steps 1 to 300"),
    ("capstone", 1, ["--inject", "full:6"], "--inject full: strikes while a checkpoint is written, and"),
    ("capstone", 1, ["--inject", "kill:0:saving:6"], "--inject kill: strikes while a checkpoint is written"),
    ("capstone", 1, ["--inject", "kill:1:6", "--folder", "new"], "there is no rank 1 among 1"),
    ("capstone", 1, ["--warmup", "301"], "--warmup 301 is more than --steps 300: the learning rate would never reach"),
    ("capstone", 1, ["--sample", "1e9"], "--sample is 1000000000: it must be from 0 to 100000"),
    ("capstone", 1, ["--folder", "loop"], "--folder loop: is a file, or cannot be written to: choose another folder"),
    ("capstone", 1, ["--folder", "loop/run"], "--folder loop/run: is a file, or cannot be written to"),
    ("capstone", 1, ["--save", "loop/r.json"], "loop/r.json: cannot be written: choose a file"),
    ("memory", 1, ["--plot", "loop.svg"], "loop.svg: cannot be written: choose a file"),
    ("memory", 1, ["--dataset", "loop"], "dataset loop: no such file or folder"),
    *(
        (name, 1, [flag, " "], f"argument {flag}: needs a value that is not empty")
        for name, flag in (
            ("memory", "--fake"),
            ("ddp", "--scaling"),
            ("fsdp", "--sweep"),
            ("tensor", "--link"),
            ("mesh", "--layout"),
            ("pipeline", "--schedules"),
            ("precision", "--ways"),
            ("kernels", "--seqs"),
            ("collectives", "--own"),
            ("capstone", "--inject"),
            ("calibrate", "--out"),
            ("slow_link", "--rates"),
            ("zero", "--machine"),
            ("recompute", "--dataset"),
        )
    ),
]


@pytest.mark.parametrize(("name", "world", "words", "said"), [*IDLE, *NOTHING], ids=lambda value: str(value)[:40])
def test_what_would_change_nothing_is_refused_before_any_work(name, world, words, said, refusal):
    assert said in refusal(name, words, world)


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("hang", ["--read", ""], "argument --read: needs a value that is not empty"),
        ("hang", ["--out", ""], "argument --out: needs"),
        ("hang", ["--check", "1:8", ""], "argument --check: needs"),
        ("hang", ["--read", "d", "--check", "1:8", "d"], "--check runs by itself: leave out --read"),
        ("hang", ["--read", "d", "--seed", "3"], "--read runs by itself: leave out --seed"),
        ("scaling", ["--predict", ""], "argument --predict: needs a value that is not empty"),
        ("scaling", ["--save", ""], "argument --save: needs"),
        ("scaling", ["--worlds", ""], "argument --worlds: needs"),
        ("scaling", ["--read", "--predict", "4:9"], "--read runs by itself: leave out --predict"),
        ("scaling", ["--read", "--worlds", "1,2"], "--read runs by itself: leave out --worlds"),
        ("scaling", ["--read", "--layers", "2"], "--read runs nothing and does not use --layers 2: leave it out"),
        ("scaling", ["--predict", "4:9", "--plot", "x.svg"], "--predict runs by itself: leave out --plot"),
        ("scaling", ["--predict", "five"], "--predict five: give PROCESSES:TOKENS_PER_SECOND"),
    ],
)
def test_labs_that_start_processes_refuse_it_too(name, words, said):
    refused(lambda: importlib.import_module(name).options(words), said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--clip", "nan"], "'nan' is not a finite number"),
        (["--keep", "3"], "--keep needs a place: add --folder FOLDER"),
        (["--offload", "--precision", "fp16", "--worlds", "1,2"], "--offload"),
        (["--batch", "400000"], "one validation batch takes"),
        (["--dataset", "nowhere"], "dataset nowhere: no such file or folder"),
        (["--layers", "1e8"], "the weights alone"),
        (
            ["--wrap", "layer", "--strategies", "ddp", "--worlds", "1,2"],
            "--strategy ddp shards nothing and does not use",
        ),
        (["--layout", "tp=2"], "--layout"),
    ],
)
def test_what_the_job_would_refuse_is_refused_before_a_calibration(words, said, monkeypatch):
    scaling = importlib.import_module("scaling")
    monkeypatch.setattr(scaling, "calibrate", lambda *_: pytest.fail("the work has begun"))
    monkeypatch.setattr(scaling.launch, "started", lambda *_: pytest.fail("the work has begun"))
    monkeypatch.setattr(sys, "argv", ["labs/scaling.py", *words])
    refused(lambda: scaling.main(), said)


# --- the environment ------------------------------------------------------------------------------------------------


def test_an_interface_that_is_not_there_is_named_with_those_that_are(monkeypatch):
    with pytest.raises(
        join.Misplaced,
        match=r"GLOO_SOCKET_IFNAME is 'nope' in the environment, and .* has no nope: "
        r"use one of .*\blo\b",
    ):
        join.check_interface("nope")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ValueError) as caught:
        join.check_interface("lo,nope")
    assert not isinstance(caught.value, join.Misplaced), "each node says it once"
    join.check_interface("lo")
    join.check_interface("")


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_nobodys_file(closed, tmp_path):
    """The next file that is opened would have its number, and get the lines that are printed."""
    code = (
        "import sys; sys.argv[0] = 'labs/x.py'; sys.modules['__main__'].__file__ = 'labs/x.py'\n"
        "from scaleout.lab import start; start.begin()\n"
        f"kept = open({str(tmp_path / 'kept')!r}, 'w')\n"
        "print('said'); start.say('said'); print('said', file=sys.stderr); kept.write('mine')"
    )
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code],
        cwd=repo.ROOT,
        env=os.environ | {"PYTHONPATH": "."},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert (tmp_path / "kept").read_text() == "mine"


def test_a_date_that_is_none_ends_no_figure():
    code = (
        "import sys; sys.modules['__main__'].__file__ = 'labs/x.py'\n"
        "import os; from scaleout.lab import start; start.begin(); print(os.environ.get('SOURCE_DATE_EPOCH'))"
    )
    for given, left in (("x", "None"), ("7", "7"), ("-1", "None")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=repo.ROOT,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": ".", "SOURCE_DATE_EPOCH": given},
        )
        assert done.stdout == left + "\n"


@pytest.mark.parametrize(
    "line", [{"alpha_seconds": -1e-3, "seconds_per_byte": 1e-9}, {"alpha_seconds": 1e-3, "seconds_per_byte": -1e-9}]
)
def test_a_profile_whose_messages_take_less_than_no_time_is_refused(line):
    profile = samples.profile(collectives={"all_reduce": line})
    with pytest.raises(ValueError, match="'all_reduce' needs alpha_seconds and seconds_per_byte, from 0"):
        profiles.validate(profile)
    profiles.validate(profile | {"collectives": {"all_reduce": {name: abs(value) for name, value in line.items()}}})


def test_every_string_of_a_lab_takes_no_empty_value():
    for tiers in (importlib.import_module(name).TIERS for name in WORK if name != "capstone"):
        for name, value in vars(tiers["smoke"]).items():
            if isinstance(value, str):
                with pytest.raises(ValueError):
                    options.parse(tiers, "", [options.named(name), ""])


def test_memory_that_is_freed_stays(monkeypatch):
    """By glibc's names for it; a C library that has no such thing is left as it is."""
    asked = []
    monkeypatch.setattr(start.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=lambda *pair: asked.append(pair)))
    start.keep_memory()
    assert asked == [(start.M_TRIM_THRESHOLD, -1), (start.M_MMAP_MAX, 0)] == [(-1, -1), (-4, 0)]
    monkeypatch.setattr(start.ctypes, "CDLL", lambda _: SimpleNamespace())
    start.keep_memory()
