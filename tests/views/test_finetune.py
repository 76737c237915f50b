"""The view of fine-tuning: its figures are those of the doors, its grid that of single questions, its levers work."""

import json
import re
import xml.etree.ElementTree as ET

import pytest
from cases import each
from repo import ROOT
from view_settings import PASTED, by_chance

from scaleout import views
from scaleout.draw import svg
from scaleout.memory import allocator
from scaleout.memory.job import fullest
from scaleout.memory.states import trained_parameters
from scaleout.spec.devices import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.transformer import total_parameters
from scaleout.timing.job import step
from scaleout.timing.price import run_cost
from scaleout.views.finetune import levers, tables
from scaleout.views.finetune.picture import brief
from scaleout.views.finetune.setting import BATCHES, METHODS, SEQS, Setting, most

FULL = {"method": "full"}
LARGE = {"model": "qwen3-32b", "device": "h100-sxm", "method": "lora"}


def setting(**params):
    return Setting.of(views.defaults("finetune") | params)


def shown(**params):
    return views.render("finetune", params, advise=False)


@each([{}, FULL, LARGE, {"gpus": 8, "layout": "ddp"}, {"gpus": 4, "layout": "offload"}, {"program": "compiled"},
       {"config": PASTED, "optimizer": "lion-8bit"}])  # fmt: skip
def test_memory_and_seconds_are_those_of_the_doors(params):
    one, values = setting(**params), shown(**params)["values"]
    account, found = fullest(one.job), step(one.job)
    assert values["peak_gb"] == account.peak_bytes / 1e9 and values["moment"] == account.peak_moment
    assert (values["seconds"], values["parts"], values["mfu"]) == (found.seconds, found.parts, found.mfu)
    assert values["tokens_per_second"] == found.tokens_per_second
    assert one.job.tokens_per_step == one.gpus * one.passes * one.batch * one.tokens
    cost = run_cost(1e7, found.tokens_per_second, one.gpus, 0, 2.5)
    assert values["run"] == {"hours": cost.hours, "gpu_hours": cost.gpu_hours, "price": cost.price}


def test_what_follows_from_sizes_alone():
    """Weights in 16 bits, all gradients in 16 bits, two states each; adapters of rank x (inputs + outputs)."""
    one = setting(**FULL)
    parameters = total_parameters(one.shape)
    assert one.account.states == {"weights": 2 * parameters, "master": 0, "gradients": 2 * parameters,
                                  "optimizer": 4 * parameters}  # fmt: skip
    narrow, wide = setting(method="lora", rank=8), setting(method="lora", rank=64)
    sides = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14_336)  # q and out, k and v, the MLP's
    assert trained_parameters(narrow.shape, narrow.recipe, Layout()) == 32 * 8 * sides
    assert trained_parameters(wide.shape, wide.recipe, Layout()) == 8 * 32 * 8 * sides
    assert narrow.account.states["weights"] == 2 * parameters + 4 * 32 * 8 * sides, "adapters in fp32"
    frozen = setting().account.states["weights"]
    assert 0.26 < frozen / (2 * parameters) < 0.4, "four bits, but for embeddings and the head"


@each([{}, LARGE, {"gpus": 8, "device": "l40s", **FULL}])
def test_the_grid_is_what_single_questions_say(params):
    one = setting(**params)
    for cell in one.cells:
        alone = one.other(seq=cell.seq, batch=cell.batch)
        assert cell.verdict == alone.verdict == allocator.verdict(alone.peak, one.card.memory_bytes), cell
        assert cell.rate == (0.0 if cell.verdict == "does not fit" else alone.rate)
    assert len(one.cells) == len(SEQS) * len(BATCHES)
    assert len({cell.verdict for cell in one.cells}) >= 2


def test_a_learned_table_of_positions_ends_the_grid():
    one = setting(model="gpt2", seq=4096)
    assert one.tokens == 1024 and {cell.seq for cell in one.cells if cell.verdict} == {512, 1024}
    said = views.render("finetune", {"model": "gpt2"})["svg"]
    assert "the model has no positions for it" in said


def test_the_largest_micro_batch_is_the_last_that_fits():
    one = setting()
    assert one.largest >= 1 and one.other(batch=one.largest).fits and not one.other(batch=one.largest + 1).fits
    assert setting(**FULL).largest == 0
    assert [most(lambda n, top=top: n <= top) for top in (0, 1, 2, 3, 37, 4096)] == [0, 1, 2, 3, 37, 4096]


NEEDY = {"model": "qwen2.5-72b", **FULL, "gpus": 8, "device": "h200", "checkpointing": "none", "layout": "ddp"}


@each([FULL, NEEDY, {"method": "lora", "seq": 8192}, {"checkpointing": "none", "batch": 4}, {"model": "llama-3-70b"}])
def test_what_does_not_fit_is_told_what_makes_it_fit(params):
    one, said = setting(**params), views.advice("finetune", params)
    lever = levers.best(one)
    assert not one.fits and lever and one.other(**lever.change).fits and lever.words in said
    assert "it fits, in " in said
    parts = re.split(", | and ", lever.words)
    if len(parts) > 1:  # none of them is enough, nor can one of them be left out
        changes = levers.savers(one)
        assert not any(one.other(**change).fits for change in changes.values())
        for left in parts:
            assert not levers._together(one, changes, [name for name in parts if name != left]).fits


def test_of_more_gpus_the_fewest_are_named():
    """Llama 2 70B in NF4 has about 37 GB with what is not quantized: one RTX 4090 is too small, and two nearly."""
    one = setting(model="qwen3-32b")
    assert levers.best(one).words == "FSDP over 2 GPUs" and not one.fits
    large = setting(model="llama-2-70b")
    assert levers.best(large).words == "FSDP over 4 GPUs" and not large.other(gpus=2, layout="fsdp").fits
    assert "FSDP over 2 GPUs" not in levers.savers(setting(gpus=2)) and "FSDP over 8 GPUs" in levers.savers(
        setting(gpus=4)
    )


@each([{}, LARGE | {"seq": 512}, {"gpus": 8, "device": "h100-sxm"}, {"model": "gpt2"}])
def test_what_fits_is_told_what_gains_most(params):
    one, lever = setting(**params), levers.best(setting(**params))
    fitting = [one.other(**change) for change in levers.speeders(one).values() if one.other(**change).fits]
    gain = max((after.rate for after in fitting), default=one.rate) / one.rate - 1
    if gain > levers.GAIN:
        assert one.other(**lever.change).rate == max(after.rate for after in fitting)
        assert f"**{lever.words}**: {gain:+.0%} tokens/s" in views.advice("finetune", params)
    else:
        assert lever is None


def test_nothing_helps_a_model_that_no_node_holds():
    params = {"model": "llama-3-70b", **FULL, "device": "t4", "seq": 32_768, "batch": 64}
    assert levers.best(setting(**params)) is None
    assert views.advice("finetune", params) == "No change here makes it fit."


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_bars_are_as_long_as_their_bytes_and_the_line_is_what_is_usable(width):
    one = setting()
    root = ET.fromstring(views.render("finetune", {}, width)["svg"])
    marks = {mark.get("data-mark"): mark for mark in root.iter() if mark.get("data-mark")}
    left = float(marks["lora weights"].get("x"))
    per_byte = float(marks["lora weights"].get("width")) / one.methods["lora"].account.peak["weights"]
    for method in ("lora", "qlora"):
        long = sum(float(mark.get("width")) for name, mark in marks.items() if name.startswith(f"{method} "))
        assert long == pytest.approx(one.methods[method].peak * per_byte, abs=0.1)
    assert float(marks["limit"].get("x1")) == pytest.approx(left + one.usable * per_byte, abs=0.1)
    assert "over full" in marks and "over qlora" not in marks and "chosen" in marks
    assert marks["full"].get("data-press") == "method=full" and "qlora" not in marks, (
        "the one that is shown is no button"
    )


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_the_line_goes_through_no_figure(width):
    """Full fine-tuning of 8B takes 68.0 of 73.4 usable GB on an H100: its figure stands beyond the line."""
    for device in ("h100-sxm", "rtx-4090", "a100-40gb"):
        root = ET.fromstring(views.render("finetune", {"device": device}, width)["svg"])
        limit = next(float(one.get("x1")) for one in root.iter() if one.get("data-mark") == "limit")
        figures = [one for one in root.iter() if re.fullmatch(r"[\d.,]+ GB", one.text or "")]
        assert len(figures) == 3
        for one in figures:
            start = float(one.get("x"))
            assert not start < limit < start + svg.measure(one.text, svg.SMALL), (device, one.text)


def test_rates_are_written_short():
    assert [brief(rate) for rate in (0.84, 8.4, 99.4, 99.6, 684, 998.7, 999.6, 1206, 99_400, 128_000)] == [
        "0.84", "8.4", "99", "100", "684", "999", "1.0k", "1.2k", "99k", "128k"]  # fmt: skip


# --- below the picture ----------------------------------------------------------------------------------------------


def rows(section):
    return next(block[2] for block in section["blocks"] if block[0] == "table")


def test_one_change_away_is_what_the_change_gives():
    one = setting()
    found = {name: cells for name, *cells in rows(tables.changes(one))}
    assert set(found) == set(levers.every(one)) and "LoRA" in found and "QLoRA" not in found
    for name, change in levers.every(one).items():
        after = one.other(**change)
        assert found[name][2] == ("" if after.fits else after.verdict)
        assert found[name][0].startswith(f"{after.peak / 1e9:.3g}"[:3])
    over = [name for name, cells in found.items() if name.startswith("micro-batch") and cells[2] == "does not fit"]
    assert len(over) <= 1, "of micro-batches that are too large the first"


def test_layouts_are_ranked_and_one_gpu_has_no_fsdp():
    alone = rows(tables.layouts(setting()))
    assert [cells[0] for cells in alone] == ["one GPU", "offloaded to CPU (FSDP)"]
    one = setting(gpus=8, device="l40s", **FULL)
    names = [cells[0] for cells in rows(tables.layouts(one))]
    assert set(names) == {"a copy on each (DDP)", "sharded (FSDP)", "FSDP, offloaded to CPU"}
    assert names[-1] == "a copy on each (DDP)" and not one.layouts["ddp"].fits and one.layouts["fsdp"].fits
    small = setting(gpus=8, device="h100-sxm", model="llama-3.2-1b", **FULL)
    assert small.layouts["ddp"].rate >= small.layouts["fsdp"].rate > small.layouts["offload"].rate
    said = tables.layouts(one)["blocks"][-1][1]
    assert said.startswith("Offloaded: ") and one.layouts["offload"].account.host


def test_other_gpus_are_the_same_job():
    one, found = setting(), rows(tables.cards(setting()))
    assert [cells[0] for cells in found] == [device.name for device in DEVICES.values()]
    by_name = {cells[0]: cells for cells in found}
    for key, device in DEVICES.items():
        other = one.other(device=key)
        assert by_name[device.name][2] == (f"up to {other.largest}" if other.fits else other.verdict)
    rates = {key: one.other(device=key).rate for key in ("rtx-3090", "rtx-4090", "rtx-5090")}
    assert rates["rtx-3090"] < rates["rtx-4090"] < rates["rtx-5090"], "the newer GeForce is the faster one"
    assert rates["rtx-5090"] / rates["rtx-4090"] < 209.5 / 165.2, "by no more than its arithmetic"


def test_figures_say_what_is_left_out():
    """torchtune is priced by the book's blocks; Hugging Face's modules are followed."""
    gemma = {"model": "gemma-2-9b"}
    for program, there in (("eager", True), ("huggingface", False)):
        said = json.dumps(views.beneath("finetune", gemma | {"program": program}, "figures"))
        left_out = setting(**gemma, program=program).left_out
        assert all(words in said for words in left_out) and ("Not in these figures" in said) is there is bool(left_out)
    assert views.beneath("finetune", {"tokens": 50.0, "price": 1.0}, "run")["blocks"][0][2][2][1].endswith(" EUR")


# --- what cannot be -------------------------------------------------------------------------------------------------


def test_what_is_not_priced_is_no_lever():
    assert "muon is not priced under FSDP" in setting(optimizer="muon", gpus=8, layout="fsdp", **FULL).refusal
    one = setting(optimizer="muon", **FULL)
    assert not one.refusal and "CPU offload" not in levers.every(one) and list(one.layouts) == ["ddp"]
    for params in ({"model": "llama-9"}, {"gpus": 3}, {"config": "{"}, {"rank": 0}, {"optimizer": "muon"}):
        with pytest.raises(ValueError) as refused:
            shown(**params)
        assert "\n" not in str(refused.value)


def test_one_matrix_of_q_k_and_v_is_adapted_whole():
    phi = {"model": "phi-4", "device": "h200", "method": "lora", "targets": "q+v"}
    assert (
        setting(**phi).recipe.adapter_targets == "q+k+v" and "one matrix" in shown(**phi)["levers"]["targets"]["note"]
    )
    assert setting(**phi, program="eager").recipe.adapter_targets == "q+v"
    assert not setting(targets="q+v", method="lora").fused


def test_ligers_kernels_are_priced_for_llamas_modules():
    llama, gemma = (setting(model=model, program="liger", method="lora") for model in ("qwen3-8b", "gemma-2-9b"))
    assert llama.recipe.operations == "liger" and llama.recipe.loss == "chunked"
    assert llama.peak < llama.other(program="huggingface").peak and llama.rate > llama.other(program="huggingface").rate
    assert gemma.job == gemma.other(program="huggingface").job
    assert "without them" in shown(model="gemma-2-9b", program="liger")["levers"]["program"]["note"]
    assert "Liger's kernels" in levers.every(setting()) and "Liger's kernels" not in levers.every(gemma)


def test_controls_of_another_method_say_so():
    notes = {method: set(shown(method=method)["levers"]) for method in METHODS}
    assert notes["full"] == {"rank", "targets", "unquantized", "layout"}
    assert notes["lora"] == {"precision", "unquantized", "layout"} and notes["qlora"] == {"precision", "layout"}
    assert "off" in shown(config=PASTED)["levers"]["model"]
    for method, name, value in (("full", "rank", 64), ("lora", "precision", "autocast-bf16")):
        here, there = shown(method=method)["values"], shown(method=method, **{name: value})["values"]
        changed = {key for key in METHODS if here["by_method_gb"][key] != there["by_method_gb"][key]}
        assert changed and method not in changed and here["seconds"] == there["seconds"]


def test_what_one_gpu_and_an_old_gpu_do_not_have_is_said():
    alone, copies = shown(), shown(layout="ddp")
    assert alone["values"] == copies["values"] and "nothing to shard" in alone["levers"]["layout"]["note"]
    assert "layout" not in shown(gpus=2)["levers"] and "layout" not in shown(layout="offload")["levers"]
    for key, without in (("t4", True), ("v100", True), ("a100-40gb", False), ("rtx-3090", False)):
        assert ("no bf16" in shown(device=key)["levers"].get("device", {}).get("note", "")) is without, key


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_says_what_is_predicted():
    page = (ROOT / "book" / "planner.md").read_text(encoding="utf-8")
    one = setting()
    full, lora, qlora = (f"{each.peak / 1e9:.1f}" for each in one.methods.values())
    assert f"full fine-tuning needs {full} GB, LoRA {lora} GB and QLoRA {qlora} GB" in page
    assert f"{one.usable / 1e9:.1f} GB of an RTX 4090 are usable" in page
    share = trained_parameters(one.shape, one.recipe, Layout()) / total_parameters(one.shape)
    assert f"LoRA trains {100 * share:.2f}% of the parameters" in page
    order = [name for name in levers.savers(setting(**FULL, gpus=4, layout="ddp", batch=2, checkpointing="none"))
             if not name.startswith("FSDP over")]  # fmt: skip
    said = page.partition("from the mildest to the harshest: ")[2].partition(".")[0].lower()
    keys = (
        "micro-batch 1",
        "checkpointing",
        "loss in chunks",
        "8 bits",
        "lora instead",
        "qlora instead",
        "half",
        "fsdp",
        "cpu",
    )
    places = [said.index(key) for key in keys]
    assert places == sorted(places) and len(order) == len(keys)


def test_by_chance_no_setting_breaks():
    for params in by_chance("finetune", 20, 7):
        assert shown(**params)["values"]["peak_gb"] > 0
        for name in ("changes", "layouts", "run", "figures", "cards"):
            assert views.beneath("finetune", params, name)["blocks"]
