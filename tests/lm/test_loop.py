"""The training loop: it learns, it does what its settings say, and it ends in order."""

import json
import math
from dataclasses import replace

import pytest
import torch
from facts import mentions
from tiny_runs import run_to_end, sentences, stop_after, tiny_config, write_data

import torchelmo
from torchelmo.bilm.fast.training import run_training
from torchelmo.errors import ConfigError, OutputExistsError, TrainingError
from torchelmo.lm.loop import pretrain, train
from torchelmo.lm.predict import perplexity
from torchelmo.lm.run import Run, open_run
from torchelmo.runs.distributed import World


@pytest.mark.parametrize("loss", ["sampled", "full"])
def test_it_learns_the_grammar(data, tmp_path, loss):
    settings = {"loss": loss, "negatives": 12, "dropout": 0.0, "clip": 1.0, "reset_state": True}
    last = pretrain(tiny_config(data, tmp_path / "run", steps=110, batch_size=8, **settings)).report
    # Of eleven targets in two sentences four are one of 10 names, two are one of 4 verbs, the rest are fixed.
    unigram = math.exp((4 * math.log(110 / 4) + 2 * math.log(44 / 2) + 4 * math.log(11 / 2) + math.log(11)) / 11)
    best = math.exp((4 * math.log(10) + 2 * math.log(4)) / 11)
    assert best < last.heldout < 0.7 * unigram
    assert last.heldout == pytest.approx((last.heldout_forward + last.heldout_backward) / 2)


def test_the_saved_model_has_the_perplexity_that_was_reported(data, tmp_path):
    """Fused optimisers do not count their writes; the evaluation must see them all the same."""
    config = tiny_config(data, tmp_path / "run", steps=6, evaluate_every=3, checkpoint_every=3, keep=9)
    reports = [report for report in run_to_end(config) if report.heldout is not None]
    assert [report.step for report in reports] == [3, 6]
    for report in reports:
        bilm = torchelmo.load(tmp_path / "run" / "checkpoints" / f"step-{report.step:08d}")
        assert perplexity(bilm, sentences(40, seed=2)).average == pytest.approx(report.heldout, rel=1e-6)


def test_a_step_is_what_the_recipe_says(data, tmp_path):
    """Against a loop in plain PyTorch: scaled loss, clipped gradient, Adagrad, carried state."""
    config = tiny_config(data, tmp_path / "run", steps=3, loss="full", loss_scale=5.0, clip=0.5, dropout=0.0, optim={})
    reference = Run(config)
    bilm, state, losses = reference.bilm, reference.state, []
    optimizer = torch.optim.Adagrad(bilm.parameters(), lr=0.2, initial_accumulator_value=1.0)
    characters = torch.from_numpy(reference.corpus.characters.copy())
    for _ in range(3):
        optimizer.zero_grad()
        w = next(reference.windows)
        out = run_training(
            bilm,
            torch.from_numpy(w.forward),
            torch.from_numpy(w.backward),
            state,
            characters=characters,
            path="reference",
        )
        both = [
            torch.nn.functional.nll_loss(bilm.softmax(hidden).flatten(0, 1), torch.from_numpy(targets).flatten())
            for hidden, targets in ((out.forward, w.forward_targets), (out.backward, w.backward_targets))
        ]
        (sum(both) / 2 * 5.0).backward()
        losses.append(float(sum(both).detach()) / 2)
        state = out.state
        torch.nn.utils.clip_grad_norm_(bilm.parameters(), 0.5)
        optimizer.step()

    last = pretrain(config).report
    assert last.loss == pytest.approx(sum(losses) / 3, rel=1e-5)
    for name, tensor in torchelmo.load(tmp_path / "run").state_dict().items():
        torch.testing.assert_close(tensor, bilm.state_dict()[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_one_direction_alone(data, tmp_path, direction):
    config = tiny_config(data, tmp_path / "run", steps=40)
    reports = run_to_end(replace(config, model={**config.model, "direction": direction}))
    other = {"forward": "backward", "backward": "forward"}[direction]
    assert getattr(reports[-1], other) is None
    assert getattr(reports[-1], f"heldout_{other}") is None
    assert getattr(reports[-1], direction) < getattr(reports[0], direction)
    assert torchelmo.load(tmp_path / "run").config.direction == direction


@pytest.mark.parametrize("tied", [False, True])
def test_words_in_and_a_tied_softmax(data, tmp_path, tied):
    model = {"input": "words", "tied_softmax": tied, "projection_dim": 6, "cell_dim": 8}
    reports = run_to_end(tiny_config(data, tmp_path / "run", steps=40, model=model))
    assert reports[-1].loss < reports[0].loss
    bilm = torchelmo.load(tmp_path / "run")
    assert (bilm.softmax.weight is bilm.encoder.embedding) == tied
    assert len(bilm.vocabulary) == bilm.config.n_words


def test_the_softmax_bias_may_start_from_the_frequencies(data, tmp_path):
    run = Run(tiny_config(data, tmp_path, unigram_bias=True))
    probability = run.bilm.softmax.bias.detach().exp()
    assert float(probability.sum()) == pytest.approx(1.0, rel=1e-5)
    assert float(probability[run.corpus.vocabulary.ids(["the"])[0]]) == pytest.approx(1 / 13, rel=0.2)
    assert bool((Run(tiny_config(data, tmp_path)).bilm.softmax.bias == 0).all())


def test_the_same_seed_gives_the_same_run_and_another_does_not(data, tmp_path):
    first, again = (pretrain(tiny_config(data, tmp_path / name, steps=4)).report for name in ("a", "b"))
    assert first.loss == again.loss
    assert pretrain(tiny_config(data, tmp_path / "c", steps=4, seed=2)).report.loss != first.loss


def test_random_numbers_belong_to_a_step(data, tmp_path):
    run = Run(tiny_config(data, tmp_path, dropout=0.5))
    one, other, again = run.draw(1), run.draw(2), run.draw(1)
    assert one.words.tolist() == again.words.tolist() != other.words.tolist()
    run.draw(1)
    first = torch.rand(4)
    run.draw(2)
    assert not torch.equal(first, torch.rand(4))
    run.draw(1)
    assert torch.equal(first, torch.rand(4))


def test_sentences_that_begin_with_a_window_may_begin_from_zero(data, tmp_path):
    carried = Run(tiny_config(data, tmp_path))
    reset = Run(tiny_config(data, tmp_path, reset_state=True))
    for run in (carried, reset):
        run.next_batch()
        run.state = type(run.state)(*(torch.ones_like(part) for part in run.state))
    batch = reset.next_batch()
    begins = batch.starts
    assert bool(begins.any())
    assert not bool(begins.all())
    assert begins.tolist() == (batch.backward[:, 0] == 1).tolist()  # both directions read the same sentences
    for part in reset.state_before(batch):
        assert bool((part[:, :, begins] == 0).all())
        assert bool((part[:, :, ~begins] == 1).all())
    assert carried.state_before(carried.next_batch()) is carried.state


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_what_was_good(data, tmp_path):
    out = tmp_path / "run"
    config = tiny_config(data, out, steps=50, checkpoint_every=2, clip=0.0)
    stop_after(config, 2)
    good = (out / "model.safetensors").read_bytes()
    with open_run(config, resume=True) as run:
        with torch.no_grad():
            run.bilm.softmax.weight.fill_(math.nan)
        with pytest.raises(TrainingError, match=mentions("step 3", "nan", "step-00000002", "optim.lr", 0.02)):
            list(train(run))
    assert (out / "model.safetensors").read_bytes() == good
    assert perplexity(torchelmo.load(out), sentences(5)).average > 0


def test_a_run_that_diverges_stops(data, tmp_path):
    config = tiny_config(data, tmp_path / "run", steps=500, clip=0.0, optim={"lr": 30.0, "warmup": 0})
    with pytest.raises(TrainingError, match=mentions("loss of at most", "optim.lr", 30)) as error:
        run_to_end(config)
    assert "nan" not in str(error.value)


def test_a_folder_with_a_run_is_not_written_over(data, tmp_path):
    config = tiny_config(data, tmp_path / "run", steps=2)
    pretrain(config)
    with pytest.raises(OutputExistsError, match=mentions(config.out, "resume=True", "overwrite=True")):
        pretrain(config)
    note = tmp_path / "run" / "notes.txt"
    note.write_text("mine")
    assert pretrain(replace(config, seed=5), overwrite=True).step == 2
    assert note.read_text() == "mine"
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1


def test_resuming_a_finished_run_does_nothing_and_a_longer_one_goes_on(data, tmp_path):
    config = tiny_config(data, tmp_path / "run", steps=3)
    pretrain(config)
    again = pretrain(config, resume=True)
    assert (again.finished, again.step, again.report) == (True, 3, None)
    assert pretrain(replace(config, steps=5), resume=True).step == 5


def test_resuming_where_nothing_was_saved_begins_at_the_beginning(data, tmp_path):
    assert pretrain(tiny_config(data, tmp_path / "run", steps=2), resume=True).step == 2


def test_epochs_are_counted_in_windows(data, tmp_path):
    run = Run(tiny_config(data, tmp_path, epochs=2.0))
    # 200 sentences of four and 200 of five tokens, each with a mark, in windows of 4 × 5.
    assert run.stream.windows_per_epoch == 110
    assert run.n_steps == 220


def test_hours_count_the_time_of_all_pieces(data, tmp_path):
    config = tiny_config(data, tmp_path / "run", hours=1.0, log_every=1)
    stop_after(config, 2)
    with open_run(config, resume=True) as run:
        before = run.progress.seconds
    assert before > 0
    config = replace(config, hours=(before + 1.0) / 3600)  # one more second, however slow the first steps were
    reports = run_to_end(config, resume=True)
    assert reports[-1].seconds >= before + 1.0
    assert reports[0].seconds > before
    rates = [report.lr for report in reports]
    assert rates[-1] < max(rates)  # the schedule follows the clock
    assert pretrain(config, resume=True).report is None


def test_by_the_clock_a_warm_up_begins_above_zero(data, tmp_path):
    run = Run(tiny_config(data, tmp_path / "run", hours=1.0, optim={"name": "adamw", "lr": 1.0, "warmup": 0.5}))
    assert run.learning_rate(1, 0.0) == pytest.approx(1.0 / 1800)
    assert run.learning_rate(101, 900.0) == pytest.approx(909.0 / 1800)
    assert run.learning_rate(301, 2700.0) == 1.0


def test_it_stops_when_held_out_perplexity_no_longer_falls(data, tmp_path):
    optim = {"name": "adamw", "lr": 0.3}  # far too high: it becomes worse
    config = tiny_config(data, tmp_path / "run", steps=400, evaluate_every=2, patience=2, optim=optim)
    reports = run_to_end(config)
    heldout = [report.heldout for report in reports if report.heldout is not None]
    assert reports[-1].step < 400
    assert min(heldout) == heldout[-3]
    best = torchelmo.load(tmp_path / "run" / "best")
    assert perplexity(best, sentences(40, seed=2)).average == pytest.approx(min(heldout), rel=1e-6)


def test_text_without_a_held_out_part_trains_too(tmp_path):
    from torchelmo.lm.corpus import write_corpus

    write_corpus(tmp_path / "data", sentences(50), vocab_size=100, max_characters=8)
    assert pretrain(tiny_config(tmp_path / "data", tmp_path / "run", steps=2)).report.heldout is None


def test_other_data_or_settings_cannot_be_resumed_with(data, tmp_path):
    config = tiny_config(data, tmp_path / "run", steps=2)
    pretrain(config)
    with pytest.raises(ConfigError, match=mentions(config.out, "unroll", 5, 6)):
        pretrain(replace(config, unroll=6), resume=True)
    other = write_data(tmp_path / "other", n=300)
    with pytest.raises(ConfigError, match=mentions(config.out, "data", other)):
        pretrain(replace(config, data=other), resume=True)


def test_settings_that_do_not_fit_the_data_or_the_machine(data, tmp_path, monkeypatch):
    config = tiny_config(data, tmp_path / "run")
    with pytest.raises(ConfigError, match=mentions(data, 8, "`max_characters` 9")):
        Run(replace(config, model={**config.model, "max_characters": 9}))
    with pytest.raises(ConfigError, match=mentions("batch_size", 3, 4)):
        Run(config, World(0, 3))
    monkeypatch.setattr("torchelmo.lm.run.why_onednn_crashes", lambda: "set ONEDNN_MAX_CPU_ISA")
    with pytest.raises(ConfigError, match=mentions("precision", "'bfloat16'", "ONEDNN_MAX_CPU_ISA")):
        Run(replace(config, precision="bfloat16"))


def test_the_number_of_threads_may_be_set(data, tmp_path):
    before = torch.get_num_threads()
    try:
        Run(tiny_config(data, tmp_path, threads=before + 1))
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_starting_from_another_model(data, tmp_path):
    pretrain(tiny_config(data, tmp_path / "first", steps=30, evaluate_every=10))
    config = tiny_config(data, tmp_path / "second", steps=2, model={}, init=str(tmp_path / "first"))
    first, second = torchelmo.load(tmp_path / "first"), Run(config).bilm
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    other = write_data(tmp_path / "other", vocab_size=10)
    with pytest.raises(ConfigError, match=mentions(tmp_path / "first", 19, 10, "vocab.txt")):
        Run(replace(config, data=other))


def test_a_run_goes_on_without_the_model_it_started_from(data, tmp_path):
    pretrain(tiny_config(data, tmp_path / "first", steps=2))
    first = torchelmo.load(tmp_path / "first")
    first.origin = "my first"
    first.save(tmp_path / "first")
    config = tiny_config(data, tmp_path / "second", steps=4, model={}, init=str(tmp_path / "first"))
    straight = replace(config, out=tmp_path / "straight")
    pretrain(straight)
    stop_after(config, 2)
    (tmp_path / "first").rename(tmp_path / "moved")
    pretrain(config, resume=True)
    second, expected = torchelmo.load(config.out), torchelmo.load(straight.out)
    assert all(torch.equal(a, b) for a, b in zip(second.parameters(), expected.parameters(), strict=True))
    assert second.origin == "my first"
    moved = replace(config, init=tmp_path / "moved", steps=5)
    assert pretrain(moved, resume=True).step == 5


def test_metrics_are_json_lines(data, tmp_path):
    run_to_end(tiny_config(data, tmp_path / "run", steps=10, evaluate_every=5))
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [5, 10]
    assert {"loss", "forward", "backward", "lr", "tokens_per_second", "heldout", "gradient_norm"} <= records[0].keys()
    assert records[1]["tokens"] == 200
