"""A ZeRO step's seconds: equal to DDP's and FSDP's where they are the same step, and what offload and Muon add."""

from dataclasses import replace
from itertools import product

import pytest
from cases import refused, refuses_nonsense

from scaleout.collectives import nccl
from scaleout.collectives.zero import WAYS, Message, messages
from scaleout.spec.hardware import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import CHOICES, Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, total_parameters
from scaleout.timing import ddp_seconds, fsdp_seconds, zero
from scaleout.timing.zero import HOST, Host, from_device, message_seconds, muon_seconds, update_bytes

LLAMA, H100 = PRESETS["llama-2-7b"], DEVICES["h100-sxm"]
N = total_parameters(LLAMA)
RECIPE = Recipe("bf16-master", checkpointing="full")
EIGHT = cluster(1, 8)


def took(stage, on=EIGHT, batch=1, recipe=RECIPE, **rest):
    return from_device(LLAMA, batch, 2048, H100, on, recipe, Layout(dp=on.ranks, zero=stage), **rest)


def test_stage_0_is_ddp():
    for on in (cluster(1, 1), EIGHT, cluster(8, 8)):
        other = ddp_seconds.from_device(LLAMA, 1, 2048, H100, on, gradient_bytes=2, checkpointing="full")
        found = took(0, on)
        assert found.seconds == pytest.approx(other.seconds, rel=1e-12)
        assert found.mfu == pytest.approx(other.mfu) and found.hfu == pytest.approx(other.hfu)


@pytest.mark.parametrize("keep", [False, True])
def test_stage_3_is_fsdp(keep):
    for on in (EIGHT, cluster(8, 8)):
        sharding = Sharding(on.ranks, reshard=not keep, parameter="bf16", reduce="bf16")
        other = fsdp_seconds.from_device(LLAMA, 1, 2048, H100, on, sharding, checkpointing="full")
        assert took(3, on, keep=keep).seconds == pytest.approx(other.seconds, rel=1e-12)


def test_stages_agree_on_one_gpu():
    alone = [took(stage, cluster(1, 1)) for stage in range(4)]
    assert alone[0].wire == alone[0].parts["exposed communication"] == 0
    assert all(other.parts == pytest.approx(alone[0].parts, rel=1e-9) for other in alone[1:])


def test_an_update_moves_28_bytes_with_adamw():
    """As `ddp_seconds.ADAMW_BYTES` has it, with 16-bit weights and gradients and a master copy as well."""
    assert update_bytes(Recipe("fp32")) == update_bytes(Recipe("bf16-master")) == ddp_seconds.ADAMW_BYTES
    assert update_bytes(Recipe("fp32", "sgd")) == 12 and update_bytes(Recipe("fp32", "momentum")) == 20
    for precision, optimizer in product(CHOICES["precision"], CHOICES["optimizer"]):
        assert took(0, recipe=Recipe(precision, optimizer)).parts["update"] == pytest.approx(
            N * update_bytes(Recipe(precision, optimizer)) / H100.memory_bytes_per_s
        )


def test_parts_add_up_and_the_split_update_is_shorter():
    for way, stages in WAYS.items():
        for stage in stages:
            found = took(stage, way=way, passes=2)
            assert sum(found.parts.values()) == pytest.approx(found.seconds) and found.parts["exposed host"] == 0
            assert 0 < found.parts["exposed communication"] <= found.wire
            assert found.parts["update"] == pytest.approx(took(0).parts["update"] / (8 if stage else 1))


def test_where_the_wire_shows():
    """The gather after the update shows, unless the next forward hides it; DeepSpeed reduces after the backward."""
    gather = nccl.seconds("all_gather", EIGHT)(2 * N)
    shown, hidden = took(2).parts["exposed communication"], took(2, hide_weights=True).parts["exposed communication"]
    assert shown == pytest.approx(hidden + gather) and hidden < 0.05 * gather
    plain = took(2, way="DeepSpeed")
    assert plain.parts["exposed communication"] == pytest.approx(plain.wire)
    assert took(2, way="DeepSpeed reduce").wire < plain.wire


def test_messages_are_priced_as_nccl_runs_them():
    one = Message("backward", "reduce_scatter", "gradients", 8 * 10**9, 4)
    each = nccl.seconds("reduce_scatter", EIGHT)(2 * 10**9)
    assert message_seconds(one, EIGHT) == pytest.approx(4 * each)
    assert message_seconds(replace(one, collective="reduce"), EIGHT) == pytest.approx(4 * each)
    found = messages(N, RECIPE, Layout(dp=8, zero=1))
    assert sum(message_seconds(one, EIGHT) for one in found) == pytest.approx(took(1).wire, rel=0.25), "but for buckets"


def test_messages_on_a_calibrated_machine():
    lines = {name: {"alpha_seconds": alpha, "seconds_per_byte": 1e-9}
             for name, alpha in (("all_reduce", 0.5), ("all_gather", 0.125), ("broadcast", 0.25))}  # fmt: skip
    found = messages(10**6, RECIPE, Layout(dp=2, zero=1), "ZeroRedundancyOptimizer", unit=5 * 10**5)
    assert zero.profile_seconds(found, {"collectives": lines}) == pytest.approx(2 * 0.5 + 2 * 0.25 + 4e-3)
    assert zero.profile_seconds((), {"collectives": {}}) == 0
    with pytest.raises(ValueError, match="holds no all_reduce"):
        zero.profile_seconds(found, {"collectives": {}})


def test_passes():
    """Four passes compute four times as long and send what their stage sends."""
    once, four = ({stage: took(stage, passes=passes) for stage in range(4)} for passes in (1, 4))
    for stage in range(4):
        assert four[stage].parts["compute"] == pytest.approx(4 * once[stage].parts["compute"])
        times = {0: 1, 1: 1, 3: 4}.get(stage)
        assert times is None or four[stage].wire == pytest.approx(times * once[stage].wire)
    assert 1 < four[2].wire / once[2].wire < 4
    assert took(3, passes=4, every_pass=False, way="fully_shard").wire < four[3].wire


def test_offload_to_the_host():
    """The host steps its shard at its memory's rate; gradients cross beside a long backward and show beside a short."""
    for stage in (1, 2, 3):
        found = took(stage, offload="optimizer")
        assert found.parts["update"] == pytest.approx(N / 8 * 28 / HOST.memory_bytes_per_s)
        assert found.parts["compute"] == took(stage).parts["compute"] and found.parts["exposed host"] == 0
    short = from_device(LLAMA, 1, 16, H100, cluster(1, 1), RECIPE, Layout(zero=2), offload="optimizer")
    crossing = 2 * N / zero.slot(H100).bytes_per_s
    assert 0.9 * crossing < short.parts["exposed host"] < crossing
    assert took(2, offload="optimizer", host=Host(1e15)).parts["exposed host"] == pytest.approx(crossing / 8, rel=0.05)


def test_offload_to_nvme():
    """14 bytes a parameter are read, and as many written: at 2.5 and 1.25 GB/s most of the step."""
    found = took(3, offload="optimizer", to="nvme")
    disk = N / 8 * 14 * (1 / 2.5e9 + 1 / 1.25e9)
    assert found.parts["update"] + found.parts["exposed host"] == pytest.approx(disk)
    assert disk > 0.9 * found.seconds
    both, host = took(3, offload="parameters", to="nvme"), took(3, offload="parameters")
    assert both.parts["exposed communication"] > host.parts["exposed communication"]
    assert both.parts["exposed host"] == pytest.approx(found.parts["exposed host"] + N / 8 * 2 / 1.25e9)
    assert host.parts["exposed host"] == 0


def test_muon():
    """Every GPU makes all matrices orthogonal, or one an eighth of them: what is sent shrinks too."""
    alone = muon_seconds(LLAMA, H100, cluster(1, 1), RECIPE, Layout(zero=1))
    everyone, owner, whole = (muon_seconds(LLAMA, H100, EIGHT, RECIPE, Layout(dp=8, zero=1), how)
                              for how in ("gather", "owner", "whole"))  # fmt: skip
    assert alone == {"messages": 0, "products": everyone["products"]}
    assert owner["products"] == whole["products"] == pytest.approx(everyone["products"] / 8)
    assert whole["messages"] == 0 < owner["messages"] < everyone["messages"]
    assert everyone["products"] > took(1).seconds, "2,048 tokens a GPU are too few to do it eight times over"


def test_late_gradients_of_every_pass_are_waited_for():
    late = [from_device(LLAMA, 1, 64, H100, EIGHT, RECIPE, Layout(dp=8, zero=2), offload="optimizer",
                        passes=passes).parts["exposed host"] for passes in (1, 4)]  # fmt: skip
    assert late[1] == pytest.approx(4 * late[0]) and late[0] > 0


def test_stage_0_makes_every_matrix_orthogonal_on_every_rank():
    products = [muon_seconds(LLAMA, H100, EIGHT, RECIPE, Layout(dp=8), how)["products"] for how in ("gather", "owner")]
    assert products[0] == products[1]


@pytest.mark.parametrize(("wrong", "says"), [
    (lambda: from_device(LLAMA, 1, 64, H100, EIGHT, RECIPE, Layout(dp=4, zero=1)), "make dp 8, tp 1 and pp 1"),
    (lambda: from_device(LLAMA, 1, 64, H100, EIGHT, RECIPE, Layout(dp=4, tp=2)), "make dp 8, tp 1 and pp 1"),
    (lambda: took(0, offload="optimizer"), "use stage 1, 2 or 3"),
    (lambda: took(2, offload="optimizer", to="nvme"), "offload to the host"),
    (lambda: took(2, keep=True), "use stage 3"),
    (lambda: took(2, way="fully_shard"), "fully_shard has no stage 2"),
    (lambda: took(3, weight_bytes=3), "bytes of a number on the wire '3' is unknown"),
    (lambda: took(3, efficiency=2), "efficiency is a share"),
    (lambda: from_device(LLAMA, 1, 64, H100, 8, RECIPE, Layout()), "cluster must be a Cluster"),
    (lambda: muon_seconds(LLAMA, "h100", EIGHT, RECIPE, Layout(dp=8, zero=1)), "device must be a Device"),
    (lambda: update_bytes("bf16"), "recipe must be a Recipe"),
    (lambda: took(3, host=8), "host must be a Host"),
    (lambda: took(1, hide_weights=1), "hide_weights must be True or False"),
    (lambda: Host(nvme_read_bytes_per_s=0), "nvme_read_bytes_per_s must be a finite number above 0"),
])  # fmt: skip
def test_refusals_are_one_line(wrong, says):
    with pytest.raises(ValueError, match=says) as error:
        wrong()
    assert "\n" not in str(error.value)


def test_nonsense_is_refused():
    one = Message("backward", "reduce_scatter", "gradients", 8 * 10**9, 4)
    profile = {"collectives": {"reduce_scatter": {"alpha_seconds": 1e-3, "seconds_per_byte": 1e-9}}}
    refuses_nonsense(message_seconds, one, EIGHT)
    refuses_nonsense(zero.slot, H100)
    refuses_nonsense(update_bytes, RECIPE)
    refuses_nonsense(zero.profile_seconds, [one], profile, allowed=[(0, [])])
    refused(lambda: zero.profile_seconds([one], {"collectives": []}),
            "profile must be one by labs/calibrate.py, with collectives, not {'collectives': []}")
