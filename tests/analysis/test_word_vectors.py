"""Mean vectors of words, read back by gensim, and interrupted runs."""

import gzip

import numpy as np
import pytest
from facts import mentions

from torchelmo import Elmo, embedder
from torchelmo.analysis import word_vectors
from torchelmo.analysis.word_vectors import align_words, average_words
from torchelmo.errors import ConfigError, InputError, OutputExistsError, WeightsError, WrongCallError

SENTENCES = ["the bow and the arrow", "a bow of wood", "the wood", "", "New\u00a0York and the bow"] * 3


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def elmo(tiny_bilm):
    return Elmo(tiny_bilm)


@pytest.mark.parametrize("layers", ["average", 0, "concat"])
def test_gensim_reads_the_mean_of_the_vectors_of_a_word(elmo, text, tmp_path, layers):
    from gensim.models import KeyedVectors

    result = average_words(elmo, [text], tmp_path / "words.txt", layers=layers, min_count=1, lang="xx")
    read = KeyedVectors.load_word2vec_format(tmp_path / "words.txt")
    sentences = [line.replace("\u00a0", " ") for line in SENTENCES]
    assert read.index_to_key[:3] == ["the", "bow", "and"]
    assert (result.n_words, result.dim) == (len(read.index_to_key), read.vector_size)
    assert result.n_tokens == sum(len(line.split()) for line in sentences)


def test_the_numbers_are_the_means(elmo, text, tmp_path):
    from gensim.models import KeyedVectors

    average_words(elmo, [text], tmp_path / "words.txt", min_count=1, lang=None)
    read = KeyedVectors.load_word2vec_format(tmp_path / "words.txt")
    for word in ("the", "bow", "wood", "a"):
        tokens = [line.split() for line in SENTENCES]
        vectors = [v for s in tokens if s for t, v in zip(s, elmo.embed([s], layers="average")[0]) if t == word]
        np.testing.assert_allclose(read[word], np.mean(vectors, axis=0), atol=1e-5)


def test_only_the_most_frequent_words_are_written(elmo, text, tmp_path):
    result = average_words(elmo, [text], tmp_path / "words.txt", min_count=6, max_words=2, lang=None)
    lines = (tmp_path / "words.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "2 16"
    assert [line.split()[0] for line in lines[1:]] == ["the", "bow"]
    assert result.n_words == 2


def test_rare_words_are_forgotten_when_there_are_too_many(elmo, text, tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors, "_MAX_TYPES", 6)
    average_words(elmo, [text], tmp_path / "words.txt", min_count=3, lang=None)
    assert (tmp_path / "words.txt").read_text(encoding="utf-8").splitlines()[1].startswith("the ")


def test_compressed_texts_and_several_files(elmo, text, tmp_path):
    with gzip.open(tmp_path / "more.txt.gz", "wt", encoding="utf-8") as stream:
        stream.write("the end\n" * 5)
    result = average_words(elmo, [text, str(tmp_path / "more.txt.gz")], tmp_path / "words.txt", lang=None)
    assert "end" in (tmp_path / "words.txt").read_text(encoding="utf-8")
    assert result.n_tokens == 3 * (4 + 2 + 1 + 1 + 1) + 10 + 3 * 2  # the 5 frequent words of the text, and "the end"


def test_an_interrupted_run_is_continued_with_the_same_result(elmo, text, tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors, "_BLOCK", 5)
    monkeypatch.setattr(embedder, "BLOCKS_PER_CACHE", 3)
    average_words(elmo, [text], tmp_path / "whole.txt", min_count=1, lang=None)
    add, n_calls = word_vectors._Sums.add, 0

    def interrupt(*arguments):
        nonlocal n_calls
        n_calls += 1
        if n_calls == 10:
            raise KeyboardInterrupt
        add(*arguments)

    out, partial = tmp_path / "words.txt", tmp_path / "words.txt.partial"
    monkeypatch.setattr(word_vectors, "SAVE_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(word_vectors._Sums, "add", interrupt)
        with pytest.raises(KeyboardInterrupt) as stopped:
            average_words(elmo, [text], out, min_count=1, lang=None)
    assert "resume=True" in stopped.value.__notes__[0]
    assert partial.exists()
    assert not out.exists()
    with pytest.raises(OutputExistsError, match=mentions(partial, "resume=True")):
        average_words(elmo, [text], out, min_count=1, lang=None)
    with pytest.raises(WrongCallError, match=mentions(partial, "overwrite=True")):
        average_words(elmo, [text], out, min_count=1, layers="top", lang=None, resume=True)
    with pytest.raises(WrongCallError, match=mentions(partial, "overwrite=True")):
        average_words(elmo, [text], out, min_count=6, lang=None, resume=True)
    average_words(elmo, [text], out, min_count=1, lang=None, resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", "whole.txt", "words.txt"]
    assert out.read_bytes() == (tmp_path / "whole.txt").read_bytes()
    assert average_words(elmo, [text], out, lang=None, resume=True).n_words == 9


def test_damaged_sums_are_named(elmo, text, tmp_path, monkeypatch):
    out, sums = tmp_path / "words.txt", tmp_path / "words.txt.partial" / "sums.safetensors"
    monkeypatch.setattr(word_vectors, "SAVE_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(word_vectors, "_write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            average_words(elmo, [text], out, min_count=1, lang=None)
    sums.write_bytes(sums.read_bytes()[:-8])
    with pytest.raises(WeightsError, match=mentions(sums, "overwrite=True")):
        average_words(elmo, [text], out, min_count=1, lang=None, resume=True)
    average_words(elmo, [text], out, min_count=1, lang=None, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", "words.txt"]


def test_the_work_is_saved_from_time_to_time(elmo, text, tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(word_vectors, "_BLOCK", 5)
    saved = []
    save = word_vectors._Sums.save
    monkeypatch.setattr(word_vectors._Sums, "save", lambda *given: (saved.append(given[0].n_sentences), save(*given)))
    average_words(elmo, [text], tmp_path / "words.txt", min_count=1, lang=None)
    assert saved == sorted(set(saved))
    assert len(saved) > 3


def write_vectors(path, words, vectors):
    rows = [f"{word} {' '.join(map(str, vector))}\n" for word, vector in zip(words, vectors.tolist())]
    path.write_text("".join([f"{len(words)} {vectors.shape[1]}\n", *rows]), encoding="utf-8")


@pytest.fixture
def languages(tmp_path):
    """The vectors of 60 words, and the same rotated, scaled and moved, under other names; 40 pairs, and 20 to test."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(60, 8)) + 3
    rotation, _ = np.linalg.qr(random.normal(size=(8, 8)))
    write_vectors(tmp_path / "a.vec", [f"a{i}" for i in range(60)], vectors)
    write_vectors(tmp_path / "b.vec", [f"b{i}" for i in range(60)], 0.5 * vectors @ rotation - 7)
    for name, numbers in (("anchors", range(40)), ("test", range(40, 60))):
        lines = [f"a{i}\tb{i}\n" for i in numbers]
        (tmp_path / name).write_text("".join([*lines, "\n", "absent b1\n"]), encoding="utf-8")
    return [tmp_path / name for name in ("a.vec", "b.vec", "anchors")]


def test_a_rotation_is_found_from_anchors(languages, tmp_path):
    result = align_words(*languages, tmp_path / "out.vec", test=tmp_path / "test")
    assert result == (tmp_path / "out.vec", 60, 40, 20, 1.0)
    found, expected = (np.loadtxt(tmp_path / name, skiprows=1, usecols=range(1, 9)) for name in ("out.vec", "b.vec"))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_precision_counts_wrong_translations(languages, tmp_path):
    (tmp_path / "test").write_text("a50 b50\na51 b51\na52 b1\na53 b2\n", encoding="utf-8")
    assert align_words(*languages, tmp_path / "out.vec", test=tmp_path / "test").precision == 0.5


def test_files_that_cannot_be_aligned_are_named(languages, tmp_path):
    source, target, anchors = languages
    out = tmp_path / "out.vec"
    with pytest.raises(WrongCallError, match=mentions(source, "input")):
        align_words(*languages, source, overwrite=True)
    anchors.write_text("a1 b1 c1\n", encoding="utf-8")
    with pytest.raises(InputError, match=mentions(anchors, "line 1", 3)):
        align_words(*languages, out)
    anchors.write_text("a1 b1\nx y\n", encoding="utf-8")
    with pytest.raises(InputError, match=mentions(anchors, source, target, 1)):
        align_words(*languages, out)
    write_vectors(target, ["b1"], np.ones((1, 3)))
    with pytest.raises(InputError, match=mentions(target, 8, 3)):
        align_words(*languages, out)
    assert not out.exists()
    out.touch()
    with pytest.raises(OutputExistsError, match=mentions(out)):
        align_words(*languages, out)


def test_what_is_wrong_is_named(elmo, text, tmp_path):
    out = tmp_path / "words.txt"
    with pytest.raises(InputError, match=mentions(text, "at least 100", "at most 12", "`min_count`")):
        average_words(elmo, [text], out, min_count=100, lang=None)
    with pytest.raises(ConfigError, match=mentions("layers", "'all'")):
        average_words(elmo, [text], out, layers="all")
    with pytest.raises(ConfigError, match=mentions("max_words", 0)):
        average_words(elmo, [text], out, max_words=0)
    with pytest.raises(InputError, match=mentions("standard input")):
        average_words(elmo, ["-"], out)
    out.write_text("notes\n", encoding="utf-8")
    with pytest.raises(OutputExistsError, match=mentions(out, "overwrite=True")):
        average_words(elmo, [text], out)
    with pytest.raises(InputError, match=mentions(out, "header")):
        average_words(elmo, [text], out, resume=True)
    assert average_words(elmo, [text], out, min_count=1, overwrite=True, lang=None).n_words > 3
