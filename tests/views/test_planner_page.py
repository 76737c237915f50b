"""What the page of the planner says of its own numbers, held against the rows that judge the model."""

import re
from pathlib import Path
from statistics import median, quantiles

import mesh_rows as judge

from scaleout.memory.mesh import accounts
from scaleout.spec.hardware import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, flops
from scaleout.timing.mesh import BAND, step
from scaleout.timing.mesh_search import Job, cut

PAGE = (Path(__file__).parents[2] / "book" / "planner.md").read_text(encoding="utf-8")
ROWS = {"Llama 3.1 70B": "70B", "Llama 3.1 405B": "405B", "GPT-3 175B": "175B", "Nemotron-4 15B": "15B",
        "Nemotron-4 340B": "340B"}  # fmt: skip


def test_the_medians_are_those_of_the_rows_that_made_no_constant():
    found = [abs(error) for error in judge.judged()]
    on_h100 = sum(len(judge.errors(name)) for name in judge.H100 if name != judge.PUBLISHED["h100"]["fitted"])
    said = (f"The other {len(found)} published steps, of {on_h100} runs on H100 and {len(found) - on_h100} on A100, "
            f"judge it: half of them are told within {100 * median(found):.1f}%, nine of ten within "
            f"{100 * quantiles(found, n=10)[-1]:.1f}%. The band of ±{100 * BAND:.0f}%")  # fmt: skip
    assert said in PAGE and f"is told {100 * max(found):.0f}% too slow" in PAGE


def test_the_table_is_what_is_told():
    rows = re.findall(r"^\| (\S.*?) \| ([\d,]+) \| ([\d.]+) s \| ([\d.]+) s \| (.*?)% \|$", PAGE, re.M)
    assert len(rows) == 6 and {row[0] for row in rows} == set(ROWS)
    for name, gpus, published, told, off in rows:
        row = next(one for one in judge.h100(ROWS[name]) if one[0] == int(gpus.replace(",", "")))
        assert (f"{row[2]:.2f}", f"{row[1].seconds:.2f}") == (published, told)
        assert f"{100 * (row[1].seconds / row[2] - 1):.1f}" == off


def test_other_programs_reach_less_by_a_factor_that_hardly_moves():
    series = judge.by_fsdp().values()
    each = [ratio for one in series for ratio in one.values()]
    moved = max(max(one.values()) / min(one.values()) - 1 for one in series)
    said = (f"as {len(each)} published rates have it", f"divided by {min(each):.1f} to {max(each):.1f}. ",
            f"up to {max(map(max, series))}, that factor moves by {100 * moved:.0f}% at most")
    assert all(words in PAGE for words in said)


def test_the_run_of_340b_itself():
    (gpus, eight, published), (*_, two) = judge.own_run(8)[-1], [one[1] for one in judge.own_run(2)]
    assert f"steps of {published} s on {gpus:,} H100s" in PAGE
    assert f"told {eight:.1f} s here with eight chunks a rank, {two:.1f} with two" in PAGE
    for chunks, low in ((8, -0.105), (2, -0.02)):
        assert all(low < told / published - 1 < 0 for _, told, published in judge.own_run(chunks))


def test_what_is_said_of_memory():
    job = Job(PRESETS["llama-3-405b"], 8192, 2048, DEVICES["h100-sxm"], cluster(2048, 8))
    assert f"by {cut(job, tp=8, pp=16).over / 1e9:.0f} GB: its authors" in PAGE


LLAMA, MIXED = PRESETS["llama-3-405b"], Recipe("bf16-master", main_gradients="instead")


def theirs(zero=1, v=1):
    """Llama 3's degrees on 16,384 GPUs (arXiv 2407.21783, table 4)."""
    return Layout(dp=128, tp=8, pp=16, zero=zero, sequence_parallel=True, micro_batches=16, chunks=v,
                  schedule="interleaved" if v > 1 else "1f1b")  # fmt: skip


def test_gradients_that_llama_3_split():
    whole, part = (max(one.peak["gradients"] for one in accounts(LLAMA, 1, 8192, MIXED, theirs(zero)))
                   for zero in (1, 2))  # fmt: skip
    assert f"which are {(whole - part) / 1e9:.0f} GB here" in PAGE
    assert abs((whole - part) / (4 * 405.85e9 / 128) - 1) < 0.05


def test_llama_3s_own_step():
    """400 TFLOP/s a GPU (table 4), of products alone or with the scores of attention, 12 L h s a token."""
    work, scores = flops(LLAMA, 2048, 8192), 12 * 126 * 16384 * 8192 * 2048 * 8192
    done = work["forward"] + work["backward"]
    least, most = ((done - less) / 16384 / 400e12 for less in (scores, 0))
    assert f"{least:.1f} to {most:.1f} s" in PAGE
    on = DEVICES["h100-sxm"], cluster(2048, 8), MIXED
    two, four = (step(LLAMA, 1, 8192, theirs(v=v), *on).seconds for v in (2, 4))
    assert f"told {two:.1f} s here, with four {four:.1f}." in PAGE
    assert four < most and least < two, "what they reached lies between, or near"
