"""Word sense disambiguation, compared with a brute-force computation in NumPy."""

import math

import numpy as np
import pytest
from facts import mentions
from tiny_senses import BOW_GESTURE, BOW_KNOT, BOW_WEAPON, GOOD, SELDOM, SOUND, TAKE_PART, TEST, TRAIN, write_all

from torchelmo import Elmo
from torchelmo.analysis.senses import TaggedSentence, TaggedWord, read_senses, read_tagged
from torchelmo.analysis.wsd import CentroidClassifier, KNNClassifier, collect_senses, disambiguate, relevant_sentences
from torchelmo.errors import ConfigError


@pytest.fixture
def elmo(tiny_bilm):
    return Elmo(tiny_bilm).eval()


@pytest.fixture
def data(tmp_path):
    files = write_all(tmp_path)
    test = list(read_tagged(files["test"], files["keys"]))
    return list(read_tagged(files["train"])), test, read_senses(files["senses"])


def brute_force(elmo, layer, senses, n_neighbours=None):
    """The answer for every instance of TEST, from one run of the biLM per sentence and all vectors kept."""
    of_sense = {}
    for text, tags in TRAIN:
        words = [word.split("_") for word in text.split()]
        vectors = elmo.embed([[part for word in words for part in word]])[0][layer]
        for place, keys in tags.items():
            start = sum(len(word) for word in words[:place])
            for key in keys:
                of_sense.setdefault(key, []).append(vectors[start : start + len(words[place])].mean(axis=0))
    answers = []
    for sentence in TEST:
        words = [(item if isinstance(item, str) else item[0]).split(" ") for item in sentence]
        vectors = elmo.embed([[part for word in words for part in word]])[0][layer]
        for place, item in enumerate(sentence):
            if isinstance(item, str):
                continue
            start = sum(len(word) for word in words[:place])
            mine = vectors[start : start + len(words[place])].mean(axis=0)
            keys = senses.get((item[1], item[2]), [])
            seen = {key: of_sense[key] for key in keys if key in of_sense}
            if n_neighbours is None:
                scores = {key: cosine(mine, sum(vectors) / len(vectors)) for key, vectors in seen.items()}
            else:
                near = sorted(
                    (-round(float(cosine(mine, each)), 5), keys.index(key)) for key in seen for each in seen[key]
                )
                scores = {key: sum(1 - c for c, i in near[:n_neighbours] if keys[i] == key) for key in seen}
            answers.append(max(seen, key=scores.__getitem__) if seen else keys[0] if keys else None)
    return answers


def cosine(a, b):
    return sum(a * b) / math.sqrt(sum(a * a) * sum(b * b))


def gold():
    return [item[3] for sentence in TEST for item in sentence if not isinstance(item, str)]


@pytest.mark.parametrize("batch_tokens", [1, 2048])
def test_every_layer_answers_as_brute_force_does(elmo, data, batch_tokens):
    train, test, senses = data
    found = disambiguate(elmo, train, test, senses, batch_tokens=batch_tokens)
    assert list(found.layers) == [0, 1, 2]
    for layer, counts in found.layers.items():
        answers = brute_force(elmo, layer, senses)
        right = sum(answer in keys for answer, keys in zip(answers, gold(), strict=True))
        assert counts == (7, 6, right)


@pytest.mark.parametrize("neighbours", [None, 1, 2, 3, 100])
def test_the_answers_themselves_are_those_of_brute_force(elmo, data, neighbours):
    """Each answer is made the only right one in turn: the score is full for brute force's alone."""
    train, test, senses = data
    for layer in range(3):
        answers = iter(brute_force(elmo, layer, senses, neighbours))
        told = [
            TaggedSentence(s.tokens, [w._replace(senses=(next(answers) or "none",)) for w in s.words]) for s in test
        ]
        found = disambiguate(elmo, train, told, senses, layers=[layer], neighbours=neighbours)
        assert found.layers[layer] == (7, 6, 6)


def test_baselines(elmo, data):
    train, test, senses = data
    found = disambiguate(elmo, train, test, senses, layers=["top"])
    # First senses: weapon (wrong, right), show (wrong), good (wrong), take part and seldom (right), no answer.
    assert found.first_sense == (7, 6, 3)
    # Most frequent: gesture twice (right, wrong), show before prove as WordNet has it (wrong), good (wrong), ….
    assert found.most_frequent == (7, 6, 3)
    assert found.n_seen == 5
    assert list(found.layers) == [2]


def test_the_most_frequent_sense_is_that_of_the_training_data(elmo, data):
    _, test, senses = data
    train = [TaggedSentence(["good"], [TaggedWord(0, 1, ("good", "ADJ"), (key,))]) for key in [GOOD, SOUND, SOUND]]
    found = disambiguate(elmo, train, test, senses, layers=[0])
    assert found.most_frequent.n_correct == found.first_sense.n_correct + 1
    assert (found.n_seen, found.n_senses) == (1, 2)


def test_precision_is_of_answers_and_recall_of_all(elmo, data):
    train, test, senses = data
    first = disambiguate(elmo, train, test, senses, layers=[0]).first_sense
    assert (first.precision, first.recall) == (pytest.approx(100 * 3 / 6), pytest.approx(100 * 3 / 7))
    assert first.f1 == pytest.approx(2 / (1 / first.precision + 1 / first.recall))


def test_a_lemma_without_training_gets_the_first_sense(elmo, data):
    _, test, senses = data
    found = disambiguate(elmo, [], test, senses)
    assert set(found.layers.values()) == {found.first_sense} == {found.most_frequent}
    assert (found.n_seen, found.n_senses) == (0, 0)


def test_only_sentences_with_a_relevant_sense_are_embedded(data):
    train, test, senses = data
    kept = list(relevant_sentences(train, test, senses))
    assert kept == train[:7]  # then come one without tags, a tree, and the sense of another WordNet


def test_embedding_only_relevant_sentences_gives_the_same_sums(elmo, data):
    train, test, senses = data
    everything = {key for keys in senses.values() for key in keys}
    all_sentences, relevant = CentroidClassifier(), CentroidClassifier()
    collect_senses(all_sentences, elmo, train, everything, [0, 1, 2])
    collect_senses(relevant, elmo, relevant_sentences(train, test, senses), everything, [0, 1, 2])
    assert all_sentences.sums.keys() - relevant.sums.keys() == {"tree%1:20:00::"}
    for key, total in relevant.sums.items():
        np.testing.assert_allclose(total, all_sentences.sums[key], atol=1e-6)
        assert relevant.counts[key] == all_sentences.counts[key]
    assert relevant.counts[BOW_GESTURE] == 2


def test_a_sense_of_another_wordnet_is_no_answer(elmo, data):
    train, test, senses = data
    without = [sentence for sentence in train if "older" not in sentence.tokens]
    assert len(without) == len(train) - 1
    assert disambiguate(elmo, without, test, senses) == disambiguate(elmo, train, test, senses)


def test_the_training_data_is_read_lazily(elmo, data):
    """A hundred copies: what is held at any time is a few batches."""
    train, test, senses = data
    n_read, most = 0, 0

    def endless():
        nonlocal n_read
        for _ in range(100):
            for sentence in train[:7]:
                n_read += 1
                yield sentence

    n_done = 0

    def count(n):
        nonlocal n_done, most
        n_done += n
        most = max(most, n_read - n_done)

    found = disambiguate(elmo, endless(), test, senses, batch_tokens=16, progress=count)
    assert n_done == n_read == 700
    assert most < 20
    assert found.layers == disambiguate(elmo, train, test, senses).layers


def test_all_data_may_come_as_iterators(elmo, data):
    train, test, senses = data
    assert disambiguate(elmo, iter(train), iter(test), senses) == disambiguate(elmo, train, test, senses)


@pytest.mark.parametrize("layers", [[3], [-1], ["topp"], [True], []])
def test_layers_that_do_not_exist_are_refused(elmo, data, layers):
    with pytest.raises(ConfigError, match=mentions("layers", *map(repr, layers))):
        disambiguate(elmo, *data, layers=layers)


def test_names_of_the_sample_are_those_of_its_inventory(data):
    _, _, senses = data
    assert senses["bow", "NOUN"] == [BOW_WEAPON, BOW_KNOT, BOW_GESTURE]
    assert (senses["take_part", "VERB"], senses["seldom", "ADV"]) == ([TAKE_PART], [SELDOM])


def fit(vectors, kind):
    for sense, some in vectors.items():
        for each in some:
            kind.add(sense, np.array(each))
    return kind


def test_the_nearest_centroid_is_chosen_per_layer_and_ties_go_to_the_first():
    a, b = [[2.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [5.0, 0.0]]
    means = fit({"a": [a], "b": [b], "c": [a, a, a], "zero": [np.zeros((2, 2))]}, CentroidClassifier())
    vectors = np.array([[1.0, 0.1], [1.0, 0.1]])
    assert means.predict(vectors, ["a", "b"]) == ["a", "b"]
    assert means.predict(vectors, ["c", "a"]) == ["c", "c"]
    assert means.predict(vectors, ["a", "c"]) == ["a", "a"]
    assert means.predict(vectors, ["zero", "b"]) == ["b", "b"]
    assert means.counts == {"a": 1, "b": 1, "c": 3, "zero": 1}


def test_the_nearest_words_vote_layer_by_layer():
    near, middle, far = [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]
    vectors = {"rare": [[near, far]], "usual": [[middle, middle], [middle, far]]}
    x = np.array([[1.0, 0.0], [1.0, 0.0]])
    answers = {k: fit(vectors, KNNClassifier(k)).predict(x, ["rare", "usual"]) for k in (1, 2, 3, 9)}
    assert answers[1] == ["rare", "usual"]
    assert answers[2] == ["rare", "usual"]  # layer 0: 1 + 1 against 1 + 0.71
    assert answers[3] == answers[9] == ["usual", "usual"]


def test_one_vote_each_goes_to_the_nearer_and_equals_to_the_first():
    x = np.array([[1.0, 0.0]])
    votes = fit({"a": [[[1.0, 1.0]]], "b": [[[3.0, 1.0]]], "c": [[[6.0, 2.0]]]}, KNNClassifier(2))
    assert votes.predict(x, ["a", "b"]) == ["b"]
    assert votes.predict(x, ["b", "c"]) == ["b"]
    assert votes.predict(x, ["c", "b"]) == ["c"]


def test_a_neighbour_with_a_negative_cosine_has_a_vote():
    votes = fit({"opposite": [[[-1.0, 0.2]]], "none": [[[-1.0, 0.1]]]}, KNNClassifier(1))
    assert votes.predict(np.array([[1.0, 0.0]]), ["none", "opposite"]) == ["opposite"]


def test_a_zero_vector_gets_the_first_sense():
    votes = fit({"a": [[[1.0, 0.0]]], "b": [[[0.0, 1.0]]]}, KNNClassifier(5))
    assert votes.predict(np.zeros((1, 2)), ["b", "a"]) == ["b"]


def test_the_number_of_neighbours_must_be_positive():
    with pytest.raises(ConfigError, match=mentions("neighbours", 1, 0)):
        KNNClassifier(0)
