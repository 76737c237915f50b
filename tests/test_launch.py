"""The launch files: they parse, say what they must, and fail in one line; some are run."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import ready
import repo
import torch
from commands import commands
from lab_runs import bash, free_port

from scaleout.lab import hosts as lab_hosts
from scaleout.lab import options as lab_options
from scaleout.spec.devices import DEVICES
from scaleout.train import forecast, options

LAUNCH = repo.ROOT / "labs" / "launch"
SCRIPTS = sorted(path.name for path in LAUNCH.glob("*.sh"))
PAGE = "book/running.md"
REFUSED = lab_hosts.refused()
NO_SHELLCHECK = "" if shutil.which("shellcheck") else "no shellcheck here (Debian: apt-get install shellcheck)"


# --- shell -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_parse_and_can_be_started(name):
    assert bash("-n", f"labs/launch/{name}").returncode == 0
    assert os.access(LAUNCH / name, os.X_OK)


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.skipif(bool(NO_SHELLCHECK), reason=NO_SHELLCHECK)
def test_shellcheck_finds_nothing(name):
    done = subprocess.run(["shellcheck", str(LAUNCH / name)], capture_output=True, text=True)
    assert done.stdout == ""


def test_the_slurm_file_asks_for_what_a_resumable_job_needs():
    text = repo.text("labs/launch/slurm.sh")
    asked = dict(line.partition("=")[::2] for line in re.findall(r"^#SBATCH (\S+)$", text, re.M))
    assert asked["--ntasks-per-node"] == "1"  # one torchrun a node, which starts the others
    assert {"--requeue", "--open-mode", "--time", "--exclusive"} <= set(asked)
    assert asked["--mem"] == "0"  # all of it: the default may be a little for each CPU
    name, seconds = re.fullmatch(r"B:(\w+)@(\d+)", asked["--signal"]).groups()
    left = int(re.search(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)", text)[1])
    assert name == "TERM"
    assert int(seconds) >= left + 60  # sbatch(1): it may come up to 60 s before its time
    assert "|| echo localhost" not in text


def test_the_slurm_file_wants_slurm():
    done = bash("labs/launch/slurm.sh")
    assert (done.returncode, done.stderr) == (2, "slurm.sh: no Slurm job: submit it with sbatch\n")


SAY = "; say which machine this is (0, 1, ...) and the first one's address"


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        ([], {}, "too few words" + SAY),
        (["0"], {}, "too few words" + SAY),
        (["first", "10.0.0.1"], {}, "'first' is no number" + SAY),
        (["2", "10.0.0.1"], {}, "machine 2 of 2 (they count from 0)" + SAY),
        (
            ["0", "10.0.0.1"],
            {"NETWORK": "no-such", "PROCESSES": "1"},
            "no-such has no address; ip -brief address lists them",
        ),
    ],
)
def test_two_machines_refuse_in_one_line(words, environment, said):
    done = bash("labs/launch/two_machines.sh", *words, **environment)
    assert (done.returncode, done.stderr) == (2, f"two_machines.sh: {said}\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")
def test_two_machines_without_a_gpu_are_told_in_one_line():
    """And not in the traceback of torchrun --nproc-per-node gpu."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PROCESSES", "NETWORK")}
    done = bash(
        "labs/launch/two_machines.sh",
        "0",
        "127.0.0.1",
        **environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "two_machines.sh: torch sees no GPU here: labs/preflight.py says why, and PROCESSES=1 trains on the CPU\n",
    )


def test_empty_lists_are_no_unset_variables_to_an_old_bash():
    """Before 4.4 `"${list[@]}"` of an empty list ends a script with set -u; no such bash is at hand to try it."""
    for name in SCRIPTS:
        bare = re.sub(r"\$\{(\w+)\[@\]\+\"\$\{\1\[@\]\}\"\}", "", repo.text(f"labs/launch/{name}"))
        assert "[@]}" not in bare, name


@pytest.mark.slow
@pytest.mark.skipif(bool(REFUSED), reason=f"no network namespaces: {REFUSED}")
def test_two_machines_meet_and_add_up():
    environment = os.environ | {
        "PATH": f"{ready.folder()}:{os.environ['PATH']}",
        "PROCESSES": "1",
        "NETWORK": "eth0",
        "LAB_DEVICE": "cpu",
        "PORT": str(free_port()),
    }
    with lab_hosts.Hosts(2) as hosts:
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started = [
            hosts.start(
                i,
                ["labs/launch/two_machines.sh", str(i), hosts.address(0), "labs/preflight.py"],
                cwd=repo.ROOT,
                env=environment,
                **piped,
            )
            for i in (0, 1)
        ]
        said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert re.search(r"all-reduce over 2 ranks +ok +gloo: sum of 1..2 is 3", said[0])
    assert said[1] == ""  # rank 0 speaks for all


# --- the page ------------------------------------------------------------------------------------------------------


def test_the_page_walks_every_launch_file():
    page = repo.text(PAGE)
    for path in LAUNCH.iterdir():
        assert path.name.startswith("accelerate") or path.name in page, path.name
    sections = re.findall(r"^## (.*)$", page, re.M)
    places = sections[sections.index("What it costs") + 1 : sections.index("When it is over")]
    assert len(places) == 6
    for place in places:
        part = page.split(f"## {place}\n")[1].split("\n## ")[0]
        assert [word for word in ("Account", "Start", "Teardown", "What fails most") if f"**{word}" in part] == [
            "Account",
            "Start",
            "Teardown",
            "What fails most",
        ], place
    assert len(places) == 6


# --- Kaggle ----------------------------------------------------------------------------------------------------


@pytest.fixture
def kaggle():
    notebook = nbformat.read(LAUNCH / "kaggle.ipynb", 4)
    nbformat.validate(notebook)
    return notebook


def test_the_kaggle_notebook_leaves_the_gpus_to_the_labs(kaggle):
    code = {cell.id: cell.source for cell in kaggle.cells if cell.cell_type == "code"}
    assert all(not cell.get("outputs") for cell in kaggle.cells)
    for source in code.values():
        compile(re.sub(r"^!.*$", "pass", source, flags=re.M), "cell", "exec")
        assert not re.search(r"\btorch\.|import torch|bf16", source)
    assert "--standalone --nproc-per-node=2" in code["train"]
    assert "--precision fp16" in code["train"]


def test_kaggle_is_told_what_needs_the_internet(kaggle):
    """No cell installs unasked, and what is offered is the build that page and notebook name."""
    text = "\n".join(cell.source for cell in kaggle.cells)
    page = repo.text(PAGE).split("## Kaggle: two T4s")[1].split("\n## ")[0]
    (line,) = set(re.findall(r"!(pip install .+?)[`\n]", f"{text}\n{page}\n"))
    assert re.fullmatch(
        r"pip install torch==2\.13\.0\+(cu12\d) --index-" r"url https://download\.pytorch\.org/whl/\1", line
    )
    assert not re.search(r"^!pip", text, re.M)
    assert "no internet" not in text.lower() + page.lower()


def test_the_kaggle_run_fits_its_cards_as_the_page_says():
    words = next(words for _, lab, words in commands("labs/launch/kaggle.ipynb") if lab == "capstone")
    o = lab_options.parse(options.TIERS, "", words)[1]
    sizes = [
        sum(forecast.predicted_memory(replace(o, strategy=strategy, precision=precision), world, "cuda").values())
        for strategy, precision, world in (("fsdp", "fp16", 2), ("fsdp", "fp32", 2), ("one", "fp16", 1))
    ]
    card = DEVICES["t4"]
    two, wide, one, has = (f"{size / 1e9:.1f} GB" for size in (*sizes, card.memory_bytes))
    page = repo.text(PAGE)
    assert f"the run takes {two} of each GPU's {has} ({wide} in fp32)" in page
    assert f"the same batch on one GPU would take {one}" in page
    assert max(sizes) < card.memory_bytes / 2
    rates = [card.matmul_flop_per_s(dtype) / 1e12 for dtype in (o.precision, "fp32")]
    assert "fp16 at {:g} TFLOP/s, against {:g} TFLOP/s for fp32".format(*rates) in page
    scaler = torch.amp.GradScaler("cpu")
    assert f"first multiplies the loss by {scaler.get_scale():,g};" in page
    assert f"after {scaler.get_growth_interval():,} good steps" in page


def test_the_kaggle_notebook_finds_the_book_among_the_inputs(kaggle, tmp_path):
    source = next(cell.source for cell in kaggle.cells if cell.id == "book")
    source = source.replace("/kaggle/input", str(tmp_path / "input")) + "\nprint(os.environ['PYTHONPATH'])"
    (tmp_path / "writable").mkdir()

    def cell():
        return subprocess.run([sys.executable, "-c", source], cwd=tmp_path / "writable", capture_output=True, text=True)

    assert "add the book's folder as a dataset" in cell().stderr.splitlines()[-1]
    labs = tmp_path / "input" / "some-name" / "book-main" / "labs"
    labs.mkdir(parents=True)
    (labs / "capstone.py").touch()
    assert cell().stdout.strip() == str(tmp_path / "writable" / "book")
    assert (tmp_path / "writable" / "book" / "labs" / "capstone.py").is_file()


# --- container -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_what_the_container_copies_is_enough_to_install_and_run(tmp_path):
    text = re.sub(r"\\\n", " ", repo.text("labs/launch/Containerfile"))
    steps = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert steps[0][0] == "FROM"
    assert {step[0] for step in steps} == {"FROM", "RUN", "WORKDIR", "ARG", "COPY", "ENV", "CMD"}
    for _, *sources, target in (step for step in steps if step[0] == "COPY"):
        for source in sources:
            if (repo.ROOT / source).is_dir():
                shutil.copytree(repo.ROOT / source, tmp_path / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(repo.ROOT / source, tmp_path / target)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    assert all((tmp_path / name).is_file() for name in (project["readme"], *project["license-files"]))
    done = subprocess.run(
        [
            sys.executable,
            "labs/capstone.py",
            "--layers",
            "1",
            "--hidden",
            "32",
            "--heads",
            "1",
            "--seq",
            "32",
            "--batch",
            "2",
            "--steps",
            "6",
            "--sample",
            "0",
        ],
        cwd=tmp_path,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "LAB_DEVICE": "cpu"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert "in 6 steps" in done.stdout


def test_the_builder_is_not_sent_what_the_image_does_not_need():
    ignored = [line for line in repo.text(".dockerignore").splitlines() if line and not line.startswith("#")]
    assert {".git", ".venv", "runs", "_build", "**/node_modules"} <= set(ignored)
    copied = re.findall(r"^COPY (.*) \S+$", repo.text("labs/launch/Containerfile"), re.M)
    names = {source for line in copied for source in line.split()}
    assert not names & set(ignored)
    assert not any(
        path.match(pattern.removeprefix("**/"))
        for pattern in ignored
        for path in map(Path, repo.files())
        if path.parts[0] in names
    ), "a file of the repository that the image needs"


def test_the_containers_commands_ask_for_what_gpus_need():
    """In the file and on the page: shared memory, a folder that is there, a label for SELinux, locked memory."""
    for name in ("labs/launch/Containerfile", PAGE):
        text = re.sub(r"\s*\\\n#? *", " ", repo.text(name))
        runs = [
            line
            for line in text.splitlines()
            if re.match(r"#?\s*(podman|docker) run ", line) and "nvidia-smi" not in line
        ]
        assert len(runs) >= 2
        assert all("--shm-size=8g" in line or "..." in line for line in runs), runs
        assert all(":/book/runs:Z" in line for line in runs if " -v " in line)
        assert text.index("mkdir -p runs") < text.index(":/book/runs")
        for word in ("--network=host", "--device /dev/infiniband", "--cap-add IPC_LOCK", "--ulimit memlock=-1"):
            assert word in text, (name, word)
    assert "podman save -o book.tar book" in repo.text(PAGE)
    assert "apptainer build book.sif docker-archive:book.tar" in repo.text(PAGE)
    text = repo.text("labs/launch/Containerfile")
    assert "chmod 1777 . runs" in text and "libibverbs1" in text and "PYTHONNOUSERSITE=1" in text
