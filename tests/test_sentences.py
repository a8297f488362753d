"""Sentence vectors: pooling, similarity, what `fit` removes, and files."""

import json

import numpy as np
import pytest
import torch
from facts import mentions

import torchelmo
from torchelmo import BiLM, BiLMConfig, Elmo, SentenceEncoder
from torchelmo.errors import ConfigError, InputError, MissingFileError, OutputExistsError, WeightsError

TEXTS = ["The archer bent her bow.", "I took a bow. Then I left.", "Rain", "prices fell sharply on Monday"]


@pytest.fixture
def encoder(tiny_bilm):
    return SentenceEncoder(tiny_bilm)


def by_hand(vectors, pooling):
    half = vectors.shape[1] // 2
    return {
        "mean": vectors.mean(0),
        "max": vectors.max(0),
        "mean_sqrt_len_tokens": vectors.sum(0) / np.sqrt(len(vectors)),
        "lasttoken": vectors[-1],
        "ends": np.concatenate([vectors[-1, :half], vectors[0, half:]]),
    }[pooling]


@pytest.mark.parametrize("pooling", ["mean", "max", "mean_sqrt_len_tokens", "lasttoken", "ends"])
def test_pooling_is_that_of_the_token_vectors(tiny_bilm, pooling):
    found = SentenceEncoder(tiny_bilm, pooling=pooling, layers="top").encode(TEXTS)
    expected = [by_hand(vectors, pooling) for vectors in Elmo(tiny_bilm).embed(TEXTS, layers="top")]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.dtype == np.float32


def test_ends_of_concatenated_layers_are_the_ends_of_each_layer(tiny_bilm):
    found = SentenceEncoder(tiny_bilm, pooling="ends", layers="concat").encode(TEXTS[0])
    layers = [SentenceEncoder(tiny_bilm, pooling="ends", layers=i).encode(TEXTS[0]) for i in range(3)]
    np.testing.assert_allclose(found, np.concatenate(layers), atol=1e-6)


def test_ends_of_a_model_of_one_direction_are_its_last_state():
    bilm = BiLM(BiLMConfig(filters=((1, 4),), projection_dim=4, cell_dim=4, n_highway=0, direction="forward"))
    ends, last = (SentenceEncoder(bilm, pooling=pooling).encode(TEXTS) for pooling in ("ends", "lasttoken"))
    np.testing.assert_allclose(ends, last, atol=1e-6)


@pytest.mark.parametrize("layers", ["average", "top", "sum", "concat", 0, 2])
def test_the_width_is_known_before_a_text_is_encoded(tiny_bilm, layers):
    encoder = SentenceEncoder(tiny_bilm, layers=layers)
    assert encoder.encode(TEXTS).shape == (4, encoder.get_embedding_dimension())


def test_one_string_gives_one_vector_and_other_forms_are_equal(encoder):
    vectors = encoder.encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS[1]), vectors[1], atol=1e-6)
    np.testing.assert_allclose(encoder.encode(TEXTS[0], convert_to_tensor=True).numpy(), vectors[0], atol=1e-6)
    as_list = encoder.encode(TEXTS, convert_to_numpy=False)
    assert all(isinstance(vector, torch.Tensor) for vector in as_list)
    np.testing.assert_allclose(np.stack(as_list), vectors, atol=1e-6)
    np.testing.assert_array_equal(
        encoder.encode(iter(TEXTS), convert_to_tensor=True, batch_size=1, device="cpu"), vectors
    )
    np.testing.assert_allclose(encoder.encode_query(TEXTS), vectors, atol=1e-6)


def test_token_lists_are_used_unchanged(encoder):
    tokens = ["prices", "fell", "sharply", "on", "Monday"]
    np.testing.assert_allclose(encoder.encode([tokens])[0], encoder.encode(TEXTS)[3], atol=1e-6)


def test_token_embeddings_are_those_of_embed(encoder):
    expected = Elmo(encoder.elmo.bilm).embed(TEXTS, layers="average")
    for found, vectors in zip(encoder.encode(TEXTS, output_value="token_embeddings"), expected, strict=True):
        np.testing.assert_allclose(found, vectors, atol=1e-6)
    one = encoder.encode(TEXTS[0], output_value="token_embeddings", convert_to_tensor=True)
    np.testing.assert_allclose(one.numpy(), expected[0], atol=1e-6)


def test_vectors_of_length_one(tiny_bilm):
    encoder = SentenceEncoder(tiny_bilm, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(encoder.encode(TEXTS), axis=1), 1, atol=1e-6)
    raw = encoder.encode(TEXTS, normalize_embeddings=False)
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1, atol=1e-3)


@pytest.mark.parametrize("texts", [[], ["", "  ", "a"], [[], ["a"]]])
def test_a_text_without_tokens_has_a_vector_of_zeros_even_after_fit(encoder, texts):
    vectors = encoder.fit(TEXTS).encode(texts, normalize_embeddings=True)
    assert vectors.shape == (len(texts), 16)
    assert not vectors[:-1].any()
    assert np.isfinite(vectors).all()


def test_similarity_is_the_cosine(encoder):
    a, b = encoder.encode(TEXTS[:3]), encoder.encode(TEXTS[2:])
    found = encoder.similarity(a, torch.from_numpy(b))
    expected = (a @ b.T) / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    assert encoder.similarity(a[0], b).shape == (1, 2)
    np.testing.assert_allclose(encoder.similarity_pairwise(a[:2], b), np.diag(expected), atol=1e-6)
    assert encoder.similarity(np.zeros(16), b).tolist() == [[0, 0]]


def test_similarity_needs_vectors_of_one_width(encoder):
    with pytest.raises(InputError, match=mentions("(2, 3)", "(1, 4)")):
        encoder.similarity(np.ones((2, 3)), np.ones(4))
    with pytest.raises(InputError, match=mentions(2, 3)):
        encoder.similarity_pairwise(np.ones((2, 4)), np.ones((3, 4)))
    with pytest.raises(InputError, match=mentions("'text'")):
        encoder.similarity("text", np.ones(4))


def test_fit_removes_the_mean_and_the_first_components(encoder):
    raw = encoder.encode(TEXTS).astype(np.float64)
    centered = raw - raw.mean(0)
    _, _, directions = np.linalg.svd(centered)
    for n in (0, 1, 2):
        encoder.fit(iter(TEXTS), remove_components=n)
        expected = centered - centered @ directions[:n].T @ directions[:n]
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-5)


def test_what_fit_needs(encoder):
    with pytest.raises(InputError, match=mentions(2, 1)):
        encoder.fit(["one", ""])
    with pytest.raises(InputError, match=mentions("at least 6", 4)):
        encoder.fit(TEXTS, remove_components=5)
    for wrong in (-1, 16, 1.5, True):
        with pytest.raises(ConfigError, match=mentions("remove_components", wrong)):
            encoder.fit(TEXTS, remove_components=wrong)
    with pytest.raises(InputError, match=mentions("fit", "one string")):
        encoder.fit("text")
    assert encoder.mean is None


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"layers": "all"}, ["layers", "'all'", "'average'"]),
        ({"layers": 3}, ["layers", "0 to 2", 3]),
        ({"pooling": "cls"}, ["pooling", "'ends'", "'cls'"]),
        ({"normalize": "yes"}, ["normalize", "'yes'"]),
        ({"precision": "int3"}, ["precision", "'int3'"]),
        ({"device": "tpu"}, ["device", "'tpu'"]),
    ],
)
def test_wrong_settings_are_named(tiny_bilm, given, facts):
    with pytest.raises(ConfigError, match=mentions(*facts)):
        SentenceEncoder(tiny_bilm, **given)


def test_wrong_arguments_of_encode_are_named(encoder):
    with pytest.raises(ConfigError, match=mentions("output_value", "'all'")):
        encoder.encode(TEXTS, output_value="all")
    with pytest.raises(ConfigError, match=mentions("batch_size", 0)):
        encoder.encode(TEXTS, batch_size=0)
    with pytest.raises(InputError, match=mentions("encode", "5")):
        encoder.encode(5)


@pytest.mark.parametrize("fitted", [False, True])
def test_save_and_load(tiny_bilm, tmp_path, fitted):
    encoder = SentenceEncoder(tiny_bilm, layers="concat", pooling="ends", normalize=True, lang="de")
    if fitted:
        encoder.fit(TEXTS, remove_components=2)
    encoder.save(tmp_path / "mine")
    loaded = SentenceEncoder.load(tmp_path / "mine")
    assert loaded.config == encoder.config
    np.testing.assert_allclose(loaded.encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)
    assert torchelmo.load(tmp_path / "mine").fingerprint() == tiny_bilm.fingerprint()
    assert str(tmp_path / "mine") in repr(loaded)


def test_a_folder_with_files_is_left_alone(encoder, tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(OutputExistsError, match=mentions(tmp_path)):
        encoder.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_damaged_files_are_named(encoder, tmp_path):
    folder = tmp_path / "mine"
    with pytest.raises(MissingFileError, match=mentions("sentences.json")):
        SentenceEncoder.load(folder)
    encoder.fit(TEXTS).save(folder)
    path = folder / "sentences.json"
    good = json.loads(path.read_text())

    def load_with(**changes):
        path.write_text(json.dumps({**good, **changes}))
        SentenceEncoder.load(folder)

    with pytest.raises(ConfigError, match=mentions("sentences.json", "format 1", 7)):
        load_with(format=7)
    with pytest.raises(ConfigError, match=mentions("sentences.json", "'cls'")):
        load_with(encoder={"pooling": "cls"})
    with pytest.raises(ConfigError, match=mentions("sentences.json", "layers", 9)):
        load_with(encoder={"layers": 9})
    with pytest.raises(WeightsError, match=mentions("components", "(5, 16)", "(1, 16)")):
        load_with(n_components=5)
    with pytest.raises(WeightsError, match=mentions(folder, "sentences.safetensors")):
        load_with(digest="0" * 64)
    with pytest.raises(WeightsError, match=mentions(folder, "another")):
        load_with(fingerprint="0" * 64)
    path.write_text(json.dumps(good))
    (folder / "sentences.safetensors").unlink()
    with pytest.raises(MissingFileError, match=mentions("sentences.safetensors")):
        SentenceEncoder.load(folder)
