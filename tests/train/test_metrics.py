"""What a run keeps and says of its steps: lines that go on where a kill left them, stalls, text that is none."""

from scaleout.train import report
from scaleout.train.metrics import Metrics


def test_metrics_go_on_where_a_kill_left_them(tmp_path):
    step = lambda i: {"step": i, "loss": 1.0, "rate": 0.1, "norm": 1.0, "seconds": 0.1, "wait": 0.0}  # noqa: E731
    m = Metrics(tmp_path, True)
    assert m.begin(0) == (0, [])
    m.add([step(1), step(2), {"step": 2, "validation": 3.0}, {"step": 2, "checkpoint": 0.1}, step(3), step(4)])
    with m.path.open("a") as stream:
        stream.write('{"step": 5, "lo')
    (tmp_path / "failures.jsonl").write_text('{"time": 1.0, "failure": "rank 1 hangs"}\n' * 2)
    again = Metrics(tmp_path, True)
    assert again.begin(2)[0] == 2, "steps 3 and 4 are made again"
    assert again.column("step") == [1, 2]
    assert again.validations == [{"step": 2, "validation": 3.0}]
    assert again.checkpoints == [{"step": 2, "checkpoint": 0.1}]
    assert again.events == [{"step": 4, "event": "rank 1 hangs"}]
    assert Metrics(tmp_path, True).begin(2) == (0, [])
    third = Metrics(tmp_path, True)
    third.begin(2)
    assert third.events == again.events, "said once"
    third.begin(0, fresh=True)
    assert third.path.read_text() == ""


def test_stalls_are_told_apart_from_noise():
    m = Metrics(None, False)
    m.add([{"step": i, "seconds": 9.0 if i < 3 else 0.1, "wait": 0.0} for i in range(1, 101)])
    assert report.stalls(m, 3) == []
    m.steps[49] |= {"seconds": 0.6, "wait": 0.55}
    assert report.stalls(m, 3) == [
        "1 of 97 steps took over 5 times the median of 100.0 ms; step 50 took 600 ms",
        "the steps waited for data 5% of their time: the input pipeline is too slow",
    ]


def test_bytes_that_are_no_text_are_shown():
    assert report.readable(b"a\xff\0b") == "a\N{REPLACEMENT CHARACTER}\N{SYMBOL FOR NULL}b"
