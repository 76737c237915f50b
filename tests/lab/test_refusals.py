"""What no lab can do is refused before any work: one line, nothing printed before it, nothing written."""

import ast
import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import repo
from refused import WORK, lab_session

from scaleout.lab import fits, join, start
from scaleout.records import profiles
from scaleout.spec.transformer import Shape
from scaleout.train import batches

TRAIN = ("memory", "ddp", "fsdp", "tensor", "capstone", "slow_link")
SAVE = (
    "architecture",
    "bottlenecks",
    "budget",
    "memory",
    "ddp",
    "fsdp",
    "tensor",
    "mesh",
    "pipeline",
    "zero",
    "precision",
    "recompute",
    "collectives",
    "kernels",
    "capstone",
)
HUGE = "use fewer --layers or a smaller --hidden"
CASES = [
    *((name, ["--layers", "1000000"], "--layers is 1000000" if name == "slow_link" else HUGE) for name in TRAIN[:5]),
    ("capstone", ["--layers", "1000000000"], HUGE),
    ("slow_link", ["--layers", "1000000"], HUGE),
    *((name, ["--lr", "nan"], "'nan' is not a finite number") for name in TRAIN[:5]),
    *((name, ["--seed", "1e30"], "--seed is 1000000000000000019884624838656: it must be from 0 to") for name in TRAIN),
    *((name, ["--hidden", "\u00b2"], "'\u00b2' is not a whole number") for name in TRAIN),
    *((name, ["--heads", "3"], "3 heads do not divide hidden size 128: change one of the two") for name in TRAIN[4:]),
    *((name, ["--dataset", "gone"], "dataset gone: no such file or folder") for name in TRAIN[:4]),
    *(
        (name, ["--steps", words], said)
        for name in TRAIN
        for words, said in (
            ("", "'' is not a whole number"),
            ("-5", "--steps is -5: it must be from"),
            ("1e99", "it must be from"),
        )
    ),
    *((name, ["--save", "."], "the name must end in .json") for name in SAVE),
    *((name, ["--save", "f.txt/r.json"], "cannot be written: choose a file in a folder") for name in SAVE),
    *((name, ["--save", "x" * 300 + ".json"], "cannot be written: choose a file in a folder") for name in SAVE),
    ("mesh", ["--layers", "1000000"], HUGE),
    ("mesh", ["--lr", "nan"], "'nan' is not a finite number"),
    ("mesh", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("mesh", ["--steps", "3"], "--steps is 3: it must be from 4"),
    ("mesh", ["--layout", "tp=2"], "dp 1 x cp 1 x tp 2 x pp 1 is 2 ranks, there are 1: the nearest that works"),
    ("mesh", ["--layout", "ep=2"], "'ep=2' is no part of a layout: give pp, dp, cp, tp, zero, m, v, schedule"),
    ("mesh", ["--layout", "tp=\u00b2"], "give a whole number, as in tp=2"),
    ("mesh", ["--layout", "m=3"], "m 3 does not fit 2 sequences a replica: use m 2"),
    ("mesh", ["--layout", "v=2"], "needs a pipeline"),
    ("mesh", ["--order", "pp,dp"], "--order pp,dp: name dp, tp and pp once each, the outermost first: pp,dp,tp"),
    ("mesh", ["--search"], "--search is about several ranks: use torchrun --nproc-per-node 8"),
    ("mesh", ["--fault", "tie"], "--fault is about several ranks: use torchrun --nproc-per-node 8"),
    ("mesh", ["--fault", "tie", "--save"], "--save: a run with a fault makes no Record: leave out --fault or --save"),
    ("mesh", ["--search", "--link"], "--link, --search and --fault are shown by themselves: leave out all but one"),
    ("mesh", ["--link", "fast"], "--link fast: give Mbit/s from 1 to 100000, such as 1000,200"),
    ("mesh", ["--link", "--layout", "tp=3"], "6 ranks, there are 8: the nearest that works is dp 2, cp 1, tp 4"),
    ("pipeline", ["--layers", "1000000"], HUGE),
    ("pipeline", ["--lr", "nan"], "'nan' is not a finite number"),
    ("pipeline", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("bottlenecks", ["--layers", "1000000"], HUGE),
    ("bottlenecks", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("bottlenecks", ["--heads", "3"], "3 heads do not divide hidden size 64: change one of the two"),
    ("bottlenecks", ["--steps", "1"], "--steps is 1: it must be from 2"),
    ("bottlenecks", ["--injected-ms", "5"], "--injected-ms is 5: it must be from 20"),
    ("bottlenecks", ["--sealed", "9"], "--sealed is 9: it must be from 1 to 8"),
    ("bottlenecks", ["--sealed", "3", "--verdict", "3=input"], "leave out one of them"),
    ("bottlenecks", ["--sealed", "3", "--save"], "--save keeps all eight runs: leave out --sealed and --verdict"),
    ("bottlenecks", ["--verdict", "3=input", "--save"], "--save keeps all eight runs"),
    ("bottlenecks", ["--verdict", "3=disk"], "a verdict is one of arithmetic, traffic, network, waiting, input, fixed"),
    ("bottlenecks", ["--verdict", "9=input"], "runs are numbered 1 to 8: write 3=input"),
    ("bottlenecks", ["--verdict", "input"], "runs are numbered 1 to 8: write 3=input"),
    ("architecture", ["--layers", "1000000"], HUGE),
    ("architecture", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("architecture", ["--heads", "3"], "3 heads do not divide hidden size 32: change one of the two"),
    ("architecture", ["--steps", "7"], "--steps is 7: it must be from 8"),
    ("architecture", ["--seq", "3"], "--seq is 3: it must be from 4"),
    ("architecture", ["--injected-ms", "5"], "--injected-ms is 5: it must be from 20"),
    ("architecture", ["--sealed", "11"], "--sealed is 11: it must be from 1 to 10"),
    ("architecture", ["--sealed", "3", "--verdict", "3=nan"], "--sealed and --verdict are shown by themselves"),
    ("architecture", ["--input", "--saves"], "--input and --saves are shown by themselves: leave out all but one"),
    ("architecture", ["--mixed", "--save"], "--save keeps all ten runs: leave out --mixed"),
    ("architecture", ["--trace", "t.json"], "--trace writes one run: add --sealed N or --mixed"),
    ("architecture", ["--rows", "r", "--saves"], "--rows writes one run: add --sealed N or --mixed"),
    ("architecture", ["--mixed", "--trace", "t.svg"], "the name must end in .json"),
    ("architecture", ["--mixed", "--rows", "f.txt"], "--rows f.txt: is a file, or cannot be written to"),
    ("architecture", ["--verdict", "3=disk"], "a verdict is one of slow-rank, slow-disk, slow-link, collections,"),
    ("architecture", ["--verdict", "11=nan"], "runs are numbered 1 to 10: write 3=slow-disk or 3=slow-disk:1"),
    ("architecture", ["--verdict", "3=nan:x"], "write the rank as a number, as in 3=nan:1"),
    ("architecture", ["--verdict", "3=nan:9"], "there is no rank 9 among 2, which are 0 to 1"),
    ("architecture", ["--score", "gone.txt"], "--score gone.txt: cannot be read (FileNotFoundError)"),
    ("architecture", ["--score", "f.txt"], "--score a file: runs are numbered 1 to 10"),
    ("architecture", ["--placement", "fast"], "--placement fast: give Mbit/s from 1 to 100000"),
    ("budget", ["--layers", "1000000"], HUGE),
    ("budget", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("budget", ["--heads", "3"], "3 heads do not divide hidden size 64: change one of the two"),
    ("budget", ["--prompt", "64"], "--prompt 64: a sequence of 64 bytes has to have some that are written"),
    ("budget", ["--written", "4"], "--written 4: a step takes 8 sequences: write as many, or use --batch"),
    ("budget", ["--seeds", "1"], "--seeds is 1: it must be from 2"),
    ("budget", ["--top-p", "1.5"], "--top-p is 1.5: it must be from 0.01 to 1"),
    ("budget", ["--temperature", "nan"], "'nan' is not a finite number"),
    ("recompute", ["--layers", "1000000"], HUGE),
    ("recompute", ["--lr", "nan"], "'nan' is not a finite number"),
    ("recompute", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("recompute", ["--heads", "3"], "3 heads do not divide hidden size 128: change one of the two"),
    ("recompute", ["--steps", "2"], "--steps is 2: it must be from 5"),
    ("recompute", ["--compile", "--save"], "--compile runs by itself: leave out --save and --fault"),
    ("recompute", ["--compile", "--dropout", "0.1"], "--compile measures a block without dropout: leave out --dropout"),
    ("recompute", ["--fault", "random"], "--fault random needs random numbers: add --dropout 0.1"),
    ("recompute", ["--fault", "router", "--save"], "a run with a fault makes no Record: leave out --fault or --save"),
    ("kernels", ["--seqs", "2"], "--seqs 2: give whole numbers from 4 to 1,048,576, as 128,256"),
    ("kernels", ["--seqs", "\u00b2"], "give whole numbers from 4"),
    ("kernels", ["--seqs", "128,"], "--seqs 128,: give whole numbers"),
    ("kernels", ["--head-sizes", "1024"], "--head-sizes 1024: give whole numbers from 8 to 512"),
    ("kernels", ["--fp8-widths", "24"], "FP8 matrix multiplications of size 24: use multiples of 16"),
    ("kernels", ["--fp8-seq", "200"], "--fp8-seq 200: blocks with a scale have 128 tokens: use a multiple of 128"),
    ("kernels", ["--fp8-head", "96"], "--fp8-head 96: the rotation needs a power of two"),
    ("kernels", ["--block-heads", "3"], "3 heads do not divide hidden size 128: change one of the two"),
    ("kernels", ["--ways", "fa9"], "--ways fa9: no such kernel: use all, or naive, checkpointed, tiled,"),
    ("kernels", ["--rounds", "1"], "--rounds is 1: it must be from 2"),
    ("kernels", ["--mask", "alibi"], "argument --mask: invalid choice: 'alibi'"),
    ("kernels", ["--fault", "mask", "--save"], "a run with a fault makes no Record: leave out --fault or --save"),
    ("pipeline", ["--schedules", "zb3"], "--schedules zb3: there is no 'zb3': use all, or some of gpipe,1f1b,"),
    ("pipeline", ["--steps", "2"], "--steps is 2: it must be from 3"),
    ("pipeline", ["--fault", "head"], "--fault: one process is no pipeline: use torchrun --nproc-per-node 2"),
    ("pipeline", ["--hop-ms", "5"], "--hop-ms: one process is no pipeline"),
    ("pipeline", ["--trace", "lanes.json"], "--trace: one process is no pipeline"),
    ("pipeline", ["--trace", "lanes.txt"], "the name must end in .json"),
    ("zero", ["--layers", "1000000"], HUGE),
    ("zero", ["--lr", "nan"], "'nan' is not a finite number"),
    ("zero", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("zero", ["--steps", "2"], "--steps is 2: it must be from 5"),
    ("zero", ["--fault", "clip"], "--fault is about several ranks: use torchrun --nproc-per-node 2"),
    ("zero", ["--fault", "clip", "--save"], "--save: a run with a fault makes no Record: leave out --fault or --save"),
    ("zero", ["--via", "accelerate"], "--via accelerate is about several processes: use torchrun --nproc-per-node 2"),
    ("zero", ["--optimizer", "muon", "--clip", "1"], "--optimizer muon runs by itself: leave out --clip and"),
    ("precision", ["--layers", "1000000"], HUGE),
    ("precision", ["--lr", "nan"], "'nan' is not a finite number"),
    ("precision", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("precision", ["--steps", "7"], "--steps is 7: it must be from 8"),
    ("precision", ["--ways", "fp12"], "way 'fp12' is unknown: use one of fp32, bf16, fp16, fp16-scaled,"),
    ("precision", ["--via", "accelerate-fp16"], "Accelerate accepts mixed_precision fp16 on a CPU and"),
    ("precision", ["--fault", "bad-rank"], "--fault bad-rank is about several ranks: use torchrun --nproc-per-node 2"),
    ("precision", ["--fault", "overflow", "--save"], "--save: a run with a fault makes no Record"),
    ("ddp", ["--scaling", "1,2", "--save", "f.txt"], "--save f.txt: is a file, or cannot be written to"),
    ("calibrate", ["--out", "."], "cannot be written: choose a file"),
    ("calibrate", ["--out", "f.txt/m.json"], "cannot be written: choose a file"),
    ("slow_link", ["--dataset", "/nope"], "dataset /nope: no such file or folder"),
    ("slow_link", ["--save", "x" * 300], "or cannot be written to: choose another folder"),
    ("slow_link", ["--save", "f.txt"], "--save f.txt: is a file, or cannot be written to"),
    ("tensor", ["--link", "nan"], "--link nan: give Mbit/s from 1 to 100000"),
    ("tensor", ["--link", "200", "--save", "f.txt"], "--save f.txt: is a file, or cannot be written to"),
    ("tensor", ["--link", "200", "--precision", "autocast-bf16"], "--link is shown in fp32"),
    ("slow_link", ["--rates", "nan"], "--rates nan: give Mbit/s from 1 to 100000"),
    ("capstone", ["--resume", "\u00b2"], "--resume \u00b2: use auto, none, or the step of a checkpoint"),
    ("capstone", ["--checkpoint-every", "\u00b2", "--folder", "r"], "use auto, none, or a number of steps from 1"),
    ("capstone", ["--reshard", "\u00b2"], "--reshard \u00b2: use true, false, or a number of ranks"),
    ("capstone", ["--folder", "f.txt"], "--folder f.txt: is a file, or cannot be written to"),
    ("capstone", ["--folder", "f.txt/run"], "--folder f.txt/run: is a file, or cannot be written to: choose"),
]


@pytest.mark.parametrize(("name", "words", "said"), CASES, ids=lambda value: str(value)[:30])
def test_what_cannot_be_is_refused_before_any_work(name, words, said, tmp_path, monkeypatch, capsys):
    made = importlib.import_module(name)
    monkeypatch.setattr(made, WORK[name], lambda *_, **__: pytest.fail("the work has begun"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.txt").write_text("a file")
    with pytest.raises(ValueError) as caught:
        if name == "slow_link":
            made.main(words)
        else:
            with lab_session() as s:
                made.main(s, words)
    line = str(caught.value)
    assert said in line
    assert "\n" not in line
    assert [path.name for path in tmp_path.iterdir()] == ["f.txt"]
    assert name == "memory" or capsys.readouterr().out == ""


# --- where this process stands ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "abc"}, "RANK is 'abc' in the environment, where a whole number from 0 to 0 belongs"),
        ({"RANK": "\u00b2"}, "RANK is '\u00b2' in the environment"),
        ({"RANK": ""}, "RANK is ''"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0' in the environment, where a whole number from 1 to 1000000 belongs"),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE is '9999"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is '2'"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK is '1' in the environment, where a whole number from 0 to 0 belongs"),
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"}, "LOCAL_WORLD_SIZE is '4'"),
    ],
)
def test_a_launchers_number_that_cannot_be_is_named(variables, said, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(join.Misplaced, match=re.escape(said)):
        join.place()


@pytest.mark.parametrize("text", ["abc", "", "nan", "inf", "0", "-1", "1e9"])
def test_a_time_out_that_is_none_is_named(text, monkeypatch):
    monkeypatch.setenv("LAB_TIMEOUT", text)
    with pytest.raises(ValueError, match=f"^LAB_TIMEOUT is '{text}' in the environment: give seconds above 0, 86,400"):
        join.check_timeout()


def test_a_home_that_one_may_not_enter_holds_no_profile(monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(profiles.Path, "exists", refuse)
    assert profiles.find(None, "cpu", 1) is None


def test_a_model_that_this_machine_cannot_hold_is_told_by_how_much():
    shape = Shape(2, 64, 4, 256, max_seq=32)
    fits.refuse(shape, 10**9, "this machine")
    with pytest.raises(
        ValueError,
        match=r"^the weights alone take \d\.\d GB, and this machine has 0\.0 GB: use fewer "
        "--layers or a smaller --hidden$",
    ):
        fits.refuse(shape, 1000, "this machine")


# --- the text -----------------------------------------------------------------------------------------------------


def test_a_file_is_on_one_side_of_the_split_only(tmp_path):
    for i in range(40):
        (tmp_path / f"{i:02}.txt").write_text(f"text {i % 8} " * 50)
    (tmp_path / "empty.txt").write_text("")
    text = batches.read(str(tmp_path), 0.4)
    whole = bytes(text.train.tolist()) + bytes(text.validation.tolist())
    assert all(whole.count(b"text %d " % i) == 50 for i in range(8))
    assert (text.files, text.copies) == (9, 32)
    assert "in 9 file(s) (32 left out, with the same bytes as another), " in text.words
    with pytest.raises(
        ValueError,
        match=r"^--held-out 0.99 leaves \d+ bytes to train on, and one step takes 1,000: "
        "hold out less, or use a larger --dataset$",
    ):
        batches.read(str(tmp_path), 0.99, 1000)


# --- the screen ---------------------------------------------------------------------------------------------------

SAY = (
    "import sys; from scaleout.lab import start; start.begin()\n"
    "for _ in range(2000): print('3 \u00d7 4 \u00b5s \u2192 \u20ac', flush=True)\n"
    "print('done', file=sys.stderr)"
)


def say(**more):
    return subprocess.Popen(
        [sys.executable, "-c", SAY],
        cwd=repo.ROOT,
        env=os.environ | {"PYTHONPATH": "."} | more,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@pytest.mark.parametrize(
    ("encoding", "line"),
    [
        ("latin-1", "3 \u00d7 4 \u00b5s ? ?".encode("latin-1")),
        ("ascii", b"3 ? 4 ?s ? ?"),
        ("utf-8", "3 \u00d7 4 \u00b5s \u2192 \u20ac".encode()),
    ],
)
def test_every_text_can_be_printed_in_every_encoding(encoding, line):
    out, errors = say(PYTHONIOENCODING=encoding).communicate(timeout=60)
    assert out == 2000 * (line + b"\n")
    assert errors == b"done\n"


def test_a_reader_that_goes_away_ends_no_run():
    process = say()
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b"done\n"
    assert process.wait(60) == 0
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_under_the_output_is_said_once():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", SAY],
            cwd=repo.ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": "."},
        )
    assert done.returncode == 0
    assert done.stderr == "./-c: what it prints is lost (no space left on device); the run goes on\ndone\n"


@pytest.mark.parametrize("name", ["capstone", "preflight"])
def test_ctrl_c_while_torch_is_imported_is_one_line(name):
    process = subprocess.Popen(
        [sys.executable, "-v", f"labs/{name}.py"],
        cwd=repo.ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": "."},
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    line = next(line for line in process.stderr if re.match("import 'torch.types'|# .*torch/types", line))
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(60) == 130
    assert line
    assert f"labs/{name}.py: stopped\n" in rest
    assert "Traceback" not in rest
    process.stderr.close()


def test_every_lab_is_ready_for_ctrl_c_before_it_imports_anything():
    labs = [file for file in (repo.ROOT / "labs").glob("*.py") if file.name != "hang_job.py"]  # hang.py starts that
    assert len(labs) > 9
    for file in labs:
        first = next(one for one in ast.parse(file.read_text()).body if isinstance(one, ast.Import | ast.ImportFrom))
        assert ast.unparse(first) == "import scaleout.lab.start", file.name


def test_a_notebook_that_opens_a_session_keeps_its_figures(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    start.begin()
    assert os.environ["MPLBACKEND"] == "module://matplotlib_inline.backend_inline"
