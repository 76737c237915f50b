"""What the lab of kernels prints, and what it says of counters, kernel names and a roofline. Pure."""

import json
import re

import pytest
import repo
from cases import each, refused

from scaleout.lab import kernels


@each([("128", (128,)), ("512,128,512", (128, 512)), (" 8 , 16 ", (8, 16))])
def test_lists_of_numbers_are_sorted_and_each_once(words, found):
    assert kernels.numbers(words, "--seqs") == found


@each(["", "a", "1,,2", "-4", "1.5", "²", "0", "8,10000001"])
def test_a_list_that_is_none_is_refused(words):
    refused(lambda: kernels.numbers(words, "--seqs"), f"--seqs {words}: give whole numbers from 1 to 10,000,000")


def run(counts):
    return [(100 + step, graphs, 0.1) for step, graphs in enumerate(counts)]


@pytest.mark.parametrize(
    ("counts", "fault", "said"),
    [
        ([1, 2, 3, 4, 5, 6], True, "compiled at each of 6 steps"),
        ([1, 2, 3, 4, 5, 5, 5, 5], True, "compiled at 5 of 8 steps, then torch gave up: the rest ran uncompiled"),
        ([1, 1, 1, 1, 1, 2, 2, 3], True, "still compiling in the second half: 3 graphs in 8 steps"),
        ([1, 2, 2, 2, 2, 2, 2, 2], False, "2 graph(s) in 8 steps, none after step 2"),
        ([1, 1, 1, 2, 2, 2, 2, 2], False, "2 graph(s) in 8 steps, none after step 4"),
        ([3, 3, 3, 3], False, "3 graph(s) in 4 steps, none after step 1"),
    ],
)
def test_graphs_by_step_say_whether_a_run_compiles_again_and_again(counts, fault, said):
    assert kernels.recompiled(run(counts)) == (said, fault)


def test_the_fault_stands_beside_the_fixes_with_torchs_reason():
    text = kernels.recompile({"as found": (run([1, 2, 3]), "size mismatch"), "padded": (run([1, 1, 1]), "")})
    lines = text.splitlines()
    assert lines[2].split() == ["1", "100", "1", "100.0", "100", "1", "100.0"]
    assert "FAULT  as found: compiled at each of 3 steps" in lines and "sound  padded: 1 graph(s) in 3" in text
    assert (
        lines.index("       torch's reason: size mismatch")
        == lines.index("FAULT  as found: compiled at each of 3 steps") + 1
    )


def row(*names, **fields):
    return {"kernels": list(names), "saved": 4e6, "seconds": 0.01, "flash": True, "reason": "", "error": 0.0} | fields


def test_a_mask_is_judged_by_the_name_of_its_kernel():
    rows = {
        "flag": row("scaled_dot_product_flash_attention"),
        "tensor": row("scaled_dot_product_efficient_attention", flash=False),
        "one per head": row("scaled_dot_product_attention_math", flash=False, reason="use\n 4d masks " + "x " * 40),
    }
    text = kernels.mask(rows)
    assert [kernels.slow_path(one) for one in rows.values()] == [False, False, True]
    assert "sound  tensor: scaled_dot_product_efficient_attention" in text
    assert "FAULT  one per head: scaled_dot_product_attention_math\n       why FlashAttention" in text
    assert re.search(r"one per head +10\.0 +4\.00 MB +NO", text) and "       use 4d masks x x" in text
    assert max(map(len, text.splitlines())) <= 80


def products(bf16, fp8, casts):
    return dict(zip(kernels.PRODUCTS, (bf16, fp8, casts), strict=True))


def test_fp8_is_slower_where_its_casts_take_more_than_it_saves():
    predicted = {512: products(1e-5, 5e-6, 2e-5), 8192: products(8e-4, 4e-4, 6e-4)}
    assert kernels.slower(predicted) == [512]
    text = kernels.fp8(4096, "H100 SXM 80 GB", predicted, {})
    assert "predicted: FP8 is slower at 512 of these widths" in text and text.endswith("has no FP8 units.")
    assert re.search(r"^512 +10\.0 +5\.0 +20\.0 +0\.50$", text, re.M)
    measured = {(width, way): 2 * seconds for width, row in predicted.items() for way, seconds in row.items()}
    measured[8192, "fp8 with casts"] = 2e-3
    text = kernels.fp8(4096, "H100 SXM 80 GB", predicted, measured)
    assert "measured: FP8 is slower at 512, 8192 of these widths" in text and "Not measured" not in text
    assert re.search(r"^512( +[\d.]+){4} +20\.0 +10\.0 +40\.0 +0\.50$", text, re.M)
    assert "at no of these widths" in kernels.fp8(1, "x", {8192: predicted[8192]}, {})


def test_what_is_not_known_is_a_dash_and_never_a_zero():
    rows = {
        "SDPA": {"saved": (2e6, 2e6), "forward": (0.001, 0.002), "step": (0.003, 0.006)},
        "flex_attention": {"forward": (None, 0.004)},
        "cuDNN": {"saved": (None, 3e6)},
    }
    lines = [re.split(" {2,}", line) for line in kernels.attention(rows, "512 tokens, d 64").splitlines()[2:]]
    assert lines[0] == ["SDPA", "2.00", "2.00", "2.0", "1.0", "6.0", "3.0", "0.500"]
    assert lines[1] == ["flex_attention", "-", "-", "4.0", "-", "-", "-", "-"]
    assert lines[2] == ["cuDNN", "3.00", "-", "-", "-", "-", "-", "-"]


def test_a_chain_is_compared_with_itself_one_operation_at_a_time():
    measured = {("cheap", "eager"): 0.1, ("cheap", "compiled"): 0.02}
    predicted = {("cheap", "eager"): 0.08, ("cheap", "compiled"): 0.01}
    lines = kernels.fusion(measured, predicted, {"cheap": "ten additions"}).splitlines()
    assert lines[-1].split()[-4:] == ["20.0", "10.0", "5.00", "8.00"]


def test_published_errors_of_fp8_attention_are_those_of_the_paper():
    said = json.loads(repo.text("tests/published/fp8.json"))["attention"]
    names = {
        "tensor": "fp8, a scale a tensor",
        "both": "fp8, scales a block, rotated",
        "rotation": "fp8, a scale a tensor, rotated",
        "blocks": "fp8, scales a block",
        "fp16-fused": "fp16, softmax in fp32",
    }
    assert {name: kernels.PUBLISHED[name] for name in names} == {name: said[key] for name, key in names.items()}
    assert set(kernels.PUBLISHED) == {*kernels.VARIANTS, *kernels.HALF}
