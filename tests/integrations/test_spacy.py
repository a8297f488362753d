"""The component of spaCy: vectors, sentences, white space, files."""

import numpy as np
import pytest
import spacy
from facts import mentions
from spacy.tokens import Doc, DocBin

import torchelmo.integrations.spacy  # noqa: F401  (registers the component, also if the package is not installed)
from torchelmo import Elmo
from torchelmo.errors import ConfigError, InputError, MissingFileError

TEXT = "I took a bow.  The bow\nof a violin"


@pytest.fixture
def nlp(bilm_folder):
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": str(bilm_folder), "layers": "top"})
    return nlp


def test_tensors_are_the_vectors_of_the_tokens_and_white_space_is_zero(nlp, tiny_bilm):
    doc = nlp(TEXT)
    words = [token for token in doc if not token.is_space]
    (expected,) = Elmo(tiny_bilm).embed([[token.text for token in words]], layers="top")
    assert len(words) == len(doc) - 2
    assert doc.tensor.shape == (len(doc), 16)
    np.testing.assert_allclose(doc.tensor[[token.i for token in words]], expected, atol=1e-6)
    assert not any(token.vector.any() or token.has_vector for token in doc if token.is_space)


def test_sentences_run_alone_if_they_are_known(nlp, tiny_bilm):
    nlp.add_pipe("sentencizer", first=True)
    doc = nlp(TEXT)
    sentences = [[token for token in sentence if not token.is_space] for sentence in doc.sents]
    assert len(sentences) == 2
    expected = Elmo(tiny_bilm).embed([[token.text for token in sentence] for sentence in sentences], layers="top")
    for sentence, vectors in zip(sentences, expected, strict=True):
        np.testing.assert_allclose([token.vector for token in sentence], vectors, atol=1e-6)


def test_vectors_and_similarities_come_from_the_tensor(nlp):
    doc = nlp(TEXT)
    one, other = (token for token in doc if token.text == "bow")
    cosine = one.vector @ other.vector / np.linalg.norm(one.vector) / np.linalg.norm(other.vector)
    assert one.similarity(other) == pytest.approx(float(cosine), abs=1e-5)
    assert one.similarity(other) < 0.999  # spaCy says 1 for words of equal text
    assert one.similarity(nlp.vocab["bow"]) == 0
    np.testing.assert_allclose(doc.vector, doc.tensor.mean(0), atol=1e-6)
    np.testing.assert_allclose(doc[1:4].vector, doc.tensor[1:4].mean(0), atol=1e-6)
    assert doc.similarity(doc) == pytest.approx(1)
    assert doc[0:2].vector_norm == pytest.approx(float(np.linalg.norm(doc[0:2].vector)))


def test_static_vectors_do_not_hide_those_of_elmo(nlp):
    nlp.vocab.set_vector("bow", np.ones(5, dtype=np.float32))
    doc = nlp(TEXT)
    np.testing.assert_array_equal(doc[3].vector, doc.tensor[3])


def test_pipe_gives_the_same_as_one_doc_after_the_other(nlp):
    texts = [TEXT, "", " ", "a", "The end."]
    for one, doc in zip(map(nlp, texts), nlp.pipe(texts, batch_size=2), strict=True):
        assert one.text == doc.text
        np.testing.assert_allclose(one.tensor, doc.tensor, atol=1e-6)
    assert nlp("").vector.shape == (16,)


def test_docs_keep_their_tensors_in_bytes(nlp):
    doc = nlp(TEXT)
    with pytest.warns(UserWarning, match="W109"):  # of the hooks
        copy = Doc(nlp.vocab).from_bytes(doc.to_bytes())
    np.testing.assert_array_equal(copy.tensor, doc.tensor)
    np.testing.assert_array_equal(copy[3].vector, doc[3].vector)
    nlp.get_pipe("elmo").restore(copy)
    assert copy[3].similarity(copy[7]) == doc[3].similarity(doc[7])


def test_docs_keep_their_tensors_in_docbin_without_a_warning(bilm_folder):
    nlp = spacy.blank("en")
    elmo = nlp.add_pipe("elmo", config={"model": str(bilm_folder), "hooks": False, "user_data": True})
    doc = nlp(TEXT)
    (copy,) = DocBin().from_bytes(DocBin(docs=[doc], store_user_data=True).to_bytes()).get_docs(nlp.vocab)
    np.testing.assert_array_equal(elmo.restore(copy).tensor, doc.tensor)
    np.testing.assert_array_equal(copy[3].vector, doc.tensor[3])
    same = Doc(nlp.vocab).from_bytes(doc.to_bytes())
    np.testing.assert_array_equal(same[3].vector, doc.tensor[3])


def test_a_doc_without_vectors_cannot_be_restored(nlp):
    with pytest.raises(InputError, match=mentions("user_data", "DocBin")):
        nlp.get_pipe("elmo").restore(nlp.make_doc(TEXT))


def test_a_saved_pipeline_carries_its_model(nlp, tmp_path, monkeypatch):
    doc = nlp(TEXT)
    nlp.config["components"]["elmo"]["model"] = "elsewhere"  # the original folder is not there any more
    nlp.to_disk(tmp_path / "nlp")
    loaded = spacy.load(tmp_path / "nlp")
    np.testing.assert_array_equal(loaded(TEXT).tensor, doc.tensor)
    nlp.to_disk(tmp_path / "nlp")  # again, over the first
    other = spacy.blank("en", config=nlp.config).from_bytes(nlp.to_bytes())
    np.testing.assert_array_equal(other(TEXT).tensor, doc.tensor)


def test_a_model_of_the_package_is_not_copied(tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo")
    nlp.to_disk(tmp_path)
    assert [path.name for path in (tmp_path / "elmo").iterdir()] == ["elmo.json"]
    assert len(nlp.get_pipe("elmo").to_bytes()) < 1000
    assert spacy.load(tmp_path).get_pipe("elmo").model is None


def test_what_is_wrong_is_named(nlp, bilm_folder):
    with pytest.raises(ConfigError, match=mentions("batch_tokens", 0)):
        spacy.blank("en").add_pipe("elmo", config={"batch_tokens": 0})
    for error, config, fact in (
        (ConfigError, {"layers": "all", "model": str(bilm_folder)}, "'all'"),
        (MissingFileError, {"model": "nowhere"}, "nowhere"),
    ):
        other = spacy.blank("en")
        other.add_pipe("elmo", config=config)
        with pytest.raises(error, match=mentions(fact)):
            other("a")
    component = nlp.get_pipe("elmo")
    with pytest.raises(InputError, match="elmo"):
        component.from_bytes(b"\xc1")
    with pytest.raises(InputError, match=mentions("../x")):
        component.from_bytes(spacy.util.srsly.msgpack_dumps({"elmo.json": b"{}", "../x": b""}))
    with pytest.raises(ConfigError, match=mentions("elmo.json", "model_is_stored")):
        component.from_bytes(spacy.util.srsly.msgpack_dumps({"elmo.json": b"{}"}))
