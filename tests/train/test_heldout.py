"""Which held-out sentences are measured during a run."""

import pytest

from torchelmo.train.corpus import Corpus
from torchelmo.train.heldout import spread
from torchelmo.train.writer import write_corpus

WIKI = [["wiki", str(i)] for i in range(60)]
BOOKS = [["book", str(i)] for i in range(30)]


@pytest.fixture
def heldout(tmp_path):
    write_corpus(tmp_path / "data", [["a", "bow"]], [*WIKI, *BOOKS], vocab_size=5)
    return Corpus.open(tmp_path / "data", "heldout")


def test_every_source_has_its_share(heldout):
    chosen = list(spread(heldout, 60))
    assert sum(map(len, chosen)) == 60
    assert [sentence[0] for sentence in chosen] == ["wiki"] * 20 + ["book"] * 10
    assert chosen == list(spread(heldout, 60))


@pytest.mark.parametrize(("n_tokens", "n_sentences"), [(1, 1), (180, 90), (10_000, 90)])
def test_at_least_one_sentence_and_at_most_all(heldout, n_tokens, n_sentences):
    assert len(list(spread(heldout, n_tokens))) == n_sentences
