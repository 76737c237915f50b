"""A block under tensor and sequence parallelism: counts, bytes, shapes, sums and refusals. What any cut computes is in
test_tensor_truth.py."""

import itertools
import json
from pathlib import Path

import pytest
from cases import refused

from scaleout.collectives import alpha_beta
from scaleout.collectives.placements import FEATURES, READ, TOKENS, WHOLE, Move
from scaleout.collectives.tensor import CUTS, MEGATRON, block
from scaleout.collectives.vocabulary import ends
from scaleout.spec.slices import divides
from scaleout.spec.topology import Wire
from scaleout.spec.transformer import PRESETS, Shape, flops, linears, norm_parameters

GPT, LLAMA = PRESETS["gpt-3-175b"], PRESETS["llama-3-70b"]
PUBLISHED = json.loads((Path(__file__).parents[1] / "published" / "tensor_parallel.json").read_text())


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_megatron_sends_what_its_authors_say(tp):
    """8 b s h (t - 1) / t elements per layer: two all-reduces each way."""
    one = block(GPT, 2, 2048, tp)
    said = eval(PUBLISHED["megatron_2021"]["elements_a_layer"], {"b": 2, "s": 2048, "h": GPT.hidden, "t": tp})
    assert (one.sent("forward") + one.sent("backward")) / 2 == pytest.approx(said)
    calls = {"all_reduce": 2} if tp > 1 else {}
    assert one.counts("forward") == one.counts("backward") == calls and one.legal and not one.sums


def test_sequence_parallelism_sends_as_much_and_gathers_twice_more_where_it_keeps_less():
    plain, kept, again = (
        block(GPT, 1, 2048, 8),
        *(block(GPT, 1, 2048, 8, sequence_parallel=True, gather_again=way) for way in (False, True)),
    )
    assert kept.counts("forward") == kept.counts("backward") == {"all_gather": 2, "reduce_scatter": 2}
    assert again.counts("backward") == {"all_gather": 4, "reduce_scatter": 2}
    assert [(move.collective, *move.of) for move in again.moves("backward")] == [
        (name, of)
        for last in ("down", "out")
        for name, of in (("all_gather", last), ("all_gather", "normed"), ("reduce_scatter", "normed"))
    ], "the MLP's first; what is gathered again goes before the gradient of it is there"
    assert kept.sent("backward") == plain.sent("backward")
    x = 2048 * GPT.hidden * 2
    assert again.sent("backward") - kept.sent("backward") == 2 * x * 7 / 8
    assert kept.kept - again.kept == 2 * x * 7 / 8, "two tensors of which a rank keeps an eighth"


def test_a_move_is_a_ring_of_the_other_module():
    for name, size in (("all_reduce", 840), ("all_gather", 840), ("reduce_scatter", 840), ("all_to_all", 840)):
        algorithm = "pairwise" if name == "all_to_all" else "ring"
        assert Move(name, size, 7, ()).sent == alpha_beta.cost(name, algorithm, size, 7, Wire(0.0, 1.0)).sent_bytes


def joins(**cuts):
    return {(join.half, join.at): join for join in block(GPT, 1, 2048, 4, cuts=cuts).joins}


def test_rows_first_need_a_sum_where_the_activation_stands():
    found = joins(up="rows")[("mlp", "middle")]
    assert not found.legal and "partial sum" in found.reason
    assert [move.collective for move in found.forward] == ["reduce_scatter"], "the next matrix reads features"
    assert found.forward[0].size == 4 * 2048 * GPT.hidden * 2
    assert found.reason == "GeLU needs the whole sum, not partial sums"
    assert joins(qkv="rows")["attention", "middle"].reason.startswith("softmax needs the whole sum")
    own = block(GPT, 1, 2048, 4, sequence_parallel=True, cuts={"up": "rows"}).joins[4]
    assert own.forward == own.backward == (Move("all_to_all", 2048 * GPT.hidden * 2 // 4, 4, ("normed",)),)
    assert [m.collective for m in joins(up="rows", down="columns")[("mlp", "middle")].forward] == ["all_reduce"]


def test_columns_twice_need_all_features_between():
    found = joins(up="columns", down="columns")[("mlp", "between")]
    assert (found.gives, found.reads) == (FEATURES, READ) and "reads all of them" in found.reason
    assert [move.collective for move in found.forward + found.backward] == ["all_gather", "reduce_scatter"]


def test_copies_send_nothing_and_save_nothing():
    copied, cut = block(GPT, 1, 2048, 4, cuts=dict.fromkeys(MEGATRON, "copies")), block(GPT, 1, 2048, 4)
    assert copied.legal and copied.sent("forward") == copied.sent("backward") == 0
    assert copied.flops == 4 * cut.flops and copied.kept > cut.kept


def test_copies_of_weights_under_sequence_parallelism_are_data_parallelism():
    """Each rank has its own tokens and all weights: gradients of all of them are summed, as DDP does."""
    one = block(GPT, 1, 2048, 4, sequence_parallel=True, cuts={"up": "copies", "down": "copies"})
    mlp = [join for join in one.joins if join.half == "mlp"]
    assert all(not join.forward and not join.backward and join.gives == TOKENS for join in mlp)
    assert [weight.summed_over for weight in one.weights if weight.name in ("up", "down")] == [4, 4]
    h, bias = GPT.hidden, 4 * GPT.hidden + 2 * GPT.hidden  # of up; of down and out
    assert one.sums[0].size == 2 * (8 * h * h + bias + 2 * norm_parameters(GPT))


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_every_cut_of_every_matrix_has_its_work_and_its_shapes(sequence_parallel):
    """Over ranks, columns, rows and own tokens make the whole; copies of the same tokens make it t times."""
    for shape, cuts in itertools.product((GPT, LLAMA), itertools.product(CUTS, repeat=4)):
        one = block(shape, 1, 2048, 8, sequence_parallel=sequence_parallel, cuts=dict(zip(MEGATRON, cuts, strict=True)))
        for weight in one.weights:
            a, b = linears(shape)[weight.name]
            whole = 2 * 2048 * a * b
            repeated = weight.cut == "copies" and weight.flops == whole
            assert weight.flops * 8 == whole * (8 if repeated else 1)
        for tensor in one.tensors:
            parts = 8 if tensor.placed.value.startswith("S") else 1
            assert tensor.bytes * parts == 2 * 2048 * tensor.shape[2]
        for join in one.joins:
            assert join.legal or join.forward, "what is illegal is mended by a message"
            assert bool(join.forward or join.backward) or collective_free(join)


def collective_free(join):
    return join.gives.value in (join.reads.value, "R")


@pytest.mark.parametrize("shape", [GPT, LLAMA])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_ranks_share_the_work_of_a_block(shape, tp):
    head = 2 * 2 * 2048 * shape.hidden * shape.vocab
    whole = flops(shape, 2, 2048)["forward"] - head
    assert block(shape, 2, 2048, tp).flops * tp * shape.layers == whole


@pytest.mark.parametrize("tp", [2, 8, 16, 64])
def test_grouped_heads(tp):
    """8 key-value heads: up to 8 ranks have their own; of 16, two have the same, and add up its gradients."""
    one, copies = block(LLAMA, 1, 64, tp), max(1, tp // 8)
    found = {weight.name: weight for weight in one.weights}
    assert found["k"].local == found["v"].local == (8192, 128 * max(1, 8 // tp))
    assert found["k"].summed_over == copies and found["q"].summed_over == 1
    assert [(move.ranks, move.size) for move in one.sums] == ([(copies, 2 * 2 * 8192 * 128)] if copies > 1 else [])
    assert {join.reads for join in one.joins} == {READ, FEATURES, WHOLE}
    local = {tensor.name: tensor.local for tensor in one.tensors}
    assert local["k"] == local["v"] == (1, 64, found["k"].local[1]) and local["q"] == (1, 64, 8192 // tp)
    first = next(join for join in block(LLAMA, 1, 64, tp, cuts={"qkv": "rows"}).joins if join.at == "middle")
    assert first.forward[0].collective == ("reduce_scatter" if tp <= 8 else "all_reduce"), "no head falls in two"
    assert first.forward[0].size == 2 * 64 * (8192 + 2 * 1024)


def test_the_loss_needs_three_numbers_a_token_and_not_the_logits():
    found = ends(GPT, 1, 2048, 8)
    assert [move.size for move in found.forward["loss"]] == [4 * 2048] * 3 and not found.backward["loss"]
    assert found.gathered[0].size == 2 * 2048 * 8 * -(-50_257 // 8) > 8000 * 3 * 4
    assert [move.collective for move in found.moves("forward")] == ["all_reduce"] * 4
    assert [move.collective for move in found.moves("backward")] == ["all_reduce"], "f, before the head"
    parted = ends(GPT, 1, 2048, 8, sequence_parallel=True)
    assert [move.collective for move in parted.moves("backward")] == ["all_gather", "reduce_scatter", "all_gather"]
    assert parted.sums[0].size == 2 * (2048 * GPT.hidden + 2 * GPT.hidden)
    assert ends(LLAMA, 1, 2048, 8, sequence_parallel=True).sums[0].size == 2 * LLAMA.hidden
    assert found.sums == () and found.logits == 2048 * -(-50_257 // 8)
    assert found.sent("forward") == sum(move.sent for move in found.moves("forward"))
    alone = ends(GPT, 1, 2048, 1, sequence_parallel=True)
    assert alone.moves("forward") == [] == alone.moves("backward") and alone.sums == () == alone.gathered


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: block(LLAMA, 1, 64, 3), "tp 3 does not divide 64 heads: the nearest that works is 2"),
        (lambda: block(LLAMA, 1, 64, 60), "the nearest that works is 64"),
        (lambda: block(Shape(1, 24, 12, 8, kv_heads=4), 1, 64, 3), "4 key-value heads do not divide one another"),
        (lambda: block(Shape(1, 24, 12, 8, ff=20), 1, 64, 3), "width 20: the nearest that works is 2"),
        (lambda: block(GPT, 1, 2047, 2, sequence_parallel=True), "does not divide 2,047 tokens"),
        (lambda: ends(GPT, 1, 2047, 2, sequence_parallel=True), "use 2,048"),
        (lambda: block(GPT, 1, 64, 2, cuts={"up": "thirds"}), "the cut of up must be one of columns, rows, copies"),
        (lambda: block(GPT, 1, 64, 2, cuts={"gate": "rows"}), "matrix 'gate' is unknown: use one of qkv, out, up"),
        (lambda: block(Shape(1, 10, 4, 8, head_dim=4, ff=8), 1, 64, 4, cuts={"up": "rows"}), "use 5"),
        (lambda: block(Shape(1, 7, 2, 8, head_dim=4, ff=8), 1, 64, 2, cuts={"up": "rows"}), "this cut needs: use 1"),
        (lambda: block(PRESETS["gpt2-xl"], 1, 64, 2), "tp 2 does not divide 25 heads: the nearest that works is 1"),
        (lambda: block(GPT, 0, 64, 2), "batch must be a whole number"),
        (lambda: block(GPT, 1, 64, 0), "tp must be a whole number of at least 1"),
        (lambda: ends(GPT, 1, 64, 1.5), "tp must be a whole number"),
        (lambda: block(GPT, 1, 64, 2, cuts=["rows"]), "cuts must be a dict, not ['rows']"),
        (lambda: block("gpt-3-175b", 1, 64, 2), "shape must be a Shape, not 'gpt-3-175b'"),
        (lambda: ends("gpt-3-175b", 1, 64, 2), "shape must be a Shape, not 'gpt-3-175b'"),
        (lambda: block(GPT, 1, 64, 2).sent("both"), "phase must be one of forward, backward, not 'both'"),
        (lambda: ends(GPT, 1, 64, 2).moves("both"), "phase must be one of forward, backward, not 'both'"),
        *(
            (lambda made=made, more=more: made(GPT, 1, 64, 2, **more), words)
            for made in (block, ends)
            for more, words in (
                ({"width": -2}, "width must be a whole number of bytes of at least 1, not -2"),
                ({"width": float("nan")}, "width must be a whole number of bytes"),
                ({"width": "2"}, "width must be a whole number of bytes"),
                ({"sequence_parallel": "no"}, "sequence_parallel must be True or False, not 'no'"),
                ({"gather_again": "no"}, "gather_again must be True or False, not 'no'"),
            )
        ),
    ],
)
def test_bad_input_is_one_line(call, words):
    refused(call, words)


def test_the_nearest_that_works_works():
    shape = Shape(1, 96, 12, 8, kv_heads=4, ff=384)
    assert [tp for tp in range(1, 13) if divides(shape, tp)] == [1, 2, 4, 12]
