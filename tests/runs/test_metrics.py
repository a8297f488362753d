"""The metrics log is complete over all parts of a run."""

import json

import pytest
from facts import mentions
from tiny_runs import tiny_config

from torchelmo.errors import ConfigError
from torchelmo.lm.loop import Report, perplexity_of, pretrain
from torchelmo.runs.metrics import RecordLog, duration, read_records

REPORT = Report(
    step=7,
    n_steps=100,
    tokens=140,
    seconds=2.0,
    tokens_per_second=1234.5,
    loss=2.0,
    forward=7.5,
    backward=None,
    lr=0.00004321,
    gradient_norm=0.5,
    remaining=3725.0,
)


def test_a_report_is_one_line_for_people():
    line = REPORT.line()
    assert line == "step 7/100  1,234 tokens/s  loss 2.000  perplexity 7.5  lr 4.3e-05  1h02m left"
    evaluated = REPORT._replace(n_steps=None, heldout=9.0, heldout_forward=8.0, heldout_backward=10.0)
    assert evaluated.line().startswith("step 7  ")
    assert evaluated.line().endswith("held-out perplexity 9.00 (8.00 / 10.00)")


def test_a_resume_removes_what_was_recorded_after_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with RecordLog(path, 0) as metrics:
        for step in (1, 2, 3):
            metrics.write(REPORT._replace(step=step)._asdict())
    with path.open("a") as file:
        file.write('{"step": 4, "lo')  # killed in the middle of a write
    with RecordLog(path, 2) as metrics:
        metrics.write(REPORT._replace(step=3, loss=9.0)._asdict())
    assert [(record["step"], record["loss"]) for record in read_records(path)] == [(1, 2.0), (2, 2.0), (3, 9.0)]
    assert "backward" not in read_records(path)[0]


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"[" * 100_000, b"[]", b'{"step": "1"}', b"{}", b'{"step": 1e999}'])
def test_a_damaged_log_is_read_up_to_the_damage(tmp_path, damage):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + damage + b'\n{"step": 2}\n')
    assert read_records(path) == [{"step": 1}]


def test_a_log_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/proc/self/mem")
    with pytest.raises(ConfigError, match=mentions("metrics.jsonl")):
        read_records(tmp_path / "metrics.jsonl")


def test_other_ranks_write_nothing(tmp_path):
    with RecordLog(tmp_path / "metrics.jsonl", 0, writes=False) as metrics:
        metrics.write(REPORT._asdict())
    assert not metrics.path.exists()


@pytest.mark.slow
def test_tensorboard_events(data, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = tiny_config(data, tmp_path / "run", steps=4, log_every=2, tensorboard=True)
    pretrain(config)
    events = accumulator.EventAccumulator(str(config.out / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [2, 4]
    losses = [json.loads(line)["loss"] for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses, rel=1e-5)


def test_numbers_for_people():
    assert [duration(seconds) for seconds in (0.4, 59.6, 3600, 90061, float("inf"))] == [
        "0s",
        "1m00s",
        "1h00m",
        "25h01m",
        "?",
    ]
    assert perplexity_of(1e6) > 1e300
