"""The order of the windows and the split by file: permutations, every window once, the same for any number of ranks."""

import itertools
import random

import pytest
from cases import refused

from scaleout.train import order
from scaleout.train.order import Order


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
        assert list(itertools.chain(*parts)) == whole[step * batch : (step + 1) * batch]


def test_a_resume_at_another_world_size_misses_nothing():
    o = Order(3000, 8, 0)
    seen = [start for step in range(5) for rank in range(4) for start in o.starts(step, 8, rank, 4)]
    seen += [start for step in range(5, 9) for rank in range(2) for start in o.starts(step, 8, rank, 2)]
    assert seen == [o.start(i) for i in range(72)]


def test_the_split_takes_files_in_the_order_of_their_hashes():
    assert order.share_of("abc") == 0xBA7816BF8F01CF / 2**56, "SHA-256 of abc, FIPS 180-2 appendix B.1"
    sizes = {f"package/module_{i}.py": 100 for i in range(400)}
    held = order.split(sizes, 0.1)
    assert len(held) == 40 and set(held.values()) == {100}, "a share of the bytes, by whole files"
    assert set(held) == set(sorted(sizes, key=order.share_of)[:40])
    more = order.split({**dict(reversed(sizes.items())), "new.py": 100, "other.py": 100}, 0.1)
    assert len(set(held) - set(more)) <= 2, "two new files move no more than two others"
    grown = order.split({**sizes, next(iter(held)): 150}, 0.1)
    assert len(set(grown) ^ set(held)) <= 3, "another version of the text, nearly the same files"


def corpora():
    """{what: {name: bytes}}"""
    chance = random.Random(7)
    return {
        "one file": {"all.txt": 40_000},
        "two": {"a": 30_000, "b": 10_000},
        "equal": dict.fromkeys("abc", 9_999),
        "few and big": {f"book {i}": 10_000 + 997 * i for i in range(5)},
        "one and a crumb": {"a": 50_000, "b": 9},
        "many small": {f"{i}.py": chance.randrange(300) for i in range(3000)},
        "big among small": {f"{i}.py": 200 for i in range(400)} | {"data.py": 400_000},
        "long tail": {f"{i}.py": int(50 * 1.02**i) for i in range(400)},
        "with empty files": {f"{i}.py": 500 * (i % 3) for i in range(300)},
    }


@pytest.mark.parametrize("share", [1e-6, 0.01, 0.05, 0.2, 0.5, 0.9])
def test_the_share_held_out_is_a_share_of_the_bytes(share):
    for what, sizes in corpora().items():
        total = sum(sizes.values())
        for least in (1, 4000, total // 2):
            held = order.split(sizes, share, least)
            wanted = max(share * total, least)
            assert wanted <= sum(held.values()) < 2 * wanted + 1, (what, least)
            assert sum(held.values()) < total, what
            cut = [name for name, count in held.items() if count < sizes[name]]
            assert [sizes[name] for name in cut] in ([], [max(sizes.values())]), "only the largest is ever cut"
            assert all(0 < count <= sizes[name] for name, count in held.items()), what
            assert order.split(dict(reversed(sizes.items())), share, least) == held, "the order of names is nothing"


def test_a_single_file_loses_its_end():
    assert order.split({"a": 1000}, 0.05) == {"a": 50}
    assert order.split({"a": 1000}, 0.05, 120) == {"a": 120}


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


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Order(100, 64), "the text holds 100 bytes: it must hold 128 or more, two sequences"),
        (lambda: Order(1000, 0), "seq must be a whole number of at least 1"),
        (lambda: Order(1000, 8, True), "seed must be a whole number"),
        (
            lambda: Order(99, 8).starts(0, 8, 0, 3),
            "3 ranks do not divide a batch of 8 sequences: use one of 1, 2, 4 or 8",
        ),
        (lambda: order.passes(9, 2), "2 ranks do not divide a batch of 9 sequences: use one of 1, 3 or 9"),
        (lambda: order.permuted(5, 5, 0), "index 5 is not in a permutation of 5"),
        (lambda: order.split({"a": 9, "b": 9}, 1), "must be above 0 and below 1, not 1"),
        (
            lambda: order.split({"a": 900, "b": 99}, 0.1, 500),
            "the text has 999 bytes, and one validation batch takes 500",
        ),
        (
            lambda: order.even_starts(64, 64, 3),
            "the text held out has 64 bytes: it must be longer than one sequence, 64",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(call, said):
    refused(call, said)
