"""Word vectors: reading files of them, and looking them up."""

import bz2
import gzip
import logging
import lzma
import re

import pytest
import torch
from facts import mentions

from torchelmo.errors import InputError, MissingFileError
from torchelmo.tasks import words as word_vectors
from torchelmo.tasks.words import WordEmbedding, read_vectors

GLOVE = "the 0.5 -1 2e-1\nof .25 +3.0 -4E+0\n"
NUMBERS = [[0.5, -1.0, 0.2], [0.25, 3.0, -4.0]]


@pytest.fixture
def write(tmp_path):
    def write(text, name="vectors.txt"):
        path = tmp_path / name
        opener = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}.get(path.suffix, open)
        with opener(path, "wb") as file:
            file.write(text.encode("utf-8"))
        return path

    return write


class TestReading:
    @pytest.mark.parametrize("name", ["v.txt", "v.txt.gz", "v.txt.bz2", "v.txt.xz"])
    @pytest.mark.parametrize("header", ["", "2 3\n", "2\t3\n"])
    def test_glove_and_word2vec_files_of_any_compression(self, write, name, header):
        words, vectors = read_vectors(write(header + GLOVE, name))
        assert words == ["the", "of"]
        assert vectors.dtype == torch.float32
        torch.testing.assert_close(vectors, torch.tensor(NUMBERS))

    @pytest.mark.parametrize(
        "text",
        [
            GLOVE.replace("\n", " \n"),  # the first word2vec program ends its lines so
            GLOVE.replace("\n", "\r\n"),
            GLOVE.replace(" ", "\t"),
            "\ufeff" + GLOVE,
            GLOVE.removesuffix("\n"),
            GLOVE.replace("\n", "\n\n"),
        ],
    )
    def test_ends_of_lines_and_tabs_make_no_difference(self, write, text):
        words, vectors = read_vectors(write(text))
        assert words == ["the", "of"]
        torch.testing.assert_close(vectors, torch.tensor(NUMBERS))

    def test_words_may_hold_spaces_and_other_white_space(self, write):
        words, vectors = read_vectors(
            write(". . . 1 2\nat name@domain.com 3 4\na\u00a0b 5 6\n\u0085 7 8\n3 1/2 9 10\n")
        )
        assert words == [". . .", "at name@domain.com", "a\u00a0b", "\u0085", "3 1/2"]
        assert vectors.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]

    def test_words_may_be_numbers(self, write):
        words, vectors = read_vectors(write("7 0.5 1.5\n3.5 0.25 0.75\n# 1 2\n"))
        assert words == ["7", "3.5", "#"]
        assert vectors.tolist() == [[0.5, 1.5], [0.25, 0.75], [1.0, 2.0]]

    def test_the_first_of_two_equal_words_counts(self, write, monkeypatch):
        monkeypatch.setattr(word_vectors, "_CHUNK_LINES", 3)
        words, vectors = read_vectors(write("a 1\nb 2\na 3\nb 4\na 5\nb 6\nc 7\n"))
        assert words == ["a", "b", "c"]
        assert vectors.tolist() == [[1.0], [2.0], [7.0]]

    def test_many_lines_are_read_in_order(self, write):
        lines = [f"w{i} {i / 8} {-i}" for i in range(2500)]
        words, vectors = read_vectors(write("\n".join(lines)))
        assert words == [f"w{i}" for i in range(2500)]
        assert torch.equal(vectors, torch.tensor([[i / 8, -i] for i in range(2500)]))

    def test_a_header_that_promises_more_is_warned_of(self, write, caplog):
        caplog.set_level(logging.WARNING)
        path = write("9 3\n" + GLOVE)
        assert len(read_vectors(path).words) == 2
        (said,) = caplog.messages
        assert re.search(mentions(path, "line 1", 9, 2), said)


class TestMalformedFiles:
    @pytest.mark.parametrize(
        ("third", "found"),
        [
            ("on 1 2", 2),  # too short
            ("on 1.5 2.5 3.5 4.5", 4),  # too long
            ("on 1 x 3", 1),
            ("on 1 2 3x", 0),
            ("on 1  3", 1),
            ("on 1 2_0 3", 1),
            ("on 1 2 3\r4", 0),
            ("on", 0),
            ("on 1 2 \u0663\u00a0", 0),  # Python's float would read it
        ],
    )
    def test_a_malformed_line_is_named(self, write, third, found):
        path = write(GLOVE + third + "\nat 7 8 9\n")
        with pytest.raises(InputError, match=mentions(path, "line 3", 3, found)):
            read_vectors(path)

    def test_lines_must_fit_the_header(self, write):
        with pytest.raises(InputError, match=mentions("line 2", 5, 3, "'the")):
            read_vectors(write("2 5\n" + GLOVE))

    def test_a_header_of_many_digits(self, write):
        path = write("9" * 5000 + " 3\n" + GLOVE)
        with pytest.raises(InputError, match=mentions(path, "line 1")) as error:
            read_vectors(path)
        assert len(str(error.value)) < 400

    def test_a_first_line_without_numbers(self, write):
        with pytest.raises(InputError, match=mentions("line 1", 0, "'x y'")):
            read_vectors(write("x y\n" + GLOVE))

    @pytest.mark.parametrize("number", ["nan", "inf", "-Infinity", "1e39", "1e999"])
    def test_numbers_must_be_finite(self, write, number):
        path = write(f"{GLOVE}\non 1 {number} 3\n")
        with pytest.raises(InputError, match=mentions("line 4", f"'on 1 {number} 3'")):
            read_vectors(path)

    @pytest.mark.parametrize("text", ["", "\n \n", "0 3\n", "2 3\n\n"])
    def test_a_file_without_vectors(self, write, text):
        path = write(text)
        with pytest.raises(InputError, match=mentions(path)):
            read_vectors(path)

    def test_a_file_that_is_not_there(self, tmp_path):
        with pytest.raises(MissingFileError, match=mentions(tmp_path / "none.txt")):
            read_vectors(tmp_path / "none.txt")


class TestEmbedding:
    vectors = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]])

    def make(self, **options):
        return WordEmbedding(["the", "Bow", "bow"], self.vectors, **options)

    def test_the_exact_form_then_lower_case_then_unknown(self):
        assert self.make().ids(["the", "The", "Bow", "BOW", "bow", "arrow", "<UNK>", ""]) == [2, 2, 3, 4, 4, 1, 1, 1]

    @pytest.mark.parametrize("n_fixed", [0, 1, 2, 3])
    def test_rows_are_padding_unknown_and_the_words(self, n_fixed):
        embedding = self.make(n_fixed=n_fixed)
        found = embedding(torch.tensor([[2, 3, 4], [1, 0, 0]]))
        assert embedding.dim == 2
        assert found.tolist() == [[[1, 2], [3, 4], [5, 9]], [[3, 5], [0, 0], [0, 0]]]  # <UNK>: their mean

    def test_trainable_vectors_learn_and_padding_does_not(self):
        embedding = self.make()
        embedding(torch.tensor([[4, 1, 1, 0, 0]])).sum().backward()
        assert embedding.vectors.grad.tolist() == [[0, 0], [0, 0], [1, 1]]
        assert embedding.unknown.grad.tolist() == [2, 2]

    def test_of_fixed_vectors_only_the_unknown_learns(self):
        embedding = self.make(n_fixed=3)
        assert [name for name, _ in embedding.named_parameters()] == ["unknown"]
        embedding(torch.tensor([[2, 1, 0]])).sum().backward()
        assert embedding.unknown.grad.tolist() == [1, 1]
        assert not embedding.fixed.requires_grad

    def test_words_learn_beside_those_that_are_fixed(self):
        embedding = self.make(n_fixed=1)
        embedding(torch.tensor([[2, 4, 4, 1, 0]])).sum().backward()
        assert embedding.vectors.grad.tolist() == [[1, 1], [0, 0]]
        assert embedding.fixed.tolist() == [[5, 9]]

    @pytest.mark.parametrize("n_fixed", [0, 1, 3])
    def test_a_new_embedding_takes_the_state_of_another(self, n_fixed):
        old, new = self.make(n_fixed=n_fixed), WordEmbedding(["the", "Bow", "bow"], dim=2, n_fixed=n_fixed)
        new.load_state_dict(old.state_dict())
        ids = torch.tensor([[0, 1, 2, 3, 4]])
        assert torch.equal(new(ids), old(ids))

    def test_the_given_vectors_are_copied(self):
        given = self.vectors.clone()
        embedding = WordEmbedding(["the", "Bow", "bow"], given)
        given.zero_()
        assert embedding.vectors.tolist() == self.vectors.tolist()

    def test_without_vectors_words_begin_at_random_with_lengths_near_one(self):
        torch.manual_seed(0)
        embedding = WordEmbedding([f"w{i}" for i in range(2000)], dim=20)
        assert embedding.vectors.square().sum(dim=1).mean().item() == pytest.approx(1.0, rel=0.05)
        assert embedding.unknown.abs().max() < 0.1

    @pytest.mark.parametrize(
        ("words", "options", "message"),
        [
            ([], {"dim": 2}, ()),
            (["a"], {}, ("dim", None)),
            (["a"], {"dim": 0}, ("dim", 0)),
            (["a", "b", "a"], {"dim": 2}, ("'a'",)),
            (["a"], {"vectors": torch.zeros(2, 3)}, ("(1, dim)", "(2, 3)")),
            (["a"], {"vectors": torch.zeros(1, 3), "dim": 4}, ("(1, 4)", "(1, 3)")),
        ],
    )
    def test_what_does_not_fit_is_refused(self, words, options, message):
        with pytest.raises(InputError, match=mentions("WordEmbedding", *message)):
            WordEmbedding(words, **options)
