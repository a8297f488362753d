"""Training of masked models: which words are hidden, the loss by its equations, whole runs."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from facts import mentions
from tiny_lm import MaskedOracle
from tiny_runs import MODEL, run_to_end, sentences, tiny_config

import torchelmo
from torchelmo.errors import ConfigError, InputError, OutputError
from torchelmo.lm.cloze import pseudo_perplexity
from torchelmo.lm.config import PretrainConfig
from torchelmo.lm.corpus import Corpus, write_corpus
from torchelmo.lm.finetune import fine_tune
from torchelmo.lm.loop import pretrain
from torchelmo.lm.losses import draw_masks
from torchelmo.lm.run import Run
from torchelmo.lm.stream import SentenceStream

JOINT = {**MODEL, "joint": True}


def masked_config(data, out, **changes):
    return tiny_config(data, out, **{"objective": "masked", "model": JOINT, "masks_per_window": 3, **changes})


# The words to predict


def window(n=400, words=10, seed=0):
    rng = np.random.default_rng(seed)
    lengths = torch.from_numpy(rng.integers(3, words + 3, n))
    ids = torch.from_numpy(rng.integers(3, 99, (n, words + 2)))
    return ids, ids + 1000, lengths


def drawn(**changes):
    ids, words, lengths = window()
    return draw_masks(ids, words, lengths, **{"share": 0.15, "n_masks": 4, "seed": 7, **changes})


def test_the_share_of_predicted_words_and_their_fates_are_as_set():
    _, _, lengths = window()
    batch = drawn()
    n, n_words = len(batch.words), int((lengths - 2).sum())
    assert n / (4 * n_words) == pytest.approx(0.15, abs=0.01)
    assert int(batch.masked.sum()) / n == pytest.approx(0.8, abs=0.03)
    seen = batch.ids[batch.predicted & ~batch.masked]
    original = (batch.words - 1000)[~batch.masked[batch.predicted]]
    assert float((seen == original).double().mean()) == pytest.approx(0.5, abs=0.05)
    assert bool((batch.masked <= batch.predicted).all())
    assert bool(batch.predicted.any(dim=1).all())
    assert float(batch.weight) == 1.0


def test_marks_and_what_follows_a_sentence_are_never_predicted():
    batch = drawn(share=0.25)
    step = torch.arange(batch.ids.shape[1])
    inside = (step > 0) & (step < batch.lengths.unsqueeze(1) - 1)
    assert bool((batch.predicted <= inside).all())
    assert int(batch.predicted.sum()) == int((window()[2] - 2).sum())  # four copies of a quarter: every word, once


def test_no_word_is_predicted_in_two_copies():
    ids, _, lengths = window(n=1, words=30)
    lengths[:] = 32
    marked = torch.arange(32).unsqueeze(0) + 5000  # every word is another
    batch = draw_masks(ids, marked, lengths, share=0.3, n_masks=3, seed=1)
    assert len(batch.words.unique()) == len(batch.words) > 15


def test_the_seed_alone_decides():
    one, again, other = drawn(), drawn(), drawn(seed=8)
    assert all(torch.equal(a, b) for a, b in zip(one, again))
    assert not torch.equal(one.predicted[:300], other.predicted[:300])


def test_ranks_share_the_copies():
    whole, parts = drawn(), [drawn(rank=rank, n_ranks=3) for rank in range(3)]
    assert sum(len(part.words) for part in parts) == len(whole.words)
    assert sum(float(part.weight) for part in parts) == pytest.approx(3.0)
    for rank, part in enumerate(parts):
        assert torch.equal(part.ids, whole.ids[rank::3])
        assert torch.equal(part.window_words, whole.words)


def test_every_rank_has_a_row_even_without_words():
    ids, words, lengths = window(n=1, words=1)
    batches = [draw_masks(ids, words, lengths, share=1.0, n_masks=1, seed=1, rank=r, n_ranks=2) for r in range(2)]
    assert [len(batch.ids) for batch in batches] == [1, 1]
    assert sorted(len(batch.words) for batch in batches) == [0, 1]
    none = draw_masks(ids, words, lengths, share=1e-9, n_masks=1, seed=1)
    assert (len(none.ids), len(none.words), float(none.weight)) == (1, 0, 0.0)


# The stream of sentences


def test_an_epoch_reads_every_sentence_once_in_windows_of_similar_length(data):
    corpus = Corpus(data)
    stream = SentenceStream(corpus, batch_size=4, unroll=10, seed=3)
    windows = [window for _, window in zip(range(stream.windows_per_epoch), stream)]
    assert stream.epoch == 1.0
    found = [
        tuple(ids[1 : length - 1].tolist())
        for window in windows
        for ids, length in zip(window.ids, window.lengths, strict=True)
    ]
    expected = [tuple(corpus.tokens[start:end].tolist()) for start, end in zip(corpus.offsets[:-1], corpus.offsets[1:])]
    assert sorted(found) == sorted(expected)
    for window in windows:
        assert window.lengths.sum() <= 40 + window.lengths.max()
        assert (window.ids[:, 0] == 0).all()
        assert (window.ids[np.arange(window.ids.shape[1]) >= window.lengths[:, None] - 1] == 1).all()
    assert np.mean([window.lengths.max() - window.lengths.min() for window in windows]) < 0.1
    another = next(iter(stream))
    assert another.number == (1, 0)


def test_a_stream_of_sentences_goes_on_exactly_at_its_position(data):
    corpus = Corpus(data)
    stream = SentenceStream(corpus, batch_size=4, unroll=10, seed=3)
    n = stream.windows_per_epoch
    for _ in zip(range(n + 3), stream):
        pass
    position, expected = stream.position, next(iter(stream))
    again = SentenceStream(corpus, batch_size=2, unroll=10, seed=3, rank=1, n_ranks=2)
    again.seek(position)
    found = next(iter(again))
    assert found.number == expected.number
    assert (found.ids == expected.ids).all()
    with pytest.raises(InputError, match=mentions("seed", 3, 4)):
        SentenceStream(corpus, batch_size=4, unroll=10, seed=4).seek(position)
    with pytest.raises(InputError, match=mentions(n, n + 1)):
        stream.seek({**position, "window": n + 1})


def test_a_sentence_that_exceeds_a_window_is_cut(tmp_path):
    corpus = write_corpus(tmp_path / "data", [["a"] * 50, ["b", "c"]], max_characters=8)
    windows = SentenceStream(corpus, batch_size=2, unroll=6, seed=1)
    lengths = sorted(int(length) for _, window in zip(range(2), windows) for length in window.lengths)
    assert lengths == [4, 12]


# The loss


def test_the_loss_is_that_of_the_equations(data, tmp_path):
    """Against NumPy, sentence by sentence: −log p of every predicted word at its own position, from both directions."""
    run = Run(masked_config(data, tmp_path, loss="full", dropout=0.0, batch_size=8, unroll=10, mask_share=0.3))
    with torch.no_grad():
        for parameter in run.bilm.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    oracle, types, batch = MaskedOracle(run.bilm), run.corpus.types, run.next_batch()
    losses, targets = [], batch.words.tolist()
    for ids, length, masked, predicted in zip(*(part.tolist() for part in batch[:4])):
        tokens = [types[i] for i in ids[1 : length - 1]]
        log_p = oracle.log_p(tokens, tuple(k for k in range(len(tokens)) if masked[k + 1]))
        losses += [-log_p[k, targets.pop(0)] for k in range(len(tokens)) if predicted[k + 1]]
    assert not targets
    assert len(losses) > 20
    output = run.objective(batch, run.state, None)
    assert output.loss.item() == pytest.approx(np.mean(losses), rel=1e-5)
    assert output.masked.item() == output.loss.item()
    assert output.forward is output.backward is None


def test_the_sampled_loss_is_the_full_one_if_all_words_are_drawn(data, tmp_path):
    runs = [Run(masked_config(data, tmp_path, loss=loss, dropout=0.0, negatives=999)) for loss in ("full", "sampled")]
    full, sampled = (run.objective(run.next_batch(), run.state, run.draw(1)).loss.item() for run in runs)
    assert sampled == pytest.approx(full, rel=1e-5)


def test_a_masked_step_is_what_the_recipe_says(data, tmp_path):
    """Against a loop in plain PyTorch over the layers of the model: clipped gradient, Adagrad."""
    config = masked_config(data, tmp_path / "run", steps=3, loss="full", clip=0.5, dropout=0.0, optim={})
    run = Run(config)
    bilm, losses = run.bilm, []
    optimizer = torch.optim.Adagrad(bilm.parameters(), lr=0.2, initial_accumulator_value=1.0)
    characters = torch.from_numpy(run.corpus.characters.copy()).long()
    for _ in range(3):
        optimizer.zero_grad()
        batch, rows = run.next_batch(), []
        for ids, length, masked, predicted in zip(*batch[:4]):
            inside = slice(None, int(length))
            out = bilm(characters[ids[inside]][None], boundaries=False, masked=masked[inside][None], path="reference")
            rows.append(out.layers[-1][0][predicted[inside]])
        loss = torch.nn.functional.nll_loss(bilm.softmax(torch.cat(rows)), batch.words)
        loss.backward()
        losses.append(float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(bilm.parameters(), 0.5)
        optimizer.step()
    last = pretrain(config).report
    assert last.loss == pytest.approx(sum(losses) / 3, rel=1e-5)
    for name, tensor in torchelmo.load(tmp_path / "run").state_dict().items():
        torch.testing.assert_close(tensor, bilm.state_dict()[name], rtol=1e-4, atol=1e-6, msg=name)


# Whole runs


def test_it_learns_the_grammar(data, tmp_path):
    model = {"input": "words", "joint": True, "projection_dim": 8, "cell_dim": 16}
    settings = {"loss": "full", "dropout": 0.0, "clip": 1.0, "model": model, "batch_size": 16, "unroll": 10}
    reports = run_to_end(masked_config(data, tmp_path / "run", steps=150, evaluate_every=75, keep=9, **settings))
    # Of nine words in two sentences four are one of 10 names, two are one of 4 verbs, the rest are fixed.
    unigram = math.exp((4 * math.log(90 / 4) + 2 * math.log(36 / 2) + 2 * math.log(9 / 2) + math.log(9)) / 9)
    best = math.exp((4 * math.log(10) + 2 * math.log(4)) / 9)
    last = reports[-1]
    assert best < last.heldout < 0.5 * unigram
    assert (last.forward, last.backward, last.heldout_forward) == (None, None, None)
    assert last.masked == pytest.approx(math.exp(last.loss))
    assert f"held-out perplexity {last.heldout:.2f}" in last.line()
    bilm = torchelmo.load(tmp_path / "run")
    assert pseudo_perplexity(bilm, sentences(40, seed=2), spacing=7)[0] == pytest.approx(last.heldout, rel=1e-6)


def test_a_masked_model_is_used_like_any_other(data, tmp_path):
    pretrain(masked_config(data, tmp_path / "run", steps=2))
    elmo = torchelmo.Elmo(tmp_path / "run")
    assert elmo.bilm.config.joint
    (vectors,) = elmo.embed([["ann", "sees", "bob"]])
    assert vectors.shape == (3, 3, 12)
    mixes, _ = elmo(elmo.encode([["ann", "sees", "bob"]]))
    assert mixes[0].shape == (1, 3, 12)
    with pytest.raises(OutputError, match=mentions("official", "masked")):
        torchelmo.save_official(elmo.bilm, tmp_path / "options.json", tmp_path / "weights.hdf5")


def test_fine_tuning_keeps_the_objective(data, tmp_path):
    config = masked_config(data, tmp_path / "run", steps=20, dropout=0.0, batch_size=8, unroll=10)
    pretrain(config)
    lines = [f"{a} {c} {b} ." for (a, b, *_, c, _) in sentences(200, seed=5)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    settings = ["batch_size=8", "unroll=10", "epochs=2", "dropout=0.0", "optim.lr=0.02", "masks_per_window=3"]
    tuned = fine_tune(
        tmp_path / "run", [tmp_path / "text.txt"], tmp_path / "tuned", pretokenized=True, settings=settings
    )
    assert tuned.after.average < 0.9 * tuned.before.average
    assert tuned.before.forward is None
    assert torchelmo.load(tmp_path / "tuned").config == torchelmo.load(tmp_path / "run").config
    with pytest.raises(ConfigError, match=mentions("run", "'masked'", "'bilm'")):
        pretrain(tiny_config(data, tmp_path / "other", model={}, init=str(tmp_path / "run")))


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"objective": "bilm"}, ["joint", "masked", "bilm"]),
        ({"model": {**MODEL, "direction": "forward"}}, ["masked", "both", "forward"]),
        ({"model": {**MODEL, "objective": "bilm"}}, ["model", "objective", "masked"]),
        ({"mask_share": 0.5}, ["mask_share", "masks_per_window", 0.5, 3]),
        ({"mask_share": 0.0}, ["mask_share", 0]),
        ({"masks_per_window": 0}, ["masks_per_window", 1, 0]),
    ],
)
def test_settings_that_do_not_fit_are_named(changes, facts, tmp_path):
    with pytest.raises(ConfigError, match=mentions(*facts)):
        masked_config(tmp_path / "data", tmp_path / "run", **changes)


def test_the_default_objective_is_that_of_the_paper(tmp_path):
    config = tiny_config(tmp_path / "data", tmp_path / "run")
    assert isinstance(config, PretrainConfig)
    assert config.model_config(9).objective == "bilm"
    assert replace(config, objective="masked").model_config(9).objective == "masked"
