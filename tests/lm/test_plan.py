"""--plan: what a run will take, without a trace of it."""

import pytest
from tiny_runs import tiny_config

from torchelmo.lm import loop as planning
from torchelmo.lm.loop import make_plan, train
from torchelmo.runs.distributed import World


def test_a_plan_tells_and_leaves_nothing(data, tmp_path):
    config = tiny_config(data, tmp_path / "run", epochs=2.0)
    plan = make_plan(config, World(), seconds=0.2, max_steps=5)
    assert not config.out.exists()
    assert (plan.windows_per_epoch, plan.n_steps, plan.tokens_per_step, plan.tokens) == (110, 220, 20, 4400)
    assert plan.epochs == pytest.approx(2.0)
    assert plan.text_tokens == 200 * 4 + 200 * 5
    assert plan.seconds == pytest.approx(plan.tokens / plan.tokens_per_second)
    # Weights, two moments of each, a count of steps of each tensor, and the state of four rows.
    assert plan.checkpoint == pytest.approx(3 * 4 * plan.n_parameters, rel=0.2)
    assert plan.memory > 1e7
    assert any({"220", "20"} <= set(line.split()) for line in plan.lines())


def test_a_plan_for_hours_tells_how_far_it_gets(data, tmp_path):
    plan = make_plan(tiny_config(data, tmp_path / "run", hours=1.0), World(), seconds=0.2, max_steps=5)
    assert plan.seconds == pytest.approx(3600.0, rel=0.05)
    assert plan.tokens == plan.n_steps * 20


def test_the_clock_that_all_ranks_share_ends_the_trial(data, tmp_path, monkeypatch):
    """Were each rank to look at its own, one could go on alone and wait for ever."""
    taken = []

    def slow(run):
        for step, report in enumerate(train(run), 1):
            taken.append(step)
            yield report._replace(seconds=10.0 * step)

    monkeypatch.setattr(planning, "train", slow)
    make_plan(tiny_config(data, tmp_path / "run"), World(), seconds=35.0, max_steps=8)
    assert taken == [1, 2, 3, 4]
