"""What exercises of `pipeline` show of torch's schedules, asked of torch again."""

import re

from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from scaleout.exercises.pipeline import hang

ACTION = re.compile(r"(\d+)(SEND_F|SEND_B|RECV_F|RECV_B|F|B)(\d+)")
LONG = {"F": 3, "B": 6}  # columns of an action
SHOWN = 21


def played(rows, holds_up):
    """(lanes, columns) of what torch makes of a schedule: where a receive that has begun holds up what stands behind
    it, or where each action waits for its own input alone."""
    positions, free, sent, came = [0] * len(rows), [0] * len(rows), {}, [{} for _ in rows]
    lanes = [[] for _ in rows]
    while any(positions[rank] < len(row) for rank, row in enumerate(rows)):
        for rank, row in enumerate(rows):
            while positions[rank] < len(row):
                stage, does, micro = ACTION.fullmatch(row[positions[rank]]).groups()
                stage, kind = int(stage), does[-1]
                if does.startswith("SEND"):
                    sent[kind, stage + (1 if kind == "F" else -1), micro] = free[rank]
                elif does.startswith("RECV"):
                    if (kind, stage, micro) not in sent:
                        break
                    came[rank][kind, stage, micro] = sent[kind, stage, micro]
                    free[rank] = max(free[rank], sent[kind, stage, micro]) if holds_up else free[rank]
                else:
                    start = max(free[rank], came[rank].get((kind, stage, micro), 0))
                    letter = micro if kind == "F" else "abcdefgh"[int(micro)]
                    lanes[rank] += ["."] * (start - len(lanes[rank])) + [letter] * LONG[kind]
                    free[rank] = start + LONG[kind]
                positions[rank] += 1
    return ["".join(lane) for lane in lanes], max(free)


def test_torchs_list_and_the_lanes_that_it_leads_to():
    """Four micro-batches on two ranks, two stages each."""
    rows = [
        [str(action) for action in row if not re.search("SHARD|REDUCE", str(action))]
        for row in get_schedule_ops("Interleaved1F1B", 2, 4, with_comms=True)
    ]
    assert " ".join(rows[0]).startswith(hang.TORCH_ORDER.replace("\n", " ") + " ")
    (good, quick), (bad, slow) = played(rows, False), played(rows, True)
    assert (quick / LONG["F"], slow / LONG["F"]) == hang.SLOTS
    for lanes, words in ((good, "as it should be"), (bad, "as it runs")):
        drawn = "\n".join(f"rank {rank}  {lane[:SHOWN]}" for rank, lane in enumerate(lanes))
        assert f"{words}\n{drawn}\n" in hang.LANES
