"""Which held-out sentences are measured during a run."""

import shutil

import pytest
from facts import mentions

from torchelmo.errors import InputError
from torchelmo.lm.corpus import Corpus, write_corpus
from torchelmo.lm.loop import heldout_sentences, sample_evenly

WIKI = [["wiki", str(i)] for i in range(60)]
BOOKS = [["book", str(i)] for i in range(30)]


@pytest.fixture
def heldout(tmp_path):
    write_corpus(tmp_path / "data", [["a", "bow"]], [*WIKI, *BOOKS], vocab_size=5)
    return Corpus(tmp_path / "data", "heldout")


def test_every_source_has_its_share(heldout):
    chosen = list(sample_evenly(heldout, 60))
    assert sum(map(len, chosen)) == 60
    assert [sentence[0] for sentence in chosen] == ["wiki"] * 20 + ["book"] * 10
    assert chosen == list(sample_evenly(heldout, 60))


@pytest.mark.parametrize(("n_tokens", "n_sentences"), [(1, 1), (180, 90), (10_000, 90)])
def test_at_least_one_sentence_and_at_most_all(heldout, n_tokens, n_sentences):
    assert len(list(sample_evenly(heldout, n_tokens))) == n_sentences


def test_a_damaged_part_is_not_taken_for_none(data, tmp_path):
    shutil.copytree(data, tmp_path / "data")
    corpus = Corpus(tmp_path / "data")
    tokens = tmp_path / "data" / "heldout.tokens.npy"
    tokens.write_bytes(tokens.read_bytes()[:-40])
    with pytest.raises(InputError, match=mentions("heldout.tokens.npy")):
        heldout_sentences(corpus, 100)
    tokens.unlink()
    with pytest.raises(InputError, match=mentions("heldout.tokens.npy")):
        heldout_sentences(corpus, 100)
