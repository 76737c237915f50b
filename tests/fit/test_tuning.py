"""Fine-tuning on the command line: the view's figures, the fastest way that fits, and in one line what cannot be."""

import contextlib
import io
import json
import re
from types import SimpleNamespace

import pytest
from cases import each

from scaleout.fit import tuning
from scaleout.fit.command import main, nearest, parser, tuned
from scaleout.memory.allocator import usable
from scaleout.memory.job import fullest
from scaleout.spec.devices import DEVICES
from scaleout.spec.models import MODELS
from scaleout.timing.job import step
from scaleout.timing.price import run_cost
from scaleout.views.finetune import levers

QLORA = ("qwen3-8b", "--device", "rtx-4090", "--qlora", "16", "--seq", "2048")  # as book/planner.md has it
NODE = ("llama-3.1-8b", "--gpus", "8", "--device", "l40s", "--full")


def found(capsys, *argv):
    code = main([*argv, "--json"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    return json.loads(out)


def asked(*argv):
    """(the setting, sequences of a GPU, what is free) of a command."""
    options = parser().parse_args([*argv])
    return tuned(options, next(name for name in ("full", "lora", "qlora") if getattr(options, name)))[:3]


def best(*argv):
    setting, sequences, free = asked(*argv)
    return tuning.chosen(sorted(tuning.candidates(setting, sequences, free), key=tuning.rank))


@pytest.mark.parametrize(
    "argv",
    [QLORA, NODE, (*QLORA, "--layout", "offload"), (*NODE, "--optimizer", "adamw-8bit", "--program", "liger")],
)
def test_the_figures_are_the_doors(argv):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*argv, "--json"]) == 0
    result, one = json.loads(out.getvalue()), best(*argv)
    shown, account, seconds = result["best"], fullest(one.job), step(one.job)
    assert shown["memory"] == account.moments and shown["bytes"] == account.peak_bytes
    assert shown["bytes"] == max(sum(kinds.values()) for kinds in shown["memory"].values())
    assert (shown["seconds"], shown["parts"], shown["mfu"]) == (seconds.seconds, seconds.parts, seconds.mfu)
    assert result["usable_bytes"] == usable(one.card.memory_bytes)
    assert shown["fits"] is (shown["bytes"] <= result["usable_bytes"])
    tokens = result["sequences"] * result["seq"]
    assert one.job.tokens_per_step == tokens == shown["micro_batch"] * shown["micro_batches"] * one.gpus * result["seq"]
    cost = run_cost(1e9, seconds.tokens_per_second, one.gpus, 0, 2.5)
    assert result["run"]["hours"] == cost.hours and result["run"]["price"] == cost.price


@pytest.mark.parametrize("argv", [QLORA, NODE])
def test_no_simpler_way_of_the_same_step_is_faster(argv):
    setting, sequences, free = asked(*argv)
    ways = list(tuning.candidates(setting, sequences, free))
    assert {one.batch * one.passes for one in ways} == {sequences} and len({one.checkpointing for one in ways}) == 2
    shown = best(*argv)
    fitting = [one for one in ways if one.fits]
    assert shown.fits and all(one.rate <= shown.rate for one in fitting if one.layout == shown.layout)
    fastest = max(one.rate for one in fitting)
    assert shown.rate >= fastest / (1 + shown.band.share)
    assert any(not one.fits and one.rate > shown.rate for one in ways), "what is faster does not fit"


def test_a_simpler_layout_is_chosen_within_the_band_alone():
    def way(layout, rate, fits=True):
        return SimpleNamespace(layout=layout, rate=rate, fits=fits, band=SimpleNamespace(share=0.1))

    fast, near, far = way("offload", 100), way("fsdp", 95), way("ddp", 90)
    assert tuning.chosen([fast, near, far]) is near, "of 110% of its rate the fastest is not told from it"
    assert tuning.chosen([fast, far]) is fast
    assert tuning.chosen([way("fsdp", 1, False), far]).layout == "fsdp", "nothing fits"


def test_layouts_are_ranked_with_reasons(capsys):
    result = found(capsys, *NODE)
    names = [one["layout"] for one in result["layouts"]]
    assert names[0] == result["best"]["layout"] and result["layouts"][0]["why"] == "the best"
    assert len(names) == len(set(names)) == 6 and result["fitting"] == sum(one["fits"] for one in result["layouts"])
    rates = [one["tokens_per_second"] for one in result["layouts"][1:] if one["fits"]]
    assert rates == sorted(rates, reverse=True)
    ddp = next(one for one in result["layouts"] if one["layout"].startswith("a copy on each"))
    assert ddp["why"].startswith("does not fit by ")
    assert found(capsys, *QLORA)["layouts"][0]["layout"].startswith("one GPU")


def test_what_is_given_is_kept(capsys):
    given = (*NODE, "--layout", "ddp", "--checkpointing", "none", "--micro-batch", "2", "--batch", "32")
    result = found(capsys, *given)
    shown = result["best"]
    assert (shown["layout"], shown["checkpointing"], shown["micro_batch"], shown["micro_batches"]) == (
        "a copy on each (DDP)", "none", 2, 2)  # fmt: skip
    assert not shown["fits"] and "it fits, in" in result["lever"] and len(result["layouts"]) == 1
    few, all_of_them = (found(capsys, *QLORA, "--targets", targets)["trained"] for targets in ("q+v", "all"))
    assert few == 36 * 16 * (4096 + 4096 + 4096 + 1024) and few < all_of_them / 4
    small, large = (
        found(capsys, *QLORA, *more)["best"]["memory"]["optimizer"]["weights"] for more in ((), ("--prepared",))
    )
    assert large - small == 2 * (2 * 151_936 * 4096 + (2 * 36 + 1) * 4096 + 2 * 36 * 128)


def test_the_levers_are_the_views(capsys):
    result, one = found(capsys, *QLORA), best(*QLORA)
    changes = {row["change"]: row for row in result["changes"]}
    assert list(changes) == list(levers.every(one))
    for name, change in levers.every(one).items():
        after = one.other(**change)
        assert (changes[name]["bytes"], changes[name]["verdict"]) == (after.peak, after.verdict)
        assert changes[name]["gain"] == after.rate / one.rate - 1
    lever = levers.best(one)
    assert lever and result["lever"].startswith(f"Try {lever.words}")


def test_it_is_printed_as_tables(capsys):
    assert main([*QLORA]) == 0
    out = capsys.readouterr().out
    assert (
        "Qwen3 8B (8,190,735,360 parameters and 43,646,976 of adapters) on 1 RTX 4090 24 GB, Hugging Face, QLoRA" in out
    )
    assert "8 sequences of 2,048 tokens per step" in out and "one change away" in out and "1bn tokens: " in out
    assert "backward: blocks" in out and "layouts (" in out
    assert "(an example: give yours by --price)" in out and "CPU memory" not in out
    assert main([*QLORA, "--layout", "offload", "--price", "0.4"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"offloaded: [67]\.\d GB of CPU memory per GPU", out) and "an example" not in out
    assert main(["gpt2", "--device", "t4", "--full"]) == 0
    assert "124,439,808 parameters, 124,439,808 of them trained" in capsys.readouterr().out


@each(list(MODELS))
def test_every_model_by_name_is_answered(key):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([key.upper(), "--device", "h100-sxm", "--qlora", "--micro-batch", "1", "--json"]) == 0
    result = json.loads(out.getvalue())
    assert result["model"]["name"] == MODELS[key].name and result["best"]["fits"]


@each(
    [
        (("qwen3-7b", "--device", "t4", "--lora"), "'qwen3-7b' is no config.json, and no folder with one"),
        (("qwen3-7b", "--device", "t4", "--lora"), "models by name that are near: qwen3-8b"),
        (("qwen3-8b", "--device", "h100", "--lora"), "device 'h100' is unknown: use one of v100"),
        (("qwen3-8b", "--device", "h100", "--lora"), "nearest: h100-pcie, h100-sxm"),
        (("qwen3-8b", "--device", "rtx4090", "--lora"), "nearest: rtx-4090"),
        (("qwen3-8b", "--lora"), "the following arguments are required: --device"),
        (("qwen3-8b", "--device", "t4", "--lora", "0"), "adapter_rank must be a whole number of at least 1, not 0"),
        (("qwen3-8b", "--device", "t4", "--lora", "--full"), "not allowed with argument"),
        (("qwen3-8b", "--device", "t4", "--lora", "--gpus", "16"), "use at most 8 GPUs, not 16, or ask without --lora"),
        (("qwen3-8b", "--device", "t4", "--lora", "--gpus", "0"), "gpus must be a whole number of at least 1, not 0"),
        (("qwen3-8b", "--device", "t4", "--lora", "--gpus", "4", "--batch", "6"), "the nearest that does is 8"),
        (("qwen3-8b", "--device", "t4", "--lora", "--micro-batch", "3"), "does not divide 8 sequences per GPU: use 2"),
        (("qwen3-8b", "--device", "t4", "--lora", "--micro-batch", "0"), "micro-batch must be a whole number"),
        (("phi-4", "--device", "t4", "--lora", "--program", "liger"), "for Llama's modules only: use program hf"),
        (("phi-4", "--device", "t4", "--lora", "--targets", "q"), "its q, k and v are one matrix"),
        (("qwen3-8b", "--device", "t4", "--lora", "--targets", "q+x"), "not 'x'"),
        (("qwen3-8b", "--device", "t4", "--lora", "--optimizer", "adam"), "nearest: adamw"),
        (("qwen3-8b", "--device", "t4", "--full", "--precision", "fp16"), "precision 'fp16' is unknown"),
        (("qwen3-8b", "--device", "t4", "--lora", "--layout", "tp=2"), "layout 'tp=2' is unknown: use one of"),
        (("qwen3-8b", "--device", "t4", "--lora", "--recompute", "all"), "checkpointing 'all' is unknown: use"),
        (("qwen3-8b", "--device", "t4", "--lora", "--program", "megatron"), "program 'megatron' is unknown"),
        (("qwen3-8b", "--device", "t4", "--lora", "--loss", "mean"), "loss must be one of eager, fused, chunked"),
        (("qwen3-8b", "--device", "t4", "--lora", "--seq", "0"), "seq must be a whole number of at least 1, not 0"),
        (("gpt2", "--device", "t4", "--lora", "--seq", "2048"), "longer than the position table: use at most 1,024"),
        (("qwen3-8b", "--device", "t4", "--lora", "--tokens", "-1"), "tokens must be a finite number from 0"),
        (("qwen3-8b", "--device", "t4", "--gpus", "1", "--targets", "all"), "--targets is of fine-tuning"),
        (("qwen3-8b", "--device", "t4", "--micro-batch", "2"), "add --full, --lora or --qlora"),
        (("qwen3-8b", "--device", "t4", "--full", "--layout", "fsdp"), "one GPU has nothing to shard: use layout ddp"),
        (("qwen3-8b", "--device", "t4", "--full", "--targets", "q+v"), "--targets is of --lora or --qlora: leave it"),
        (("qwen3-8b", "--device", "t4", "--lora", "--prepared"), "--prepared is of --qlora: leave it out of --lora"),
        (("qwen3-8b", "--device", "t4", "--qlora", "--precision", "bf16"), "--precision is of --full: leave it out"),
        (("qwen3-8b", "--device", "t4", "--full", "--network", "ndr"), "--network is of more than one node"),
        (("qwen3-8b", "--device", "t4", "--full", "--program", "liger", "--loss", "eager"), "leave out --loss eager"),
        (("qwen3-8b", "--device", "t4", "--gpus", "1", "--micro-batch", "0"), "add --full, --lora or --qlora"),
        (("qwen3-8b", "--device", "h100-sxm", "--full", "--tokens", "1e308", "--price", "1e308"),
         "the price of so many tokens must be a finite number"),
        (("qwen3-8b", "--device", "t4", "--full", "--gpus", "2", "--layout", "fsdp", "--optimizer", "muon"),
         "muon is not priced under FSDP"),
    ]
)  # fmt: skip
def test_what_cannot_be_is_one_line(argv, words):
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        assert main(list(argv)) == 2
    line = error.getvalue()
    assert line.startswith("fit: ") and line.count("\n") == 1 and words in line, line


@each(
    [
        ('{"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, '
         '"vocab_size": 99, "intermediate_size": 64, "use_sliding_window": true, "max_window_layers": "1"}',
         "max_window_layers must be a whole number of at least 0, not '1'"),
        ("[1, 2]", "a config.json is an object, from { to }"),
        ("{", "this is not JSON: paste a whole config.json"),
        ("", "this is not JSON"),
        ('{"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B"}',
         "this file is an adapter's: take the config.json of its base model, 'Qwen/Qwen3-8B'"),
        ('{"dim": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 32000}', "this is Meta's params.json"),
        ('{"model_type": "qwen4", "hidden_size": 4096}', "is of model_type 'qwen4', and not qwen"),
        ('{"model_type": "llama", "hidden_size": 4096}', "a llama lacks num_hidden_layers"),
        ('{"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, '
         '"vocab_size": 32000, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2}',
         "the memory of a model with experts is not priced with adapters"),
        ("x" * 2_000_000, "is larger than the 1 MB that a config.json has at most"),
    ]
)  # fmt: skip
def of_a_file(folder, text, words):
    file = folder / "config.json"
    file.write_text(text, encoding="utf-8")
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        assert main([str(file), "--device", "t4", "--lora"]) == 2
    line = error.getvalue()
    assert line.startswith("fit: ") and line.count("\n") == 1 and words in line, line


def test_a_file_that_is_none_is_one_line(tmp_path):
    of_a_file(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\x80\x02\x8a")
    with contextlib.redirect_stderr(io.StringIO()) as error:
        assert main([str(tmp_path), "--device", "t4", "--lora"]) == 2
    assert "is no config.json, and no folder with one" in error.getvalue()


def test_a_device_without_an_end_is_no_config():
    with contextlib.redirect_stderr(io.StringIO()) as error:
        assert main(["/dev/zero", "--device", "t4", "--lora"]) == 2
    assert error.getvalue() == "fit: '/dev/zero' is larger than the 1 MB that a config.json has at most\n"


def test_nearest_names_are_parts_and_like_words():
    assert nearest("h100", DEVICES).startswith("h100-pcie, h100-sxm")
    assert nearest("Qwen3", MODELS).startswith("qwen3-0.6b, qwen3-8b, qwen3-32b")
    assert nearest("xyz", DEVICES) == "" == nearest("", DEVICES)


@pytest.mark.parametrize("device", ["t4", "rtx-4090", "a100-40gb", "l40s"])
def test_small_gpus_are_answered(capsys, device):
    result = found(capsys, "llama-3.2-1b", "--device", device, "--lora")
    assert result["best"]["fits"] and result["cluster"] == f"1 {DEVICES[device].name}"
    assert result["largest_micro_batch"] >= result["best"]["micro_batch"]
