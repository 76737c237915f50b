"""records/flight.py on what torch's recorder writes of collectives whose arguments differ from rank to rank."""

from pathlib import Path

import pool
import torch
import torch.distributed as dist

from scaleout.parallel import private
from scaleout.records import flight


def uneven_calls(s, folder):
    """Calls that are right and unlike on two ranks, then this rank's dump, named as torch names it."""
    mine, others = ((3, 5), (3, 4)) if s.rank == 0 else ((4, 3), (5, 3))
    dist.scatter(torch.empty(4), [torch.ones(4)] * 2 if s.rank == 0 else None, src=0)
    dist.gather(torch.ones(4), [torch.empty(4)] * 2 if s.rank == 0 else None, dst=0)
    dist.all_to_all_single(torch.empty(sum(others)), torch.ones(sum(mine)), others, mine)
    dist.broadcast_object_list([s.rank], src=0)
    dist.scatter_object_list([None], ["short", "and long"] if s.rank == 0 else None, src=0)
    (Path(folder) / f"nccl_trace_rank_{s.rank}").write_bytes(private.flight_pickle(True, True, False))


def test_healthy_calls_that_differ_by_rank_blame_nobody(tmp_path):
    pool.ranks(uneven_calls, 2, str(tmp_path), TORCH_FR_BUFFER_SIZE="64")
    flights = flight.load(tmp_path)
    assert {call.name for call in flights[1].calls} >= {"scatter", "gather", "all_to_all", "broadcast"}
    assert len(flights[0].calls) == len(flights[1].calls)
    assert flight.odd(flights) is None
