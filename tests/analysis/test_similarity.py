"""Words in context, compared with a brute-force computation in NumPy."""

import math

import numpy as np
import pytest
from facts import mentions

from torchelmo import Elmo
from torchelmo.analysis import compare, neighbours
from torchelmo.analysis.similarity import Neighbour, _TopNeighbours, find_word
from torchelmo.errors import ConfigError, InputError

QUERY = "I took a bow".split()
TEXT = [
    line.split()
    for line in (
        "He was wielding a bow and arrow",
        "She made a deep bow to the king",
        "one",
        "The bow of the ship is blue",
        "Zürich and 東京 are places far from here .",
        "They took a boat",
    )
]


@pytest.fixture
def elmo(tiny_bilm):
    return Elmo(tiny_bilm).eval()


def cosine(a, b):
    return float(sum(a * b) / math.sqrt(sum(a * a) * sum(b * b)))


def brute_force(elmo, layer, text):
    """Return all words of the text in order of decreasing cosine."""
    target = elmo.embed([QUERY])[0][layer][3]
    found = []
    for sentence in text:
        for i, vector in enumerate(elmo.embed([sentence])[0][layer]):
            found.append((cosine(target, vector), tuple(sentence), i))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("top", [1, 4, 1000])
@pytest.mark.parametrize("batch_tokens", [1, 2048])
def test_the_neighbours_are_those_of_brute_force(elmo, top, batch_tokens):
    # The token layer gives copies of a word the same cosine: that is the next test.
    found = neighbours(elmo, QUERY, 3, iter(TEXT), layers=[1, 2], top=top, batch_tokens=batch_tokens)
    assert list(found) == [1, 2]
    for layer, mine in found.items():
        expected = brute_force(elmo, layer, TEXT)[:top]
        assert len(mine) == min(top, sum(map(len, TEXT)))
        assert [one[1:] for one in mine] == [one[1:] for one in expected]
        np.testing.assert_allclose([one.cosine for one in mine], [one[0] for one in expected], atol=1e-5)


def test_the_token_layer_finds_the_word_itself_in_the_order_of_the_text(elmo):
    (found,) = neighbours(elmo, QUERY, 3, TEXT, layers=[0], top=3).values()
    assert [one.word for one in found] == ["bow", "bow", "bow"]
    assert {one.tokens for one in found} == {tuple(TEXT[i]) for i in (0, 1, 3)}
    assert [one.cosine for one in found] == pytest.approx([1, 1, 1])


def test_the_query_sentence_is_skipped_and_copies_count_once(elmo):
    again = [QUERY, *TEXT, *TEXT, QUERY, *TEXT]
    found = neighbours(elmo, QUERY, 3, again, layers=["all"], top=5)
    once = neighbours(elmo, QUERY, 3, TEXT, layers=["all"], top=5)
    for layer in (1, 2):
        assert [one[1:] for one in found[layer]] == [one[1:] for one in once[layer]]
    assert len({one[1:] for one in found[0]}) == 5


def test_strings_are_tokenized_and_the_words_returned(elmo):
    found = neighbours(elmo, "I took a bow", 3, ["He made a bow. It was deep.", "I saw a ship."], top=100)[2]
    tokens = [line.split() for line in ("He made a bow .", "It was deep .", "I saw a ship .")]
    expected = neighbours(elmo, QUERY, 3, tokens, top=100)[2]
    assert [one[1:] for one in found] == [one[1:] for one in expected]
    np.testing.assert_allclose([one.cosine for one in found], [one.cosine for one in expected], atol=1e-6)
    assert {one.word for one in found} == {word for sentence in tokens for word in sentence}


def test_strings_and_lists_of_tokens_may_be_mixed(elmo):
    found = neighbours(elmo, QUERY, 3, ["I took a bow", "They took a boat", TEXT[0]], top=100)[2]
    assert {one.tokens for one in found} == {("They", "took", "a", "boat"), tuple(TEXT[0])}


def test_the_language_of_strings_is_an_argument(elmo):
    (found,) = neighbours(elmo, ["bow"], 0, ["z.B. ein Bug"], lang="de", top=100).values()
    assert {one.tokens for one in found} == {("z.B.", "ein", "Bug")}


def test_a_single_string_is_not_a_text(elmo):
    with pytest.raises(InputError, match=mentions("neighbours", "[text]")):
        neighbours(elmo, QUERY, 3, "He made a bow.")
    with pytest.raises(InputError, match=mentions("compare", "[text]")):
        compare(elmo, "bow", "I took a bow")


@pytest.mark.parametrize("wrong", [None, 7, [1, 2]])
def test_a_sentence_that_is_neither_text_nor_tokens_is_refused(elmo, wrong):
    with pytest.raises(InputError, match=mentions("Sentence 1")):
        neighbours(elmo, QUERY, 3, [TEXT[0], wrong])
    with pytest.raises(InputError, match=mentions("Sentence 0")):
        neighbours(elmo, wrong, 0, TEXT)
    with pytest.raises(InputError, match=mentions("Sentence 1")):
        compare(elmo, "bow", [QUERY, wrong])


def test_an_empty_text_has_no_neighbours(elmo):
    assert neighbours(elmo, QUERY, 3, []) == {2: []}


def test_the_text_is_read_lazily(elmo):
    n_read = n_done = most = 0

    def text():
        nonlocal n_read
        for i in range(300):
            n_read += 1
            yield ["word", str(i)]

    def count(n):
        nonlocal n_done, most
        n_done += n
        most = max(most, n_read - n_done)

    (found,) = neighbours(elmo, QUERY, 3, text(), top=2, batch_tokens=16, progress=count).values()
    assert (n_done, len(found)) == (300, 2)
    assert most < 40


def test_top_must_be_positive(elmo):
    with pytest.raises(ConfigError, match=mentions("top", 1, 0)):
        neighbours(elmo, QUERY, 3, TEXT, top=0)


@pytest.mark.parametrize("position", [len(QUERY), -1])
def test_a_position_outside_the_sentence_is_refused(position, elmo):
    with pytest.raises(ConfigError, match=mentions("position", 0, len(QUERY) - 1, position)):
        neighbours(elmo, QUERY, position, TEXT)


def test_top_neighbours_keep_the_first_of_equal_cosines():
    best = _TopNeighbours(2)
    best.add_sentence(np.array([0.5, 0.5, 0.5]), ("a", "b", "c"))
    assert [one.word for one in best.sorted()] == ["a", "b"]
    best.add_sentence(np.array([0.1, 0.9]), ("d", "e"))
    assert best.sorted() == [Neighbour(0.9, ("d", "e"), 1), Neighbour(0.5, ("a", "b", "c"), 0)]
    best.add_sentence(np.array([0.1, 0.9]), ("d", "e"))
    assert [one.word for one in best.sorted()] == ["e", "a"]
    best.add_sentence(np.array([0.7, 0.95, 0.8]), ("x", "y", "z"))
    assert [one.word for one in best.sorted()] == ["y", "e"]


def test_compare_returns_the_cosine_of_every_pair_in_every_layer(elmo):
    sentences = [QUERY, "He was wielding a bow and arrow".split(), "bow".split()]
    found = compare(elmo, "bow", sentences)
    assert found.shape == (3, 3, 3)
    places = [3, 4, 0]
    for layer in range(3):
        vectors = [elmo.embed([some])[0][layer][place] for some, place in zip(sentences, places)]
        expected = [[cosine(a, b) for b in vectors] for a in vectors]
        np.testing.assert_allclose(found[layer], expected, atol=1e-5)
    np.testing.assert_allclose(found[0], 1, atol=1e-5)
    assert found[2, 0, 1] < 0.999


def test_compare_takes_strings(elmo):
    strings = ["I took a bow.", "He was wielding a bow, and arrows"]
    tokens = [["I", "took", "a", "bow", "."], ["He", "was", "wielding", "a", "bow", ",", "and", "arrows"]]
    np.testing.assert_array_equal(compare(elmo, "bow", strings), compare(elmo, "bow", tokens))


def test_compare_takes_strings_of_several_sentences_as_embed_does(elmo):
    text = "It was late. I took a bow."
    found = compare(elmo, "bow", [text, QUERY])
    expected = [cosine(a[7], b[3]) for a, b in zip(elmo.embed([text])[0], elmo.embed([QUERY])[0])]
    np.testing.assert_allclose(found[:, 0, 1], expected, atol=1e-5)


def test_compare_takes_the_position_of_a_word_that_appears_twice(elmo):
    twice = "a bow is a bow".split()
    with pytest.raises(ConfigError, match=mentions("'bow'", "position", "1, 4")):
        compare(elmo, "bow", [twice, QUERY])
    found = compare(elmo, "bow", [twice, twice, QUERY], position=[1, 4, None])
    vectors = [elmo.embed([twice])[0][2][1], elmo.embed([twice])[0][2][4], elmo.embed([QUERY])[0][2][3]]
    np.testing.assert_allclose(found[2], [[cosine(a, b) for b in vectors] for a in vectors], atol=1e-5)
    np.testing.assert_array_equal(compare(elmo, "bow", [twice, twice], position=4)[2].round(5), 1)
    with pytest.raises(ConfigError, match=mentions("position", 2, 1)):
        compare(elmo, "bow", [twice, QUERY], position=[1])
    with pytest.raises(ConfigError, match=mentions("position", "'bow'", 0, "'a'")):
        compare(elmo, "bow", [twice], position=0)


def test_compare_needs_sentences_with_the_word(elmo):
    with pytest.raises(InputError, match="compare"):
        compare(elmo, "bow", [])
    with pytest.raises(ConfigError, match=mentions("'bow'", "no arrow")):
        compare(elmo, "bow", [QUERY, ["no", "arrow"]])


@pytest.mark.parametrize(("word", "position", "place"), [("a", None, 2), ("a", 2, 2), (None, 0, 0), ("took", 1, 1)])
def test_a_word_is_found(word, position, place):
    assert find_word(QUERY, word, position) == place


@pytest.mark.parametrize(
    ("word", "position", "facts"),
    [
        ("b", None, ["'b'", "a b c b", "position", "1, 3"]),
        ("x", None, ["'x'", "a b c b"]),
        ("b", 2, ["position", "'b'", 2, "'c'", "a b c b"]),
        (None, 4, ["position", 0, 3, 4, "a b c b"]),
        ("a", -4, ["position", 0, 3, -4, "a b c b"]),
        (None, None, ["word", "position"]),
    ],
)
def test_a_missing_or_ambiguous_word_is_refused(word, position, facts):
    with pytest.raises(ConfigError, match=mentions(*facts)):
        find_word("a b c b".split(), word, position)
