"""All-reduce by hand on real gloo processes: values, refusals, bytes sent. One call holds all cases of a world size."""

import pool
import pytest
import torch
import torch.distributed as dist

from scaleout.parallel import ring
from scaleout.parallel.ring import BY_HAND, naive_all_reduce, ring_all_reduce, tree_all_reduce

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)
LENGTHS = (0, 1, 2, 3, 4, 5, 7, 64, 1001, 70_001)
FEW = (5, 1001)  # of the dtypes that take no other path


# --- what every rank runs ---------------------------------------------------------------------------------


def values(rank, length, dtype):
    """This rank's tensor: the same on every machine, another one on each rank."""
    chance = torch.Generator().manual_seed(1000 * length + rank)
    whole = torch.randint(-(2**40), 2**40, (length,), generator=chance)
    return whole if dtype == torch.int64 else (torch.randn(length, generator=chance, dtype=torch.float64) + 3).to(dtype)


def units_off(found, parts):
    """Largest error in units of rounding, relative to the sum of magnitudes. Integers: any error at all is infinite."""
    if not len(found):
        return 0.0
    if not found.is_floating_point():
        return 0.0 if torch.equal(found, sum(parts)) else float("inf")
    exact = sum(part.double() for part in parts)
    scale = sum(part.double().abs() for part in parts) * torch.finfo(found.dtype).eps
    return ((found.double() - exact).abs() / scale).max().item()


def sums(me, p):
    """{case: error in units of rounding} of every algorithm, dtype, length and number of pieces."""
    found = {}
    for dtype in DTYPES:
        for length in LENGTHS if dtype in (torch.float32, torch.int64) else FEW:
            parts = [values(rank, length, dtype) for rank in range(p)]
            for name, reduce in BY_HAND.items():
                for pieces in (None, 1, 3) if name != "naive" else (None,):
                    t = parts[me].clone()
                    reduce(t, **({} if pieces is None else {"pieces": pieces}))
                    found[f"{name} {dtype} {length} {pieces}"] = units_off(t, parts)
    return found


def shapes(me, p):
    """Tensors of other shapes, a piece of a larger storage, a leaf that wants gradients: {case: passed}."""
    found, total = {}, p * (p + 1) / 2
    for name, reduce in BY_HAND.items():
        square, scalar = torch.full((3, 5), me + 1.0), torch.tensor(me + 1.0)
        inside, leaf = torch.full((9,), -1.0), torch.full((4,), me + 1.0, requires_grad=True)
        inside[2:7] = me + 1
        for t in (square, scalar, inside[2:7], leaf):
            reduce(t)
        found |= {
            f"{name}: two dimensions": bool((square == total).all()),
            f"{name}: scalar": scalar.item() == total,
            f"{name}: neighbours": inside.tolist() == [-1.0] * 2 + [total] * 5 + [-1.0] * 2,
            f"{name}: leaf": leaf.requires_grad and leaf.tolist() == [total] * 4,
        }
    return found


def subgroup(me, p):
    """Sums in a group of the first and the last rank: their global ranks are not their ranks in the group."""
    group, found = dist.new_group([0, p - 1]), {}
    for name, reduce in BY_HAND.items():
        t = torch.arange(5) * 10 + me
        try:
            reduce(t, group=group)
            found[name] = t.tolist()
        except ValueError as error:
            found[name] = str(error)
    return found


def refusals(me, p):
    """{case: what this rank was told} in checked mode, where rank 1 alone gives something else."""
    odd = {
        "length": torch.ones(7),
        "dtype": torch.ones(6, dtype=torch.float64),
        "strides": torch.ones(6, 2)[:, 0],
        "sparse": torch.ones(6).to_sparse(),
        "kind": [1.0] * 6,
    }
    found = {}
    for name, reduce in BY_HAND.items():
        for case, theirs in odd.items():
            t = theirs if me == 1 else torch.ones(6)
            try:
                reduce(t, checked=True)
                found[f"{name} {case}"] = "no error"
            except ValueError as error:
                found[f"{name} {case}"] = str(error)
        same = torch.full((6,), 1.0)
        reduce(same, checked=True)
        found[f"{name} same"] = same.tolist()
    return found


def bytes_sent(me, p):
    """Bytes that this rank's ring gave to isend and irecv, for tensors of 1200 bytes per rank and of 7 elements."""
    found, batch = [], dist.batch_isend_irecv

    def watch(work):
        for one in work:
            count[one.op.__name__] += one.tensor.nbytes
        return batch(work)

    for t in (torch.zeros(300 * p), torch.zeros(7)):
        count = {"isend": 0, "irecv": 0}
        ring.dist.batch_isend_irecv = watch
        try:
            ring_all_reduce(t, pieces=3)
        finally:
            ring.dist.batch_isend_irecv = batch
        found.append(count)
    return found


def work(s):
    """All cases of this rank."""
    return {case.__name__: case(s.rank, s.world) for case in (sums, shapes, subgroup, refusals, bytes_sent)}


# --- what must come out -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, 3, 4, 5])
def everyone(request):
    """What each rank of a world of this size found (list of dicts)."""
    return pool.ranks(work, request.param)


def test_sums_on_every_rank(everyone):
    """An error of p roundings is the most that adding p numbers one by one can make; a lost term is thousands."""
    p = len(everyone)
    for rank, found in enumerate(everyone):
        assert len(found["sums"]) == (2 * len(LENGTHS) + 3 * len(FEW)) * 7
        wrong = {case: units for case, units in found["sums"].items() if not units <= p}
        assert not wrong, f"rank {rank}"


def test_any_contiguous_shape_and_nothing_beside_it(everyone):
    for found in everyone:
        assert len(found["shapes"]) == 12
        assert all(found["shapes"].values()), found["shapes"]


def test_a_group_counts_its_own_ranks(everyone):
    p = len(everyone)
    for rank, found in enumerate(everyone):
        member = rank in (0, p - 1)
        wanted = (
            [20 * i + p - 1 for i in range(5)] if member else "this rank is not in the group: only its members may call"
        )
        assert found["subgroup"] == dict.fromkeys(BY_HAND, wanted)


TOLD = {
    "length": "rank 1 holds 7 elements of torch.float32, rank 0 holds 6 elements of torch.float32: "
    "every rank must give the same length and dtype",
    "dtype": "rank 1 holds 6 elements of torch.float64, rank 0 holds 6 elements of torch.float32: "
    "every rank must give the same length and dtype",
    "strides": "rank 1: the tensor is not contiguous: give tensor.contiguous()",
    "sparse": "rank 1: the tensor is sparse: give tensor.to_dense()",
    "kind": "rank 1: all-reduce takes a tensor, not a list",
}


def test_every_rank_is_told_which_rank_is_wrong(everyone):
    p = len(everyone)
    wanted = {f"{name} {case}": text for name in BY_HAND for case, text in TOLD.items()}
    wanted |= {f"{name} same": [float(p)] * 6 for name in BY_HAND}
    for found in everyone:
        assert found["refusals"] == wanted


def test_the_ring_sends_as_much_as_the_formula_says(everyone):
    p = len(everyone)
    for found in everyone:
        assert found["bytes_sent"][0] == {"isend": 2 * (p - 1) * 1200, "irecv": 2 * (p - 1) * 1200}
    total = {way: sum(found["bytes_sent"][1][way] for found in everyone) for way in ("isend", "irecv")}
    assert total == {"isend": 2 * (p - 1) * 28, "irecv": 2 * (p - 1) * 28}


# --- one process ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduce", [naive_all_reduce, ring_all_reduce, tree_all_reduce])
def test_one_process_keeps_its_tensor(reduce):
    for length in (0, 1, 9):
        t = torch.arange(float(length))
        assert reduce(t, checked=True) is None
        assert torch.equal(t, torch.arange(float(length)))


@pytest.mark.parametrize(
    ("t", "said"),
    [
        (torch.ones(4, 4).T[:2], "rank 0: the tensor is not contiguous: give tensor.contiguous()"),
        (torch.ones(4).to_sparse(), "rank 0: the tensor is sparse: give tensor.to_dense()"),
        (torch.ones(4).bool(), "rank 0: bool does not add: give an integer or float dtype"),
        ([1.0], "rank 0: all-reduce takes a tensor, not a list"),
    ],
)
def test_what_cannot_be_summed_in_place_is_refused(t, said):
    for reduce in BY_HAND.values():
        with pytest.raises(ValueError) as caught:
            reduce(t)
        assert str(caught.value) == said


def test_pieces_grow_with_the_size_up_to_a_limit():
    assert [ring.pieces_for(n * 2**20) for n in (0, 1, 4, 8, 16, 1000)] == [1, 1, 1, 2, 4, 8]
