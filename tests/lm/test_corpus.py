"""The corpus folder: what is written is what is read, in the order of frequency."""

import json

import numpy as np
import pytest
from facts import mentions

from torchelmo.errors import ConfigError, InputError, MissingFileError, OutputError
from torchelmo.lm.corpus import Corpus, write_corpus
from torchelmo.text.characters import CharacterEncoder
from torchelmo.text.vocabulary import Vocabulary

TRAIN = [["a", "bow", "and", "a", "rose"], ["a", "rose"], ["Ærø", "x" * 10_000]]
HELDOUT = [["a", "new", "bow"]]


@pytest.fixture
def folder(tmp_path):
    write_corpus(tmp_path / "data", TRAIN, HELDOUT, vocab_size=6)
    return tmp_path / "data"


def test_types_stand_by_frequency_then_by_text_and_heldout_types_last(folder):
    corpus = Corpus(folder)
    assert corpus.types == ["<S>", "</S>", "<UNK>", "a", "rose", "and", "bow", "x" * 10_000, "Ærø", "new"]
    assert corpus.counts.tolist() == [3, 3, 0, 3, 2, 1, 1, 1, 1, 0]
    assert list(corpus.vocabulary) == corpus.types[:6]
    assert (corpus.n_types, corpus.n_tokens, corpus.n_sentences) == (10, 9, 3)


def test_sentences_come_back(folder):
    assert list(Corpus(folder).sentences()) == TRAIN
    assert list(Corpus(folder, "heldout").sentences()) == HELDOUT


def test_the_characters_are_those_of_the_encoder(folder):
    corpus = Corpus(folder)
    assert corpus.characters.dtype == np.int16
    assert np.array_equal(corpus.characters, CharacterEncoder(50).encode(corpus.types))


def test_targets_outside_the_vocabulary_are_unknown(folder):
    corpus = Corpus(folder)
    assert corpus.targets(np.array([0, 1, 3, 5, 6, 9])).tolist() == [0, 1, 3, 5, 2, 2]
    assert corpus.target_counts.tolist() == [3, 3, 3, 3, 2, 1]  # all of one direction: 9 tokens and the marks
    assert corpus.counts[2] == 0  # the file is not changed by it


def test_the_card_says_what_was_found(folder):
    card = Corpus(folder).card
    assert card["parts"]["train"] == {
        "sentences": 3,
        "tokens": 9,
        "types": 6,
        "oov_rate": pytest.approx(3 / 9),
    }
    assert card["parts"]["heldout"]["oov_rate"] == pytest.approx(2 / 3)
    assert (card["vocabulary"], card["types"]) == (6, 10)


def test_the_vocabulary_holds_only_what_was_seen_in_training(tmp_path):
    corpus = write_corpus(tmp_path / "data", TRAIN, HELDOUT, vocab_size=1000)
    assert list(corpus.vocabulary) == ["<S>", "</S>", "<UNK>", "a", "rose"]  # without words that occur once
    assert "new" not in corpus.vocabulary
    assert corpus.card["settings"]["vocab_size"] == 1000


def test_marks_in_the_text_are_the_marks(tmp_path):
    corpus = write_corpus(tmp_path / "data", [["<UNK>", "!!!MAXTERMID", "</S>"]])
    assert corpus.tokens.tolist() == [2, 2, 1]
    assert len(corpus.vocabulary) == corpus.card["vocabulary"] == 3
    assert corpus.card["parts"]["train"]["oov_rate"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("token", ["", "two\nlines", "end\r", "\ud83d"])
def test_a_token_that_a_line_cannot_hold_is_named(token, tmp_path):
    with pytest.raises(InputError, match=mentions("heldout", "sentence 2", "token 1", repr(token))):
        write_corpus(tmp_path / "data", [["a", "bow"]], [[], ["a"], ["a", token]])
    words = Vocabulary(["<S>", "</S>", "<UNK>", token])
    with pytest.raises(InputError, match=mentions("vocabulary", "word 3", repr(token))):
        write_corpus(tmp_path / "data", [["a", "bow"]], vocabulary=words)
    assert not list(tmp_path.iterdir())


def test_an_empty_text_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match=mentions("`heldout`")):
        write_corpus(tmp_path / "data", [[]])
    assert list(tmp_path.iterdir()) == []


def test_a_vocabulary_without_room_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=mentions("vocab_size", 3)):
        write_corpus(tmp_path / "data", TRAIN, vocab_size=3)


def test_a_folder_that_is_in_use_is_not_overwritten(folder):
    with pytest.raises(OutputError, match=mentions(folder)):
        write_corpus(folder, TRAIN)
    assert list(Corpus(folder, "heldout").sentences()) == HELDOUT


def test_a_missing_part_says_how_to_get_it(tmp_path):
    write_corpus(tmp_path / "data", TRAIN)
    with pytest.raises(InputError, match=mentions(tmp_path / "data", "`heldout`")):
        Corpus(tmp_path / "data", "heldout")
    assert not list((tmp_path / "data").glob(".*"))


def test_a_folder_without_a_card_is_not_prepared_text(tmp_path):
    with pytest.raises(MissingFileError, match=mentions(tmp_path, "torchelmo prepare", "card.json")):
        Corpus(tmp_path)


def test_a_damaged_card_is_refused(folder):
    (folder / "card.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=mentions("card.json", "JSON")):
        Corpus(folder)
    (folder / "card.json").write_text(json.dumps({"format": 99}), encoding="utf-8")
    with pytest.raises(InputError, match=mentions("card.json", "format", 1, 99)):
        Corpus(folder)


def test_damaged_arrays_are_refused(folder):
    whole = (folder / "train.tokens.npy").read_bytes()
    (folder / "train.tokens.npy").write_bytes(whole[:-4])
    with pytest.raises(InputError, match=mentions("train.tokens.npy")):
        Corpus(folder)
    np.save(folder / "train.tokens.npy", np.zeros(9, dtype=np.int32))
    with pytest.raises(InputError, match=mentions("train.tokens.npy", "uint32", " int32", "(9,)")):
        Corpus(folder)
    np.save(folder / "train.tokens.npy", np.zeros(8, dtype=np.uint32))
    with pytest.raises(InputError, match=mentions("train.tokens.npy", 9, 8)):
        Corpus(folder)
    (folder / "train.tokens.npy").unlink()
    with pytest.raises(MissingFileError, match=mentions("train.tokens.npy")):
        Corpus(folder)


CARDS = {
    "list": [],
    "no parts": {"parts": None},
    "parts as a list": {"parts": []},
    "part as a number": {"parts": {"train": 3}},
    "negative sentences": {"parts": {"train": {"sentences": -1}}},
    "types as text": {"types": "10"},
    "too many words": {"vocabulary": 11},
    "no words": {"vocabulary": 0},
    "no settings": {"settings": None},
    "huge width": {"settings": {"max_characters": 10**12}},
    "tokenizer as text": {"tokenizer": "none"},
    "language as a number": {"tokenizer": {"lang": 3}},
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_with_wrong_values_is_refused(folder, name):
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps(card | CARDS[name] if isinstance(CARDS[name], dict) else CARDS[name]))
    with pytest.raises(InputError, match=mentions("card.json")):
        Corpus(folder)


ARRAYS = {
    "token out of range": ("train.tokens.npy", np.full(9, 99, dtype=np.uint32)),
    "offsets that fall": ("train.offsets.npy", np.array([0, 5, 4, 9])),
    "offsets that do not start at 0": ("train.offsets.npy", np.array([1, 5, 7, 9])),
    "no offset": ("train.offsets.npy", np.array([], dtype=np.int64)),
    "character out of range": ("characters.npy", np.full((10, 50), 300, dtype=np.int16)),
    "negative character": ("characters.npy", np.full((10, 50), -1, dtype=np.int16)),
    "negative count": ("counts.npy", np.full(10, -1)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_numbers_that_are_no_index_are_refused(folder, name):
    file, array = ARRAYS[name]
    np.save(folder / file, array)
    with pytest.raises(InputError, match=mentions(file)):
        Corpus(folder)


@pytest.mark.parametrize("header", [b"{'descr': '<u4', ", b"(((((", b"{'descr': [], 'fortran_order': 0, 'shape': 1}"])
def test_a_damaged_header_is_refused(folder, header):
    (folder / "train.tokens.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(InputError, match=mentions("train.tokens.npy")):
        Corpus(folder)


def test_types_that_are_missing_are_named(folder):
    (folder / "types.txt").write_text("a\n")
    with pytest.raises(InputError, match=mentions("types.txt", 10, 1)):
        list(Corpus(folder).sentences())


def test_a_changed_vocabulary_is_refused(folder):
    with (folder / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("extra\n")
    with pytest.raises(InputError, match=mentions("vocab.txt", 6, 7)):
        _ = Corpus(folder).vocabulary
