"""Models of ELMoForManyLangs. The fixture and its layers were made by the original program."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from facts import mentions

import torchelmo
from torchelmo import Elmo
from torchelmo.errors import ConfigError, InputError, MissingFileError, OutputError, TorchelmoError, WeightsError
from torchelmo.formats.convert import convert, describe
from torchelmo.lm.predict import scores
from torchelmo.lm.run import with_softmax
from torchelmo.text.characters import SymbolEncoder, Symbols
from torchelmo.text.vocabulary import Vocabulary

FIXTURE = Path(__file__).parent.parent / "fixtures" / "efml_tiny.model"
# A word with an unknown character and U+3000, and one that is cut to ten characters.
SENTENCES = {"a": ["the", "bow"], "b": ["潮水", "a\u3000b", "thebowthebowthebow"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copied = tmp_path / "tiny.model"
    shutil.copytree(FIXTURE, copied)
    return copied


def assert_layers(bilm: torchelmo.BiLM) -> None:
    elmo = Elmo(bilm)
    expected = np.load(FIXTURE / "expected.npz")
    for found, name in zip(elmo.embed(list(SENTENCES.values())), SENTENCES, strict=True):
        np.testing.assert_allclose(found, expected[name], atol=1e-5)
    ids = elmo.encode(SENTENCES.values())
    for path in ("reference", "fast"):
        layers = bilm(ids, path=path).layers.detach().numpy()
        np.testing.assert_allclose(layers[:, 0, 1:3], expected["a"], atol=1e-5)
        np.testing.assert_allclose(layers[:, 1, 1:-1], expected["b"], atol=1e-5)


def test_layers_are_those_of_the_original_program(folder, tmp_path):
    bilm = torchelmo.load(folder)
    assert_layers(bilm)
    bilm.save(tmp_path / "saved")
    again = torchelmo.load(tmp_path / "saved")
    assert_layers(again)
    assert again.fingerprint() == bilm.fingerprint()


def test_convert_and_info(folder, tmp_path):
    done = convert(folder, tmp_path / "converted")
    assert set(done.files) == {"config.json", "model.safetensors", "symbols.json"}
    assert_layers(torchelmo.load(tmp_path / "converted"))
    about = describe(folder)
    assert about["config"]["input"] == "characters+words"
    assert "encoder.pkl" in about["files"]
    with pytest.raises(OutputError, match=mentions("characters and words")):
        convert(folder, tmp_path / "official", to="official")


@pytest.mark.parametrize("kind", ["zip", "gztar"])
def test_an_archive(kind, folder, tmp_path):
    assert_layers(torchelmo.load(shutil.make_archive(str(tmp_path / "136"), kind, folder)))


def test_gradients_reach_the_word_vectors(folder):
    bilm = torchelmo.load(folder)
    ids = Elmo(bilm).encode([["the"]])
    bilm.requires_grad_(True)(ids).layers.sum().backward()
    rows = bilm.encoder.word_vectors.grad.abs().sum(dim=1).nonzero().squeeze(1).tolist()
    assert rows == [1, 2, 4]  # <bos>, <eos> and the


def test_ids_out_of_range(folder):
    bilm = torchelmo.load(folder)
    ids = Elmo(bilm).encode([["the"]])
    for place, limit in ((0, 14), (-1, 7)):
        wrong = ids.clone()
        wrong[0, 0, place] = limit + 1
        with pytest.raises(InputError, match=mentions(limit, limit + 1)):
            bilm(wrong)
    with pytest.raises(InputError, match=mentions(13, 12)):
        bilm(ids[..., :-1])


def test_it_is_not_trained_as_a_language_model(folder):
    with pytest.raises(InputError, match=mentions("characters+words", "train")):
        with_softmax(torchelmo.load(folder), Vocabulary(["<S>", "</S>", "<UNK>"]))
    with pytest.raises(InputError, match=mentions("softmax", "ELMoForManyLangs")) as caught:
        next(scores(torchelmo.load(folder), [["the"]]))
    assert "fine-tune" not in str(caught.value)


def test_names_of_data_parallel(folder):
    for name in ("token_embedder.pkl", "encoder.pkl"):
        weights = torch.load(folder / name, weights_only=True)
        torch.save({f"module.{key}": tensor for key, tensor in weights.items()}, folder / name)
    assert_layers(torchelmo.load(folder))


def test_without_word_vectors(folder):
    path = folder / "tiny.json"
    shape = json.loads(path.read_text())
    shape["token_embedder"]["word_dim"] = 0
    path.write_text(json.dumps(shape))
    weights = torch.load(folder / "token_embedder.pkl", weights_only=True)
    del weights["word_emb_layer.embedding.weight"]
    weights["projection.weight"] = weights["projection.weight"][:, 3:]
    torch.save(weights, folder / "token_embedder.pkl")
    bilm = torchelmo.load(folder)
    assert not bilm.encoder.word_vectors.any()
    assert np.isfinite(Elmo(bilm).embed([["the", "bow"]])[0]).all()


def test_characters_only(folder):
    """Without word vectors there need not be a word.dic, and words make no difference."""
    bilm = torchelmo.load(folder)
    with torch.no_grad():
        bilm.encoder.word_vectors.zero_()
    expected = Elmo(bilm).embed([["the", "bow", "zebra"]])[0]
    edit_shape(folder, word_dim=0)
    weights = torch.load(folder / "token_embedder.pkl", weights_only=True)
    del weights["word_emb_layer.embedding.weight"]
    weights["projection.weight"] = weights["projection.weight"][:, 3:].clone()
    torch.save(weights, folder / "token_embedder.pkl")
    for remove in (False, True):
        if remove:
            (folder / "word.dic").unlink()
        np.testing.assert_allclose(Elmo(folder).embed([["the", "bow", "zebra"]])[0], expected, atol=1e-6)


def edit_shape(folder: Path, **changes: object) -> None:
    shape = json.loads((folder / "tiny.json").read_text())
    shape["token_embedder"].update(changes)
    (folder / "tiny.json").write_text(json.dumps(shape))


def test_words_only(folder, tmp_path):
    """The model reads whole words then, with the marks of word.dic under our names."""
    edit_shape(folder, char_dim=0)
    (folder / "char.dic").unlink()
    weights = torch.load(folder / "token_embedder.pkl", weights_only=True)
    kept = {name: weights[name] for name in ("word_emb_layer.embedding.weight", "projection.bias")}
    kept["projection.weight"] = weights["projection.weight"][:, :3].clone()
    torch.save(kept, folder / "token_embedder.pkl")
    vectors = kept["word_emb_layer.embedding.weight"] @ kept["projection.weight"].T + kept["projection.bias"]
    rows = {line.split("\t")[0]: int(line.split("\t")[1]) for line in (folder / "word.dic").read_text().splitlines()}
    bilm = torchelmo.load(folder)
    assert bilm.config.input == "words"
    found = Elmo(bilm).embed([["the", "zebra"]])[0]
    expected = vectors[[rows["the"], rows["<oov>"]]]
    np.testing.assert_allclose(found[0], torch.cat([expected, expected], dim=1), atol=1e-6)
    convert(folder, tmp_path / "converted")
    np.testing.assert_allclose(Elmo(tmp_path / "converted").embed([["the", "zebra"]])[0], found, atol=1e-6)
    edit_shape(folder, char_dim=0, word_dim=0)
    with pytest.raises(ConfigError, match=mentions("tiny.json", "char_dim", "word_dim")):
        torchelmo.load(folder)


@pytest.mark.parametrize("named", ["/users4/x/configs/tiny.json", "configs/tiny.json", "..\\x\\tiny.json"])
def test_where_the_shape_is(named, folder):
    """Below the folder under the path of config.json, or in the folder."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"config_path": named}))
    assert_layers(torchelmo.load(folder))
    if named.startswith("configs"):
        (folder / "configs").mkdir()
        (folder / "tiny.json").rename(folder / "configs" / "tiny.json")
        assert_layers(torchelmo.load(folder))


def test_the_shape_in_config_json(folder):
    (folder / "tiny.json").rename(folder / "config.json")
    assert_layers(torchelmo.load(folder))


def test_a_shape_elsewhere_is_not_read(folder):
    shutil.move(folder / "tiny.json", folder.parent / "tiny.json")
    config = json.loads((folder / "config.json").read_text())
    for named in ("../tiny.json", str(folder.parent / "tiny.json"), "a\0b", "x" * 5000):
        (folder / "config.json").write_text(json.dumps(config | {"config_path": named}))
        with pytest.raises(WeightsError, match=mentions("token_embedder.pkl")):  # the default shape does not fit
            torchelmo.load(folder)


@pytest.mark.parametrize("top", ["", "is.model", "a/b"])
def test_an_archive_with_folders(top, folder, tmp_path):
    target = tmp_path / "root" / top
    shutil.copytree(folder, target)
    (tmp_path / "root" / "meta.json").write_text("{}")
    assert_layers(torchelmo.load(shutil.make_archive(str(tmp_path / "136"), "zip", tmp_path / "root")))


@pytest.mark.parametrize("legacy", [True, False])
def test_both_formats_of_pytorch(legacy, folder):
    for name in ("encoder.pkl", "token_embedder.pkl"):
        weights = torch.load(folder / name, weights_only=True)
        torch.save(weights, folder / name, _use_new_zipfile_serialization=not legacy)
    assert_layers(torchelmo.load(folder))


# Symbols


def test_symbols_of_a_token():
    characters = ["<bow>", "<eow>", "<bos>", "<eos>", "<oov>", "<pad>", "a", ""]
    encoder = SymbolEncoder(5, Symbols(characters, ["<oov>", "<bos>", "<eos>", "aaa"]))
    assert encoder("aaaa").tolist() == [2, 7, 7, 7, 1, 4]  # cut before both look-ups, and the marks are swapped
    assert encoder("b").tolist() == [2, 5, 1, 6, 6, 1]
    assert encoder("").tolist() == [2, 1, 6, 6, 6, 1]
    for name, place in (("<S>", 3), ("</S>", 4)):
        assert encoder.mark(name).tolist() == [2, place, 1, 6, 6, place - 1]


@pytest.mark.parametrize("name", ["char.dic", "word.dic"])
@pytest.mark.parametrize("line", ["x\t-1", "x\ty\t3", "x\tthree", "x\t99999999999999", "x\t9999999", "x\t²", "x"])
def test_damaged_symbols(name, line, folder):
    path = folder / name
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=mentions(name)):
        torchelmo.load(folder)


def test_a_missing_mark(folder):
    path = folder / "word.dic"
    path.write_text(path.read_text(encoding="utf-8").replace("<eos>", "eos"), encoding="utf-8")
    with pytest.raises(InputError, match=mentions("words", "<eos>")):
        torchelmo.load(folder)


@pytest.mark.parametrize("content", ["[]", "{}", '{"characters": [1], "words": []}', '{"characters": [], "words": []}'])
def test_damaged_symbols_of_a_model_folder(content, folder, tmp_path):
    torchelmo.load(folder).save(tmp_path / "saved")
    (tmp_path / "saved" / "symbols.json").write_text(content)
    with pytest.raises((ConfigError, InputError)):
        torchelmo.load(tmp_path / "saved")
    (tmp_path / "saved" / "symbols.json").unlink()
    with pytest.raises(MissingFileError, match=mentions("symbols.json")):
        torchelmo.load(tmp_path / "saved")


# Configuration


def test_the_default_shape(folder):
    """It is that of the published models, which are larger than the fixture."""
    (folder / "tiny.json").unlink()
    with pytest.raises(WeightsError, match=mentions("token_embedder.pkl", (14, 50), (14, 4), "config_path")):
        torchelmo.load(folder)


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("encoder", "name", "lstm"),
        ("token_embedder", "name", "lstm"),
        ("encoder", "n_layers", "two"),
        ("encoder", "dim", 10**12),
        ("token_embedder", "word_dim", -1),
        ("token_embedder", "word_dim", "3"),
        ("token_embedder", "filters", 3),
    ],
)
def test_a_wrong_value(table, key, value, folder):
    path = folder / "tiny.json"
    shape = json.loads(path.read_text())
    shape[table][key] = value
    path.write_text(json.dumps(shape))
    with pytest.raises(ConfigError, match=mentions("tiny.json")):
        torchelmo.load(folder)
    del shape[table][key]
    path.write_text(json.dumps(shape))
    if key != "word_dim":
        with pytest.raises(ConfigError, match=mentions("tiny.json")):
            torchelmo.load(folder)


def test_another_config(folder):
    (folder / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=mentions("config.json", "'config_path'")):
        torchelmo.load(folder)


# Weights


class _Command:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("code was run",)


def test_code_in_the_weights_is_not_run(folder, capsys):
    (folder / "encoder.pkl").write_bytes(pickle.dumps({"x": _Command()}))
    with pytest.raises(WeightsError, match=mentions("encoder.pkl")):
        torchelmo.load(folder)
    torch.save({"x": _Command()}, folder / "encoder.pkl")
    with pytest.raises(WeightsError, match=mentions("encoder.pkl")):
        torchelmo.load(folder)
    assert "code was run" not in capsys.readouterr().out


@pytest.mark.parametrize("change", ["missing", "shape", "dtype", "nan", "list"])
def test_wrong_weights(change, folder):
    name = "forward_layer_0.state_linearity.bias"
    weights = dict(torch.load(folder / "encoder.pkl", weights_only=True))
    bias = weights.pop(name)
    changed = {"shape": bias[:-1], "dtype": bias.long(), "nan": bias * torch.nan, "list": bias.tolist()}
    if change != "missing":
        weights[name] = changed[change]
    torch.save(weights, folder / "encoder.pkl")
    with pytest.raises(WeightsError, match=mentions("encoder.pkl", name)):
        torchelmo.load(folder)


def test_mutations_give_our_errors_only(folder):
    rng = np.random.default_rng(7)
    failures = 0
    for i in range(150):
        path = folder / ("encoder.pkl", "token_embedder.pkl", "char.dic", "tiny.json", "config.json")[i % 5]
        original = path.read_bytes()
        data = bytearray(original)
        for place in rng.integers(0, len(data), rng.integers(1, 10)):
            data[place] = rng.integers(256)
        path.write_bytes(bytes(data[: rng.integers(len(data))] if rng.random() < 0.2 else data))
        try:
            torchelmo.load(folder)
        except TorchelmoError:
            failures += 1
        path.write_bytes(original)
    assert failures > 60
