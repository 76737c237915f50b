"""labs/preflight.py where a program in the place of nvidia-smi makes up the GPUs: old drivers, taken cards, silence."""

import os
import re
import subprocess
import sys
import time

import pytest
import ready
import repo
from lab_runs import ENVIRONMENT, TORCHRUN

from scaleout.lab import options
from scaleout.lab import preflight as gpu
from scaleout.lab.preflight import GIB, Card, Check

sys.path.insert(0, str(repo.ROOT / "labs"))
import memory as memory_lab

H100 = "NVIDIA H100 80GB HBM3"
ROW = "{i}, GPU-0000000{i}-aaaa, {name}, {driver}, {used}, 81559\n"
TOPOLOGY = """\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tNV18\tSYS\t0-51\t0
GPU1\tNV18\t X \tNV18\tSYS\t0-51\t0
GPU2\tNV18\tNV18\t X \tSYS\t52-103\t1
GPU3\tSYS\tSYS\tSYS\t X \t52-103\t1

Legend:
  X    = Self
"""


def rows(driver="580.95.05", used=(4, 4), name=H100):
    return "".join(ROW.format(i=i, name=name, driver=driver, used=each) for i, each in enumerate(used))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that puts a shell script's lines in the place of nvidia-smi, None: nothing; the environment for it."""

    def make(script):
        if script is not None:
            (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / "nvidia-smi").chmod(0o755)
        path = f"{tmp_path}:/usr/bin:/bin" if script is not None else str(tmp_path)
        monkeypatch.setenv("PATH", path)
        return {key: value for key, value in ENVIRONMENT.items() if key != "CUDA_VISIBLE_DEVICES"} | {"PATH": path}

    return make


def answers(listed, apps="", topology=TOPOLOGY):
    return f"""case "$1" in
--query-gpu*) printf '%s' '{listed}' ;;
--query-compute-apps*) printf '%s' '{apps}' ;;
topo) printf '%s' '{topology}' ;;
*) exit 2 ;;
esac"""


def by_need(checks):
    return {check.need: check for check in checks}


# --- the driver -------------------------------------------------------------------------------------------------


def card(driver="580.95.05", used=4 * 2**20, name=H100, index="0"):
    return Card(index, f"GPU-{index}", name, driver, used, 81559 * 2**20)


@pytest.mark.parametrize(
    ("version", "built", "name", "said", "remedy"),
    [
        (
            "550.90.07",
            "13.0",
            H100,
            "driver 550.90.07 runs CUDA 12, this torch is built for CUDA 13.0",
            "pip install torch==2.13.0+cu126 --index-url https://download.pytorch.org/whl/cu126, "
            "or a driver of 580 or newer",
        ),
        (
            "570.124.06",
            "13.0",
            "NVIDIA B200",
            "driver 570.124.06 runs CUDA 12, this torch is built for CUDA 13.0",
            "pip install torch==2.11.0+cu128 --index-url https://download.pytorch.org/whl/cu128, "
            "or a driver of 580 or newer",
        ),
        (
            "470.57.02",
            "12.6",
            H100,
            "driver 470.57.02 is older than CUDA 12, this torch is built for CUDA 12.6",
            "a driver of 580 or newer",
        ),
        (
            "580.95.05",
            None,
            H100,
            "driver 580.95.05 runs CUDA 13, this torch is built for CPU",
            "pip install torch==2.13.0+cu130 --index-url https://download.pytorch.org/whl/cu130",
        ),
        (
            "580.95.05",
            "12.6",
            H100,
            "driver 580.95.05 runs CUDA 13, this torch is built for CUDA 12.6, and torch sees none of 1 GPU(s)",
            "python -c 'import torch; torch.cuda.init()' says why",
        ),
    ],
)
def test_a_torch_that_sees_no_gpu_is_told_why_and_what_fits(version, built, name, said, remedy):
    assert gpu.driver([card(version, name=name)], built, 0) == Check("driver", False, said, remedy)


def test_a_torch_that_sees_its_gpus_is_right_whatever_the_numbers_say():
    assert gpu.driver([card("550.90.07")], "13.0", 1).ok is True  # NVIDIA's compatibility packages do that
    assert gpu.driver([card("525.60.13")], "12.6", 0).found.endswith("torch sees none of 1 GPU(s)")
    assert gpu.driver([card("524.99")], "12.6", 0).remedy == "a driver of 580 or newer"


def test_the_versions_named_are_the_books():
    pinned = re.search(r"^torch==([\d.]+)", repo.text("requirements.txt"), re.M)[1]
    assert {gpu.WHEELS[13], gpu.WHEELS[12]} == {f"{pinned}+cu130", f"{pinned}+cu126"}
    page = repo.text("book/running.md")
    for wheel in gpu.WHEELS.values():
        assert f"torch=={wheel} --index-url https://download.pytorch.org/whl/{wheel.split('+')[1]}" in page


# --- what nvidia-smi says ---------------------------------------------------------------------------------------


def test_a_healthy_node(machine):
    machine(answers(rows(used=(4, 4, 4, 4))))
    found = gpu.gpu_checks(4, 4, "13.0", {})
    assert [check.ok for check in found] == [True, True, True]
    assert found[0].found == "driver 580.95.05 runs CUDA 13, this torch is built for CUDA 13.0"
    assert found[1].found == "at least 79.6 GiB free on each GPU"
    assert found[2].found == "3 pair(s) by NVLink (NV18), 3 pair(s) by PCIe (SYS)"


def test_memory_that_others_hold_is_named_with_its_process(machine):
    machine(answers(rows(used=(4, 12288)), f"GPU-00000001-aaaa, 4711\nGPU-00000000-aaaa, {os.getpid()}\n"))
    found = by_need(gpu.gpu_checks(2, 2, "13.0", {}))["GPU memory"]
    assert (found.ok, found.found) == (False, "another process uses 12.0 GiB of GPU 1 (pid 4711)")
    assert by_need(gpu.gpu_checks(1, 1, "13.0", {"CUDA_VISIBLE_DEVICES": "0"}))["GPU memory"].ok is True
    named = {"CUDA_VISIBLE_DEVICES": "GPU-00000001"}
    assert by_need(gpu.gpu_checks(1, 1, "13.0", named))["GPU memory"].ok is False


def test_what_a_launch_holds_itself_is_not_anothers():
    assert gpu.room([card(used=int(1.5 * GIB))], {}).ok is True
    assert gpu.room([card(used=None)], {}).ok is None
    assert gpu.holders("GPU-1, 7\nGPU-1, 8\n[N/A], x\n\n", {7}) == {"GPU-1": ["8"]}


@pytest.mark.parametrize("said", ["", "garbage\nmore", "GPU0\tX\tWHAT\nGPU1\tWHAT\tX\n", "\x1b[4mGPU0\x1b[0m"])
def test_a_topology_that_is_none_is_skipped(said):
    assert gpu.links(said) == Check("links between GPUs", None, "nvidia-smi topo -m was not understood")


def test_a_single_gpu_has_no_links():
    assert gpu.links("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n").found == "a single GPU"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "no nvidia-smi here"),
        (
            "echo 'NVIDIA-SMI has failed because it couldnt communicate with the NVIDIA driver.'; exit 9",
            "nvidia-smi failed: NVIDIA-SMI has failed because it couldnt communicate with the NVIDIA driver.",
        ),
        ("head -c 3000 /dev/urandom", "nvidia-smi lists no GPU"),
        ("echo '0, GPU-1, H100, [N/A], 4, 81559'", "nvidia-smi lists no GPU"),
        ("true", "nvidia-smi lists no GPU"),
    ],
)
def test_an_nvidia_smi_without_an_answer_is_said_and_red_only_where_gpus_are_expected(machine, script, said):
    machine(script)
    for needed, state in ((8, False), (0, None)):
        found = gpu.gpu_checks(needed, 0, "13.0", {})
        assert (found[0].ok, found[0].found) == (state, said)
        assert [check.ok for check in found[1:]] == [None, None]


def test_an_nvidia_smi_that_hangs_is_left_alone(machine, monkeypatch):
    machine("exec sleep 600")
    start = time.monotonic()
    with pytest.raises(gpu.Silent, match=r"gave no answer in 0\.2 s, the driver may hang"):
        gpu.ask("-L", seconds=0.2)
    assert time.monotonic() - start < 100
    monkeypatch.setattr(gpu.ask, "__kwdefaults__", {"seconds": 0.2})
    assert gpu.gpu_checks(8, 0, "13.0", {})[0].remedy == "restart the machine, or give it back"


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES=''"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES='-1'"),
        ({"LAB_DEVICE": "cpu"}, "LAB_DEVICE=cpu"),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "CUDA_VISIBLE_DEVICES='NoDevFiles'"),  # a Slurm job without GPUs
        ({"CUDA_VISIBLE_DEVICES": "7"}, "CUDA_VISIBLE_DEVICES='7'"),
    ],
)
def test_gpus_that_the_environment_hides_are_no_fault(machine, environment, what):
    machine(answers(rows()))
    found = gpu.gpu_checks(0, 0, "13.0", environment)
    assert [check.ok for check in found] == [None, None, None]
    assert found[0].found.endswith(f"{what} hides 2 GPU(s)")


def test_a_mig_slice_is_a_gpu_of_which_less_is_known(machine):
    machine(answers(rows(used=(4, 12288))))
    found = gpu.gpu_checks(1, 1, "13.0", {"CUDA_VISIBLE_DEVICES": "MIG-11111111-2222-3333-4444-555555555555"})
    assert [check.ok for check in found] == [True, None, None]
    assert "MIG" in found[1].found and "MIG" in found[2].found


# --- a size for GPUs, and none here ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (answers(rows("550.54.15")), r"driver 550.54.15 runs CUDA 12, .*: pip install torch==2.13.0\+cu126 .*"),
        (None, "no nvidia-smi here: install NVIDIA's driver, or take a machine that has it: .*"),
    ],
)
def test_the_gpu_size_is_refused_where_no_gpu_shows_and_the_driver_is_named(machine, monkeypatch, script, said):
    machine(script)
    monkeypatch.delenv("LAB_DEVICE", raising=False)
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    refusal = f"^--tier gpu, and torch sees no GPU: {said}; LAB_DEVICE=cpu runs it on the CPU all the same$"
    tiers = {"smoke": memory_lab.TIERS["smoke"], "gpu": memory_lab.TIERS["gpu"]}
    with pytest.raises(ValueError, match=refusal):
        options.parse(tiers, "", ["--tier", "gpu"])
    for words in (["--tier", "smoke"], ["--tier", "gpu", "--fake", "7b"]):
        assert options.parse(tiers, "", words)[0] == words[1]
    assert options.parse(tiers, "", ["--tier", "gpu"], anywhere=True)[0] == "gpu"
    monkeypatch.setenv("LAB_DEVICE", "cpu")
    assert options.parse(tiers, "", ["--tier", "gpu"])[0] == "gpu"
    monkeypatch.delenv("LAB_DEVICE")
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: True)
    assert options.parse(tiers, "", ["--tier", "gpu"])[0] == "gpu"


@pytest.mark.parametrize(
    "words", [[*TORCHRUN, "2", "labs/capstone.py", "--tier", "gpu"], ["labs/scaling.py", "--tier", "gpu"]]
)
def test_a_lab_of_the_gpu_size_ends_before_it_begins(machine, words):
    environment = machine(answers(rows("550.54.15"))) | {"CUDA_VISIBLE_DEVICES": ""}
    done = start(words, {key: value for key, value in environment.items() if key != "LAB_DEVICE"})
    (line,) = (line for line in done.stderr.splitlines() if re.match(r"labs/\w+\.py: ", line))
    assert "--tier gpu, and torch sees no GPU: driver 550.54.15" in line and done.stdout == ""
    assert done.returncode in (1, 2), "torchrun's own code is 1"


# --- the rate ---------------------------------------------------------------------------------------------------


def test_the_rate_that_is_expected_of_cards_that_the_book_knows():
    # 8 H100 of one node: 480 GB/s in published sweeps of 16 GB, less at 256 MiB (tests/published/)
    assert 300e9 < gpu.expected(H100, 8, 2**28) < 480e9
    assert gpu.expected("Tesla T4", 2, 2**28) < 16e9
    assert gpu.expected("NVIDIA T400 4GB", 2, 2**28) is None


# --- the script, as it is started -------------------------------------------------------------------------------


def start(words, environment):
    return subprocess.run(
        [ready.python(), *words], cwd=repo.ROOT, env=environment, capture_output=True, text=True, timeout=100
    )


def test_eight_gpus_on_a_machine_without_any_are_to_fix(machine):
    done = start([*TORCHRUN, "2", "labs/preflight.py", "--gpus", "8", "--disk-gib", "0"], machine(None))
    red = [line for line in done.stdout.splitlines() if line.startswith("FIX ")]
    assert [line.split(":")[0] for line in red] == ["FIX GPUs, at least 8", "FIX driver"]
    assert done.returncode == 1
    assert re.search(
        r"all-reduce over 2 ranks +ok +gloo: sum of 1..2 is 3; 4 MiB in [\d.]+ ms, busbw [\d.e+-]+ GB/s", done.stdout
    )


def test_an_old_driver_is_said_by_the_script(machine):
    """This torch, built for CPU or for another CUDA than the driver has, sees no GPU; nvidia-smi does."""
    done = start(
        ["labs/preflight.py", "--processes", "1", "--disk-gib", "0"],
        machine(answers(rows("550.54.15"))) | {"MASTER_PORT": "0"},
    )
    assert done.returncode == 1
    assert (
        "FIX driver: pip install torch==2.13.0+cu126 --index-url https://download.pytorch.org/whl/cu126" in done.stdout
    )


def test_a_machine_without_gpus_is_ready_and_says_that_it_has_none(machine):
    done = start(["labs/preflight.py", "--processes", "1", "--disk-gib", "0"], machine(None) | {"MASTER_PORT": "0"})
    assert "no GPU is visible: labs would run on the CPU (say --gpus N if you expect some)" in done.stdout
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "Ready, without GPUs.")
