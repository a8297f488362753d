"""`ElmoEmbedder`: arrays for sentences, and HDF5 files in the established layout."""

import gzip
import io
import json

import h5py
import numpy as np
import pytest
import torch
from facts import mentions

from torchelmo.compat.allennlp import ElmoEmbedder, batch_to_ids
from torchelmo.errors import ConfigError, InputError

SENTENCES = [["I", "took", "a", "bow"], ["naïve"], ["bow", "and", "arrow"]]
TEXT = "".join(" ".join(sentence) + "\n" for sentence in SENTENCES)


@pytest.fixture
def embedder(files):
    return ElmoEmbedder(*files)


@pytest.fixture
def expected(bilm):
    """All layers of each sentence, started from zero, by the core."""
    with torch.no_grad():
        layers = [bilm(batch_to_ids([sentence])).layers[:, 0, 1:-1].numpy() for sentence in SENTENCES]
    return layers


def assert_close(found, wanted):
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)


def test_a_batch_gives_an_array_for_each_sentence(embedder, expected):
    found = embedder.embed_batch(SENTENCES)
    assert [array.shape for array in found] == [(3, 4, 12), (3, 1, 12), (3, 3, 12)]
    for array, wanted in zip(found, expected):
        assert_close(array, wanted)


def test_a_kept_array_does_not_keep_its_batch(embedder):
    assert all(array.base is None for array in embedder.embed_batch(SENTENCES))


def test_a_sentence_goes_on_from_the_one_before(embedder, expected, bilm):
    assert_close(embedder.embed_sentence(SENTENCES[0]), expected[0])
    with torch.no_grad():
        state = bilm(batch_to_ids(SENTENCES[:1])).state
        wanted = bilm(batch_to_ids(SENTENCES[:1]), state).layers[:, 0, 1:-1].numpy()
    assert_close(embedder.embed_sentence(SENTENCES[0]), wanted)
    embedder.reset_states()
    assert_close(embedder.embed_sentence(SENTENCES[0]), expected[0])


def test_without_state_a_sentence_stands_alone(files, expected):
    embedder = ElmoEmbedder(*files, stateful=False)
    for _ in range(2):
        assert_close(embedder.embed_sentence(SENTENCES[0]), expected[0])


def test_tensors_of_a_batch(embedder):
    layers, mask = embedder.batch_to_embeddings(SENTENCES)
    assert (layers.shape, mask.shape) == ((3, 3, 4, 12), (3, 4))
    assert mask.sum(dim=1).tolist() == [4, 1, 3]
    assert not layers.transpose(1, 2)[~mask].any()
    assert not layers.requires_grad


@pytest.mark.parametrize("batch", [[[]], [[], []], [["a", "bow"], []]])
def test_a_sentence_without_tokens_has_length_0(embedder, batch):
    found = embedder.embed_batch(batch)
    assert [array.shape for array in found] == [(3, len(sentence), 12) for sentence in batch]
    assert {array.dtype for array in found} == {np.dtype(np.float32)}


def test_an_empty_sentence_alone_leaves_the_state(embedder):
    embedder.embed_sentence(SENTENCES[0])
    hidden = embedder.elmo_bilm._elmo_lstm._states[0].clone()
    assert embedder.embed_sentence([]).shape == (3, 0, 12)
    assert torch.equal(embedder.elmo_bilm._elmo_lstm._states[0], hidden)


def test_sentences_are_embedded_while_they_are_read(embedder):
    read = []

    def sentences():
        for sentence in SENTENCES:
            read.append(sentence)
            yield sentence

    arrays = embedder.embed_sentences(sentences(), batch_size=2)
    assert next(arrays).shape == (3, 4, 12)
    assert len(read) == 2
    assert [array.shape[1] for array in arrays] == [1, 3]


@pytest.mark.parametrize("output_format", ["all", "top", "average"])
def test_a_file_has_a_dataset_for_each_line(embedder, expected, tmp_path, output_format):
    source = io.StringIO(TEXT)
    embedder.embed_file(source, str(tmp_path / "out.h5"), output_format)
    choose = {"all": lambda a: a, "top": lambda a: a[-1], "average": lambda a: a.mean(axis=0)}[output_format]
    with h5py.File(tmp_path / "out.h5") as file:
        assert sorted(file) == ["0", "1", "2", "sentence_to_index"]
        for i, array in enumerate(expected):
            assert_close(file[str(i)][...], choose(array))
        index = json.loads(file["sentence_to_index"][0])
    assert index == {line: str(i) for i, line in enumerate(TEXT.splitlines())}
    assert source.closed


def test_a_file_may_be_given_by_its_path(embedder, expected, tmp_path):
    with gzip.open(tmp_path / "in.txt.gz", "wt", encoding="utf-8") as file:
        file.write(TEXT)
    embedder.embed_file(tmp_path / "in.txt.gz", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        for i, array in enumerate(expected):
            assert_close(file[str(i)][...], array)


def test_batches_of_a_file_hand_on_their_state(files, tmp_path):
    one, many = ElmoEmbedder(*files), ElmoEmbedder(*files)
    one.embed_file(io.StringIO(TEXT), tmp_path / "one.h5", batch_size=2)
    wanted = [*many.embed_batch(SENTENCES[:2]), *many.embed_batch(SENTENCES[2:])]
    with h5py.File(tmp_path / "one.h5") as file:
        for i, array in enumerate(wanted):
            assert_close(file[str(i)][...], array)


def test_sentences_can_be_forgotten_or_be_the_names(embedder, tmp_path):
    embedder.embed_file(io.StringIO(TEXT), tmp_path / "forgotten.h5", forget_sentences=True)
    with h5py.File(tmp_path / "forgotten.h5") as file:
        assert sorted(file) == ["0", "1", "2"]
    embedder.embed_file(io.StringIO(TEXT), tmp_path / "names.h5", use_sentence_keys=True)
    with h5py.File(tmp_path / "names.h5") as file:
        assert sorted(file) == sorted(TEXT.splitlines())


@pytest.mark.parametrize(
    ("text", "options", "facts"),
    [
        ("a bow\n\nan arrow\n", {}, ["line 2"]),
        ("a bow\na bow\n", {"use_sentence_keys": True}, ["line 2", "'a bow'", "use_sentence_keys"]),
        ("and / or\n", {"use_sentence_keys": True}, ["line 1", "'and / or'", "use_sentence_keys"]),
    ],
)
def test_lines_that_cannot_be_used_are_named(embedder, tmp_path, text, options, facts):
    with pytest.raises(InputError, match=mentions(*facts)):
        embedder.embed_file(io.StringIO(text), tmp_path / "out.h5", **options)
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_is_refused(embedder, tmp_path):
    with pytest.raises(ConfigError, match=mentions("output_format", "'all'", "'top'", "'average'", "'best'")):
        embedder.embed_file(io.StringIO(TEXT), tmp_path / "out.h5", "best")


def test_batches_have_a_sentence(embedder):
    with pytest.raises(ConfigError, match=mentions("batch_size", 1, 0)):
        next(embedder.embed_sentences(SENTENCES, batch_size=0))


def test_the_device_is_chosen_by_its_number(files, monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.nn.Module, "cuda", lambda module, device: chosen.append(device) or module)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    ElmoEmbedder(*files, cuda_device=1)
    ElmoEmbedder(*files)
    assert chosen == [1]


def test_a_gpu_that_is_not_there(files, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=mentions("cuda_device", -1, 3)):
        ElmoEmbedder(*files, cuda_device=3)


def test_without_files_it_is_not_the_model_of_allennlp(caplog):
    """Old code gets other vectors then, so a warning says which model it is."""
    assert ElmoEmbedder().embed_sentence(["bow"]).shape == (3, 1, 384)
    assert "model in the package" in caplog.text
