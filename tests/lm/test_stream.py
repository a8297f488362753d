"""The batch stream: rows of running text in which nothing is lost, doubled or padded."""

import itertools
import json

import numpy as np
import pytest
from facts import mentions
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.errors import InputError
from torchelmo.lm.corpus import BEGIN_ID, END_ID, UNKNOWN_ID, write_corpus
from torchelmo.lm.stream import Stream, Window


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """60 sentences of 1 to 13 tokens, all of them distinct types, so that each can be followed."""
    lengths = np.random.default_rng(0).integers(1, 14, size=60)
    names = iter(range(10_000))
    sentences = [[f"w{next(names)}" for _ in range(n)] for n in lengths]
    return write_corpus(tmp_path_factory.mktemp("corpus") / "data", sentences, vocab_size=150)


def windows(stream, n):
    return list(itertools.islice(stream, n))


def joined(parts) -> Window:
    """Windows one after another: each field (batch, n · unroll)."""
    return Window(*(np.concatenate(arrays, axis=1) for arrays in zip(*parts)))


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def read_sentences(inputs, targets, opening, closing, corpus):
    """A row's whole sentences, as word-type ids; the marks and the targets are checked on the way."""
    starts = [*np.flatnonzero(inputs == opening).tolist(), len(inputs)]
    assert starts[0] == 0  # a row begins with the beginning of a sentence
    for start, end in itertools.pairwise(starts[:-1]):
        words = inputs[start + 1 : end]
        assert np.array_equal(targets[start:end], [*corpus.targets(words), closing])
        yield words.tolist()


def test_both_directions_read_the_same_sentences_of_a_row_in_the_same_order(corpus):
    text = joined(windows(Stream(corpus, batch_size=3, unroll=7, seed=1), 40))
    known = {tuple(corpus.tokens[a:b].tolist()) for a, b in itertools.pairwise(corpus.offsets)}
    for row in range(3):
        forward = list(read_sentences(text.forward[row], text.forward_targets[row], BEGIN_ID, END_ID, corpus))
        backward = list(read_sentences(text.backward[row], text.backward_targets[row], END_ID, BEGIN_ID, corpus))
        assert forward == [words[::-1] for words in backward]
        assert {tuple(words) for words in forward} <= known
        assert len(forward) > 20


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_no_token_is_lost_or_doubled_over_an_epoch(corpus, direction):
    """What was handed out in n epochs is every sentence n times."""
    stream = Stream(corpus, batch_size=4, unroll=5, seed=2)
    n_epochs = 3
    parts = []
    while stream.epoch < n_epochs:
        parts.append(next(iter(stream)))
    parts += windows(stream, 14 // 5 + 1)  # the rows finish the sentences they have begun
    inputs = getattr(joined(parts), direction)
    opening = BEGIN_ID if direction == "forward" else END_ID
    times = dict.fromkeys(range(corpus.n_sentences), 0)
    sentence_of = np.repeat(np.arange(corpus.n_sentences), np.diff(corpus.offsets))
    place = np.empty(corpus.n_types, dtype=np.int64)
    place[corpus.tokens] = sentence_of  # every type stands in one sentence
    for row in inputs:
        for start in np.flatnonzero(row[:-1] == opening):
            times[int(place[row[start + 1]])] += 1
    # Rows that finish their last sentence begin one of the next epoch, so some stand there once more.
    assert set(times.values()) <= {n_epochs, n_epochs + 1}


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    batch_size=st.integers(1, 6),
    unroll=st.integers(1, 9),
    seed=st.integers(0, 5),
)
def test_each_token_is_a_target_once_an_epoch_whatever_the_sizes(tmp_path_factory, lengths, batch_size, unroll, seed):
    """One row at a time is followed step by step against a plain rendering of the rule."""
    names = iter(range(10_000))
    sentences = [[f"w{next(names)}" for _ in range(n)] for n in lengths]
    corpus = write_corpus(tmp_path_factory.mktemp("any") / "data", sentences, vocab_size=10_000)
    n_windows = 12
    text = joined(windows(Stream(corpus, batch_size=batch_size, unroll=unroll, seed=seed), n_windows))
    expected = plain_rows(corpus, batch_size, unroll, seed, n_windows)
    for name in Window._fields:
        assert np.array_equal(getattr(text, name), [row[name] for row in expected]), name


def plain_rows(corpus, batch_size, unroll, seed, n_windows):
    """The rule itself, step by step: a row that has nothing to read takes the next sentence of the queue."""

    def queue():
        for epoch in itertools.count():
            yield from np.random.default_rng([seed, epoch]).permutation(corpus.n_sentences)

    sentences = queue()
    rows = [{name: [] for name in Window._fields} for _ in range(batch_size)]
    waiting = [[] for _ in range(batch_size)]
    for _ in range(n_windows):
        for row, steps in zip(rows, waiting):
            for _ in range(unroll):
                if not steps:
                    index = next(sentences)
                    words = corpus.tokens[corpus.offsets[index] : corpus.offsets[index + 1]].tolist()
                    forward, backward = [0, *words, 1], [1, *words[::-1], 0]
                    steps += zip(forward, forward[1:], backward, backward[1:])
                for name, value in zip(Window._fields, steps.pop(0)):
                    row[name].append(value)
    return rows


def test_types_outside_the_vocabulary_are_unknown_as_targets_only(corpus):
    text = joined(windows(Stream(corpus, batch_size=2, unroll=10, seed=0), 30))
    assert text.forward.max() >= 150
    assert text.forward_targets.max() < 150
    assert np.count_nonzero(text.forward_targets == UNKNOWN_ID) > 0


@pytest.mark.parametrize("n_windows", [0, 1, 9, 40])
def test_a_stream_goes_on_exactly_at_its_position(corpus, n_windows):
    stream = Stream(corpus, batch_size=4, unroll=6, seed=3)
    windows(stream, n_windows)
    position = json.loads(json.dumps(stream.position))
    resumed = Stream(corpus, batch_size=4, unroll=6, seed=3)
    windows(resumed, 2)  # where it was before does not matter
    resumed.seek(position)
    assert resumed.position == position
    assert resumed.epoch == stream.epoch
    assert same(joined(windows(stream, 50)), joined(windows(resumed, 50)))
    assert resumed.position == stream.position


def test_two_ranks_read_what_one_reads_with_the_joined_batch(corpus):
    whole = Stream(corpus, batch_size=6, unroll=5, seed=4)
    ranks = [Stream(corpus, batch_size=3, unroll=5, seed=4, rank=rank, n_ranks=2) for rank in range(2)]
    for window, *parts in itertools.islice(zip(whole, *ranks), 60):
        assert same(window, (np.concatenate(arrays) for arrays in zip(*parts)))
    assert whole.position == ranks[0].position == ranks[1].position
    assert whole.tokens_per_window == ranks[0].tokens_per_window == 30
    other = Stream(corpus, batch_size=2, unroll=5, seed=4, rank=2, n_ranks=3)  # three ranks go on where two stopped
    other.seek(ranks[0].position)
    assert same(next(iter(other)), [array[4:] for array in next(iter(whole))])


def test_more_rows_than_before_keep_the_old_rows(corpus):
    stream = Stream(corpus, batch_size=3, unroll=5, seed=5)
    windows(stream, 4)
    wider = Stream(corpus, batch_size=5, unroll=5, seed=5)
    wider.seek(stream.position)
    before, after = next(iter(stream)), next(iter(wider))
    assert np.array_equal(before.forward[:, 0], after.forward[:3, 0])
    assert (after.forward[3:, 0] == BEGIN_ID).all()


def test_fewer_rows_than_before_lose_no_sentence(corpus):
    """The sentences of the rows that are gone come first in the queue, whole, and survive another stop."""
    stream = Stream(corpus, batch_size=5, unroll=4, seed=6)
    windows(stream, 3)
    narrow = Stream(corpus, batch_size=1, unroll=4, seed=6)
    narrow.seek(stream.position)
    waiting = narrow.position["again"]
    assert 2 <= len(waiting) <= 4
    head = windows(narrow, 2)
    assert narrow.position["again"] == waiting[-len(narrow.position["again"]) :] != []
    resumed = Stream(corpus, batch_size=1, unroll=4, seed=6)
    resumed.seek(json.loads(json.dumps(narrow.position)))
    text = joined(head + windows(resumed, 200)).forward[0].tolist()
    taken = stream.position["taken"]
    rest = np.random.default_rng([6, 0]).permutation(corpus.n_sentences)[taken:].tolist()
    expected = []
    for index in [*waiting, *rest]:
        expected += [BEGIN_ID, *corpus.tokens[corpus.offsets[index] : corpus.offsets[index + 1]].tolist()]
    begin = text.index(BEGIN_ID)  # after the sentence that the row was reading
    assert text[begin : begin + len(expected)] == expected


def test_the_seed_decides_the_order_and_every_epoch_has_its_own(corpus):
    def first(seed):
        return joined(windows(Stream(corpus, batch_size=1, unroll=20, seed=seed), 60)).forward[0]

    assert np.array_equal(first(1), first(1))
    assert not np.array_equal(first(1), first(2))
    epoch = corpus.n_tokens + corpus.n_sentences
    text = first(1)
    assert not np.array_equal(text[:200], text[epoch : epoch + 200])


def test_a_stream_knows_how_long_an_epoch_is(corpus):
    stream = Stream(corpus, batch_size=2, unroll=5, seed=0)
    windows(stream, stream.windows_per_epoch)
    assert stream.epoch == pytest.approx(1, abs=0.1)


def test_a_position_of_other_data_is_refused(corpus):
    stream = Stream(corpus, batch_size=2, unroll=5, seed=0)
    with pytest.raises(InputError, match=mentions("seed", 0, 1)):
        stream.seek(stream.position | {"seed": 1})
    with pytest.raises(InputError, match=mentions("n_sentences", 60, 7)):
        stream.seek(stream.position | {"n_sentences": 7})


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"unroll": 0}, {"rank": 2, "n_ranks": 2}])
def test_impossible_sizes_are_refused(corpus, wrong):
    with pytest.raises(InputError, match=mentions(*wrong, *wrong.values())):
        Stream(corpus, **({"batch_size": 1, "unroll": 1, "seed": 0} | wrong))
