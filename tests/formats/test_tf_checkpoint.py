"""Checkpoints of bilm-tf, read without TensorFlow."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tf_files
import torch
from facts import mentions
from official_files import WORDS, Official, random_official
from tf_files import HEADER, block, bundle_entry, field, table, write_checkpoint

import torchelmo
from torchelmo.errors import MissingFileError, TorchelmoError, WeightsError
from torchelmo.formats.convert import convert, describe
from torchelmo.formats.tf_bundle import crc32c, mask, read_checkpoint
from torchelmo.formats.tf_checkpoint import find_checkpoint, read_accumulators
from torchelmo.lm.predict import scores

FIXTURE = Path(__file__).parent.parent / "fixtures" / "tf_checkpoint_chars"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The checkpoint of bilm-tf alone, without its HDF5 file."""
    copied = tmp_path / "model"
    shutil.copytree(FIXTURE, copied)
    (copied / "model.hdf5").unlink()
    return copied


def assert_log_probabilities(bilm: torchelmo.BiLM) -> None:
    expected = json.loads((FIXTURE / "expected_nll.json").read_text())
    (found,) = scores(bilm, [expected["sentence"]])
    np.testing.assert_allclose(-found.forward.numpy(), expected["forward_nll"], atol=1e-5)
    np.testing.assert_allclose(-found.backward.numpy()[::-1], expected["backward_nll_from_the_end"], atol=1e-5)


def test_log_probabilities_are_those_of_tensorflow(folder, tmp_path):
    bilm = torchelmo.load(folder)
    assert bilm.vocabulary is not None
    assert_log_probabilities(bilm)
    convert(folder, tmp_path / "converted")
    assert_log_probabilities(torchelmo.load(tmp_path / "converted"))
    convert(folder, tmp_path / "official", to="official")
    assert_log_probabilities(torchelmo.load(tmp_path / "official"))


@pytest.mark.parametrize("name", ["words_tied", "noproj", "forward"])
def test_other_models_of_bilm_tf(name):
    """The checkpoint, its dump and the log-probabilities were made by bilm-tf."""
    folder = FIXTURE.with_name(f"tf_checkpoint_{name}")
    expected = json.loads((folder / "expected_nll.json").read_text())
    bilm = torchelmo.load(folder)
    (found,) = scores(bilm, [expected["sentence"]])
    np.testing.assert_allclose(-found.forward.numpy(), expected["forward_nll"], atol=1e-5)
    if "backward_nll_from_the_end" in expected:
        np.testing.assert_allclose(-found.backward.numpy()[::-1], expected["backward_nll_from_the_end"], atol=1e-5)
    else:
        assert found.backward is None
    dumped = torchelmo.load(folder / "model.hdf5")
    for parameter, tensor in dumped.state_dict().items():
        assert torch.equal(bilm.state_dict()[parameter], tensor), parameter


def test_the_weights_are_those_of_the_dump():
    dumped = torchelmo.load_official(FIXTURE / "options.json", FIXTURE / "model.hdf5")
    found = torchelmo.load(FIXTURE).state_dict()  # the checkpoint, because it has the softmax
    assert found.keys() - dumped.state_dict().keys() == {"softmax.weight", "softmax.bias"}
    for name, tensor in dumped.state_dict().items():
        assert torch.equal(found[name], tensor), name


def test_its_description(folder):
    about = describe(folder)
    assert "model.ckpt-3" in about["origin"]
    assert {"model.ckpt-3.index", "model.ckpt-3.data-00000-of-00001"} <= about["files"].keys()


def variables(official: Official, names: dict[str, str]) -> dict[str, np.ndarray]:
    """The arrays under the names of variables, with the accumulators of Adagrad."""
    found: dict[str, np.ndarray] = {"global_step": np.float32(3), "train_perplexity": np.float32(9)}
    for name, array in official.arrays.items():
        for old, new in names.items():
            name = name.replace(old, new)
        found[f"lm/{name}"] = array
        found[f"lm/{name}/Adagrad"] = np.ones_like(array)
    return found


TWO_LAYERS = {
    "RNN/MultiRNNCell/Cell": "rnn/multi_rnn_cell/cell_",
    "LSTMCell": "lstm_cell",
    "/W_0": "/kernel",
    "/B": "/bias",
    "/W_P_0": "/projection/kernel",
}
ONE_LAYER = {"RNN/MultiRNNCell/Cell0/": "rnn/", **TWO_LAYERS}
FORWARD = {"RNN_0/": "", **TWO_LAYERS}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, TWO_LAYERS),
        ({"n_layers": 1}, ONE_LAYER),
        ({"bidirectional": False}, FORWARD),
        ({"words": len(WORDS)}, TWO_LAYERS),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_other_shapes(settings, names, tied, tmp_path):
    official = random_official(**settings)
    if tied and "words" not in settings:
        pytest.skip("only a model that reads words can share its embedding")
    official.arrays["softmax/b"] = np.arange(len(WORDS), dtype=np.float32)
    if not tied:
        official.arrays["softmax/W"] = np.ones((len(WORDS), 5), np.float32)
    expected = torchelmo.load_official(*official.write(tmp_path / "official")).state_dict()
    write_checkpoint(tmp_path / "checkpoint", variables(official, names))
    (tmp_path / "checkpoint" / "options.json").write_text(json.dumps(official.options))
    found = torchelmo.load(tmp_path / "checkpoint")
    assert found.config.tied_softmax == tied
    assert found.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.state_dict().items())


def write_variables(folder: Path, official: Official, arrays: dict[str, np.ndarray]) -> Path:
    write_checkpoint(folder, arrays)
    (folder / "options.json").write_text(json.dumps(official.options))
    return folder


def assert_same(folder: Path, official: Official, tmp_path: Path) -> None:
    expected = torchelmo.load_official(*official.write(tmp_path / "official")).state_dict()
    found = torchelmo.load(folder).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_names_before_tensorflow_1_2(tmp_path):
    """weights and biases instead of kernel and bias; and variables with the names of HDF5 files."""
    official = random_official()
    old = TWO_LAYERS | {"/W_0": "/weights", "/B": "/biases", "/W_P_0": "/projection/weights"}
    assert_same(write_variables(tmp_path / "a", official, variables(official, old)), official, tmp_path)
    assert_same(write_variables(tmp_path / "b", official, variables(official, {})), official, tmp_path)


def test_the_state_of_other_optimizers(tmp_path, caplog):
    official = random_official()
    arrays = {name: array for name, array in variables(official, TWO_LAYERS).items() if "Adagrad" not in name}
    for name, array in list(arrays.items()):
        for slot in ("Adam", "Adam_1", "RMSProp", "ExponentialMovingAverage"):
            arrays[f"{name}/{slot}"] = array
    arrays |= {"beta1_power": np.float32(0.9), "lm/beta2_power": np.float32(0.9), "lm/Variable_3": np.zeros(3)}
    folder = write_variables(tmp_path / "a", official, arrays)
    assert_same(folder, official, tmp_path)
    assert not caplog.text
    write_variables(folder, official, arrays | {"lm/head/kernel": np.zeros(2)})
    assert_same(folder, official, tmp_path)
    assert "lm/head/kernel" in caplog.text


@pytest.mark.parametrize("scope", ["", "bilm/", "model/lm/"])
def test_another_scope(scope, tmp_path):
    official = random_official()
    arrays = {name.replace("lm/", scope, 1): array for name, array in variables(official, TWO_LAYERS).items()}
    assert_same(write_variables(tmp_path / "a", official, arrays), official, tmp_path)


def test_one_layer_is_the_default_of_bilm_tf(tmp_path):
    official = random_official(n_layers=1)
    folder = write_variables(tmp_path / "a", official, variables(official, ONE_LAYER))
    del official.options["lstm"]["n_layers"]
    (folder / "options.json").write_text(json.dumps(official.options | {"n_train_tokens": 7, "batch_size": 1}))
    assert torchelmo.load(folder).config.n_layers == 1


def test_no_projection(tmp_path):
    official = random_official(projection_dim=6, cell_dim=6)
    arrays = {name: array for name, array in official.arrays.items() if not name.endswith("W_P_0")}
    official = Official(official.options, arrays)
    folder = write_variables(tmp_path / "a", official, variables(official, TWO_LAYERS))
    assert_same(folder, official, tmp_path)
    assert torchelmo.load(folder).config.projection_clip is None


def test_partitioned_variables(tmp_path):
    """The slices have names that are not text. They are refused only if they are weights."""
    official = random_official()
    folder = write_variables(tmp_path / "a", official, variables(official, TWO_LAYERS))
    arrays = variables(official, TWO_LAYERS)
    for partitioned in ("other/embedding_of_words", "lm/char_embed"):
        data, entries = b"", [HEADER, (b"\0\x01slice", bundle_entry(ARRAY, 0))]
        for name in sorted(arrays):
            array = np.ascontiguousarray(arrays[name], np.float32)
            slices = field(7, b"") if name == partitioned else b""
            entries.append((name.encode(), bundle_entry(array, len(data)) + slices))
            data += array.tobytes()
        entries.append((b"other/embedding_of_words", bundle_entry(ARRAY, 0, size=0) + field(7, b"")))
        (folder / "model.ckpt-1.index").write_bytes(table([block(entries)]))
        (folder / "model.ckpt-1.data-00000-of-00001").write_bytes(data)
        if partitioned.startswith("other"):
            assert_same(folder, official, tmp_path)
    with pytest.raises(WeightsError, match=mentions("model.ckpt-1.index", "lm/char_embed", "partitioned")):
        torchelmo.load(folder)


def test_several_data_files(tmp_path):
    official = random_official()
    arrays = variables(official, TWO_LAYERS)
    folder = write_variables(tmp_path / "a", official, arrays)
    data, entries = [b"", b""], [(b"", field(1, 2))]
    for i, name in enumerate(sorted(arrays)):
        array = np.ascontiguousarray(arrays[name], np.float32)
        entries.append((name.encode(), bundle_entry(array, len(data[i % 2]), shard=i % 2)))
        data[i % 2] += array.tobytes()
    (folder / "model.ckpt-1.index").write_bytes(table([block(entries)]))
    (folder / "model.ckpt-1.data-00000-of-00001").unlink()
    for i in range(2):
        (folder / f"model.ckpt-1.data-0000{i}-of-00002").write_bytes(data[i])
    assert_same(folder, official, tmp_path)


# Adagrad


def test_the_accumulators(folder):
    sums = read_accumulators(folder)
    bilm = torchelmo.load(folder)
    assert sums.keys() == bilm.own_tensors().keys()
    assert all(sums[name].shape == tensor.shape for name, tensor in bilm.own_tensors().items())
    assert all(bool((tensor >= 1.0).all()) for tensor in sums.values())
    assert any(bool((tensor > 1.0).any()) for tensor in sums.values())


def test_no_accumulators(tmp_path):
    official = random_official()
    arrays = {name: array for name, array in variables(official, TWO_LAYERS).items() if "Adagrad" not in name}
    with pytest.raises(WeightsError, match=mentions("Adagrad")):
        read_accumulators(write_variables(tmp_path, official, arrays))


# Which checkpoint


def test_the_checkpoint_that_is_named(folder):
    for suffix in (".index", ".data-00000-of-00001"):
        shutil.copy(folder / f"model.ckpt-3{suffix}", folder / f"model.ckpt-2{suffix}")
    (folder / "checkpoint").write_text('model_checkpoint_path: "/home/other/machine/model.ckpt-2"\n')
    assert "model.ckpt-2" in torchelmo.load(folder).origin
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    with pytest.raises(MissingFileError, match=mentions("model.ckpt-2.index", "model.ckpt-3.index", "model.ckpt-7")):
        torchelmo.load(folder)
    (folder / "checkpoint").unlink()
    with pytest.raises(MissingFileError, match=mentions("model.ckpt-2.index", "model.ckpt-3.index")):
        torchelmo.load(folder)


def test_the_path_that_tensorflow_takes(folder):
    """It has no suffix; the error sends to the folder."""
    with pytest.raises(MissingFileError, match=mentions("model.ckpt-3.index", "folder")):
        torchelmo.load(folder / "model.ckpt-3")


@pytest.mark.parametrize("text", ["", "nonsense \xff", 'model_checkpoint_path: "../../x"', 'model_checkpoint_path: ""'])
def test_a_file_checkpoint_that_does_not_help(text, folder):
    (folder / "checkpoint").write_bytes(text.encode("latin-1"))
    assert find_checkpoint(folder) == folder / "model.ckpt-3"


@pytest.mark.parametrize("name", ["options.json", "model.ckpt-3.data-00000-of-00001"])
def test_a_missing_file(name, folder):
    (folder / name).unlink()
    with pytest.raises(MissingFileError, match=mentions(name.partition("json")[0])):
        torchelmo.load(folder)


# Damage


def test_data_that_is_cut_short(folder):
    path = folder / "model.ckpt-3.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(WeightsError, match=mentions(path.name, f"{path.stat().st_size:,}")):
        torchelmo.load(folder)


def test_a_changed_bit_is_found_by_the_checksum(folder):
    entries = read_checkpoint(folder / "model.ckpt-3").entries
    path = folder / "model.ckpt-3.data-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[entries["lm/CNN_proj/b_proj"].offset] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(WeightsError, match=mentions("lm/CNN_proj/b_proj", "checksum")):
        torchelmo.load(folder)


def test_a_pointer_to_the_data(folder):
    (folder / "model.ckpt-3.data-00000-of-00001").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(WeightsError, match=mentions("data-00000-of-00001", "git lfs pull")):
        torchelmo.load(folder)


ARRAY = np.zeros((2, 3), np.float32)
LIES = {
    "no magic number": b"\0" * 100,
    "too short": b"abc",
    "compressed": table([block([HEADER])], kind=1),
    "partitioned": table([block([HEADER, (b"lm/char_embed", bundle_entry(ARRAY, 0) + field(7, b""))])]),
    "beyond the end": table([block([HEADER, (b"lm/x", bundle_entry(ARRAY, 10**6))])]),
    "a huge offset": table([block([HEADER, (b"lm/x", bundle_entry(ARRAY, 2**63))])]),
    "a wrong size": table([block([HEADER, (b"lm/x", bundle_entry(ARRAY, 0, size=20))])]),
    "another shard": table([block([HEADER, (b"lm/x", bundle_entry(ARRAY, 0, shard=1))])]),
    "integers": table([block([HEADER, (b"lm/char_embed", bundle_entry(ARRAY, 0, dtype=3))])]),
    "not bilm-tf": table([block([HEADER, (b"bert/x", bundle_entry(ARRAY, 0))])]),
    "a name that is not text": table([block([HEADER, (b"\xff", bundle_entry(ARRAY, 0))])]),
    "big-endian": table([block([(b"", field(1, 1) + field(2, 1))])]),
    "many shards": table([block([(b"", field(1, 10**9))])]),
    "a block elsewhere": table([], block([(b"0", tf_files.varint(10**9) + tf_files.varint(5))])),
    "a block that is itself": table([], block([(b"0", tf_files.varint(0) + tf_files.varint(8))])),
    "restarts": table([b"\xff\xff\xff\xff"]),
    "shared bytes that are not there": table([b"\x05\x01\x00a" + block([])]),
    "an endless number": table([b"\xff" * 20 + block([])]),
    "no entries": table([block([HEADER])]),
    "empty": table([]),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies(lie, folder):
    (folder / "model.ckpt-3.index").write_bytes(LIES[lie])
    with pytest.raises(WeightsError, match=mentions("model.ckpt-3.index")):
        torchelmo.load(folder)


def test_mutations_give_our_errors_only(folder, tmp_path):
    """Half of the mutated indexes have right checksums, so that the parser behind them is reached."""
    rng = np.random.default_rng(18)
    path = folder / "model.ckpt-3.index"
    original = path.read_bytes()
    entries = read_checkpoint(folder / "model.ckpt-3").entries
    arrays = {name: np.zeros(entry.shape, np.float32) for name, entry in list(entries.items())[:4]}
    content = block([HEADER, *((name.encode(), bundle_entry(array, 0)) for name, array in arrays.items())])
    failures = 0
    for i in range(400):
        data = bytearray(content if i % 2 else original)
        for place in rng.integers(0, len(data), rng.integers(1, 6)):
            data[place] = rng.choice([0, 1, 127, 128, 255, rng.integers(256)])
        if rng.random() < 0.2:
            data = data[: rng.integers(len(data))]
        path.write_bytes(table([bytes(data)]) if i % 2 else bytes(data))
        try:
            torchelmo.load(folder)
        except TorchelmoError:
            failures += 1
    assert failures > 390


# Checksums


def test_the_checksum():
    """Of lengths around the limits of the fast algorithm, against the definition."""
    rng = np.random.default_rng(1)
    for n in (0, 1, 4, 9, 4 * 5685, 4 * 5686, 4 * 5687, 4 * 5687 + 3, 4 * (5685 + 4323) + 5):
        data = rng.integers(0, 256, n, dtype=np.uint8)
        assert crc32c(data) == tf_files.crc32c(data.tobytes()), n
    assert mask(crc32c(np.frombuffer(b"123456789", np.uint8))) == tf_files.masked(0xE3069283)


def test_the_checksum_of_several_chunks(monkeypatch):
    data = np.random.default_rng(2).integers(0, 256, 200_003, dtype=np.uint8)
    expected = crc32c(data)
    for chunk in (1000, 7000, 20_000):
        monkeypatch.setattr("torchelmo.formats.tf_bundle._CHUNK", chunk)
        assert crc32c(data) == expected
    data[150_000] ^= 16
    assert crc32c(data) != expected
