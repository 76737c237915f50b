"""records/flight.py on dumps of jobs that are in step though their ranks' calls differ, and on torch's own files."""

import json
import pickle

import pytest

from scaleout.records import flight

GROUPS = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}


def entry(number, name, inputs, outputs=None, dtype="Float"):
    """A call as torch 2.10 to 2.13 dumps it; a side without tensors has no dtypes."""
    sides = {"input": inputs, "output": inputs if outputs is None else outputs}
    return {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "profiling_name": f"gloo:{name}",
        "is_p2p": False,
        "frames": [{"name": "f", "filename": "train.py", "line": 10 + number}],
        **{f"{side}_sizes": sizes for side, sizes in sides.items()},
        **{f"{side}_dtypes": [dtype] if sizes else [] for side, sizes in sides.items()},
    }


def dump(name, inputs, outputs=None, dtype="Float"):
    """A rank's dump: the call in question between two all-reduces."""
    calls = [entry(1, "all_reduce", [[4]]), entry(2, name, inputs, outputs, dtype), entry(3, "all_reduce", [[4]])]
    return {"version": "2.10", "pg_config": GROUPS, "entries": calls}


def flights(first, second):
    """{rank: Flight} of two ranks whose second calls are these: (name, inputs, outputs, dtype)."""
    return {rank: flight.read({"rank": rank, **dump(*call)}) for rank, call in enumerate((first, second))}


@pytest.mark.parametrize(
    "first, second",
    [
        (("scatter", [[2, 4]], [[4]]), ("scatter", [], [[4]])),  # inputs on the source alone
        (("gather", [[4]], [[2, 4]]), ("gather", [[4]], [])),  # outputs on the destination alone
        (("all_to_all", [[8]], [[7]]), ("all_to_all", [[9]], [[10]])),  # each sends as much as it has
    ],
)
def test_ranks_in_step_whose_calls_differ_are_not_blamed(first, second):
    assert flight.odd(flights(first, second)) is None


@pytest.mark.parametrize(
    "first, second",
    [
        (("scatter", [[2, 4]], [[4]]), ("scatter", [], [[5]])),
        (("scatter", [[2, 4]], [[4]]), ("scatter", [], [[4]], "Half")),
        (("scatter", [[2, 4]], [[4]]), ("broadcast", [[4]], [[4]])),
        (("gather", [[4]], [[2, 4]]), ("gather", [[5]], [])),
        (("all_to_all", [[8]], [[8]]), ("all_to_all", [[8]], [[8]], "Half")),
        (("all_to_all", [[8]], [[8]]), ("all_gather", [[8]], [[2, 8]])),
        (("all_gather", [[4]], [[2, 4]]), ("all_gather", [[5]], [[2, 5]])),
    ],
)
def test_what_must_agree_is_compared(first, second):
    found = flight.odd(flights(first, second))
    assert (found.sequence, found.kind) == (2, "different")


def test_dumps_without_the_outputs_of_a_scatter_compare_what_they_have():
    both = [dump("scatter", [[4], [4]], [[4]]), dump("scatter", [], [[4]])]
    for one in both:
        for call in one["entries"]:
            del call["output_sizes"], call["output_dtypes"]
    assert flight.odd({rank: flight.read({"rank": rank, **one}) for rank, one in enumerate(both)}) is None


def test_dumps_are_read_as_torch_writes_them(tmp_path):
    """No key "rank": it is in the file's name. Pickles are what torch's own signal and time-out leave."""
    one = dump("all_reduce", [[8]])
    expected = flight.read({"rank": 12, **one})
    for name, written in (
        ("flight-12.json", json.dumps(one).encode()),
        ("nccl_trace_rank_12", pickle.dumps(one)),
        ("fr_trace_12", pickle.dumps(one)),
    ):
        folder = tmp_path / name.partition("_")[0]
        folder.mkdir()
        (folder / name).write_bytes(written)
        assert flight.load(folder) == {12: expected}


@pytest.mark.parametrize(
    "raw, said",
    [
        (b"", "no pickle (EOFError)"),
        (b"garbage", "no pickle"),
        (pickle.dumps([1, 2]), "must hold one dictionary"),
        (pickle.dumps(print), "it would call builtins.print"),
    ],
)
def test_a_pickle_that_is_no_dump_is_one_line_and_is_not_run(raw, said, tmp_path):
    (tmp_path / "nccl_trace_rank_0").write_bytes(raw)
    with pytest.raises(ValueError, match="nccl_trace_rank_0: is not a flight recorder's dump") as error:
        flight.load(tmp_path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
