"""The order of the windows and the split by file: permutations, every window once, the same for any number of ranks."""

import itertools
import re

import pytest

from scaleout import order
from scaleout.order import Order


def test_the_mixer_is_splitmix64():
    """First outputs of SplitMix64 from state 0, as in the reference code of Steele, Lea and Flood (2014)."""
    gamma, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    found = [order._mixed(gamma * i & mask) for i in range(3)]
    assert found == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 64, 100, 1000, 4097])
def test_permuted_is_a_permutation(count):
    for key in (0, 1, 2**63 + 5):
        assert sorted(order.permuted(i, count, key) for i in range(count)) == list(range(count))


def test_permutations_look_random():
    """Keys give different ones; neighbours land apart; places are even over the range (mean and fixed points)."""
    count = 2000
    found = [[order.permuted(i, count, key) for i in range(count)] for key in range(8)]
    assert len({tuple(p) for p in found}) == 8
    for places in found:
        assert sum(a == b for a, b in enumerate(places)) < 10, "one fixed point is expected"
        steps = [abs(a - b) for a, b in itertools.pairwise(places)]
        assert 0.28 < sum(steps) / len(steps) / count < 0.39, "a third, for two even random places"
        assert 0.45 < sum(places[:500]) / 500 / count < 0.55


@pytest.mark.parametrize(("length", "seq"), [(1000, 64), (128, 64), (129, 64), (4096, 16), (1023, 32)])
def test_an_epoch_visits_every_window_once_and_stays_in_the_text(length, seq):
    o = Order(length, seq, seed=3)
    for epoch in range(4):
        starts = [o.start(epoch * o.windows + i) for i in range(o.windows)]
        assert sorted(starts) == [o.offset(epoch) + seq * i for i in range(o.windows)]
        assert min(starts) >= 0
        assert max(starts) + seq + 1 <= length, "a window has one byte more than its tokens"
    assert length - seq * (o.windows + 2) < 0, "what no window covers is less than two of them"


def test_order_depends_on_seed_and_epoch_only():
    a, again, other = Order(5000, 16, 1), Order(5000, 16, 1), Order(5000, 16, 2)
    first = [a.start(i) for i in range(a.windows)]
    assert first == [again.start(i) for i in range(a.windows)]
    assert first != [other.start(i) for i in range(a.windows)]
    assert [a.start(a.windows + i) for i in range(50)] != first[:50]
    assert len({a.offset(epoch) for epoch in range(40)}) > 8


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 12])
def test_ranks_share_a_step_and_any_number_of_them_goes_on_with_it(world):
    o, batch = Order(9999, 8, 5), 12
    whole = [o.start(i) for i in range(12 * 40)]
    for step in (0, 1, 39):
        parts = [o.starts(step, batch, rank, world) for rank in range(world)]
        assert {len(part) for part in parts} == {batch // world}
        assert list(itertools.chain(*parts)) == whole[step * batch:(step + 1) * batch]


def test_a_resume_at_another_world_size_misses_nothing():
    o = Order(3000, 8, 0)
    seen = [start for step in range(5) for rank in range(4) for start in o.starts(step, 8, rank, 4)]
    seen += [start for step in range(5, 9) for rank in range(2) for start in o.starts(step, 8, rank, 2)]
    assert seen == [o.start(i) for i in range(72)]


def test_the_split_is_by_the_hash_of_each_name():
    assert order.share_of("abc") == 0xBA7816BF8F01CF / 2**56, "SHA-256 of abc, FIPS 180-2 appendix B.1"
    names = [f"package/module_{i}.py" for i in range(400)]
    train, held = order.split(names, 0.1)
    assert sorted(train + held) == sorted(names)
    assert 20 < len(held) < 60
    assert held == sorted(name for name in names if order.share_of(name) < 0.1)
    more_train, more_held = order.split([*reversed(names), "new.py", "other.py"], 0.1)
    assert set(train) <= set(more_train), "a new file moves no other"
    assert set(held) <= set(more_held)


def test_each_side_of_the_split_has_a_file():
    assert [len(part) for part in order.split(["a", "b"], 1e-9)] == [1, 1]
    assert [len(part) for part in order.split(["a", "b", "c"], 1 - 1e-9)] == [1, 2]


def test_passes_take_the_fewest_that_fit():
    assert order.passes(8, 2) == 1
    assert order.passes(8, 2, 4) == 1
    assert order.passes(8, 2, 3) == 2
    assert order.passes(24, 2, 5) == 3
    assert order.passes(6, 1, 1) == 6


def test_validation_windows_are_even_and_in_the_text():
    assert order.even_starts(1001, 100, 5) == [0, 200, 400, 600, 800]
    assert order.even_starts(301, 100, 9) == [0, 100, 200], "as many as there are"
    for length in (65, 1000, 77777):
        starts = order.even_starts(length, 64, 20)
        assert max(starts) + 65 <= length
        assert len(set(starts)) == len(starts) == min(20, (length - 1) // 64)


@pytest.mark.parametrize(("call", "said"), [
    (lambda: Order(100, 64), "the text holds 100 bytes: it must hold 128 or more, two sequences"),
    (lambda: Order(1000, 0), "seq must be a whole number of at least 1"),
    (lambda: Order(1000, 8, True), "seed must be a whole number"),
    (lambda: Order(99, 8).starts(0, 8, 0, 3), "3 ranks do not divide a batch of 8 sequences: use one of 1, 2, 4 or 8"),
    (lambda: order.passes(9, 2), "2 ranks do not divide a batch of 9 sequences: use one of 1, 3 or 9"),
    (lambda: order.permuted(5, 5, 0), "index 5 is not in a permutation of 5"),
    (lambda: order.split(["a"], 0.1), "a split by file needs two different files or more"),
    (lambda: order.split(["a", "a"], 0.1), "a split by file needs two different files or more"),
    (lambda: order.split(["a", "b"], 1), "must be above 0 and below 1, not 1"),
    (lambda: order.even_starts(64, 64, 3), "the text held out has 64 bytes: it must be longer than one sequence, 64")])
def test_what_cannot_be_is_refused_in_one_line(call, said):
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        call()
    assert "\n" not in str(caught.value)
