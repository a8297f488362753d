"""What is said about official files that cannot be used."""

import h5py
import numpy as np
import pytest
from facts import mentions
from official_files import WORDS, random_official

import torchelmo
from torchelmo.errors import InputError, MissingFileError, TorchelmoError, WeightsError

CELL = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell"


def test_no_options(official, tmp_path):
    _, weights = official.write(tmp_path)
    with pytest.raises(MissingFileError, match=mentions("none.json", "options.json")):
        torchelmo.load_official(tmp_path / "none.json", weights)
    with pytest.raises(MissingFileError, match=mentions(tmp_path, "options.json")):
        torchelmo.load_official(tmp_path, weights)


def test_no_weights(official, tmp_path):
    options, _ = official.write(tmp_path)
    with pytest.raises(MissingFileError, match=mentions("none.hdf5", "weights.hdf5")):
        torchelmo.load_official(options, tmp_path / "none.hdf5")
    with pytest.raises(MissingFileError, match=mentions(tmp_path, "weights.hdf5")):
        torchelmo.load_official(options, tmp_path)


@pytest.mark.parametrize("data", [b" ", b"not HDF5 at all", b"\x89HDF\r\n\x1a\n", b"\x00" * 4096])
def test_weights_that_are_something_else(data, official, tmp_path):
    options, weights = official.write(tmp_path)
    weights.write_bytes(data)
    with pytest.raises(WeightsError, match=mentions("weights.hdf5", "HDF5")):
        torchelmo.load_official(options, weights)


@pytest.mark.parametrize("percent", [1, 10, 25, 50, 75, 90, 99])
def test_weights_that_are_cut_short(percent, official, tmp_path):
    options, weights = official.write(tmp_path)
    data = weights.read_bytes()
    weights.write_bytes(data[: len(data) * percent // 100])
    with pytest.raises(WeightsError, match=mentions("weights.hdf5")):
        torchelmo.load_official(options, weights)


def test_bytes_overwritten_anywhere_give_our_error_or_numbers(official, tmp_path):
    """A damaged header may be found or not; it is never another exception."""
    options, weights = official.write(tmp_path)
    data = weights.read_bytes()
    rng = np.random.default_rng(3)
    failures = 0
    for _ in range(60):
        broken = bytearray(data)
        for place in rng.integers(0, len(data), 40):
            broken[place] = rng.integers(256)
        weights.write_bytes(bytes(broken))
        try:
            torchelmo.load_official(options, weights)
        except TorchelmoError:
            failures += 1
    assert failures > 10


def test_compressed_data_that_is_damaged(official, tmp_path):
    options, weights = official.write(tmp_path)
    with h5py.File(weights, "w") as file:
        for name, array in official.arrays.items():
            file.create_dataset(name, data=array, compression="gzip")
        place, size = (
            file["char_embed"].id.get_chunk_info(0).byte_offset,
            file["char_embed"].id.get_storage_size(),
        )
    data = bytearray(weights.read_bytes())
    data[place : place + size] = bytes(size)
    weights.write_bytes(bytes(data))
    with pytest.raises(WeightsError, match=mentions("weights.hdf5", "HDF5")):
        torchelmo.load_official(options, weights)


@pytest.mark.parametrize(
    "name", ["char_embed", "CNN/W_cnn_1", "CNN_high_0/b_carry", "CNN_proj/W_proj", f"{CELL}/W_P_0"]
)
def test_a_missing_dataset(name, official, load):
    del official.arrays[name]
    with pytest.raises(WeightsError, match=mentions(f"'{name}'", "options.json")):
        load(official)


def test_a_missing_direction(official, load):
    official.options["bidirectional"] = True
    for name in [name for name in official.arrays if name.startswith("RNN_1")]:
        del official.arrays[name]
    with pytest.raises(WeightsError, match=mentions("'RNN_1/", "W_0'", "options.json")):
        load(official)


def test_an_extra_dataset(official, load):
    official.arrays["surprise"] = np.zeros(3, np.float32)
    with pytest.raises(WeightsError, match=mentions("'surprise'", "options.json")):
        load(official)
    official.arrays["zz/more"] = np.zeros(3, np.float32)
    with pytest.raises(WeightsError, match=mentions("'surprise'", "options.json", 1)):
        load(official)


@pytest.mark.parametrize("name", ["char_embed", "CNN/W_cnn_1", "CNN_proj/b_proj", f"{CELL}/W_0", f"{CELL}/B"])
def test_a_misshapen_dataset(name, official, load):
    official.arrays[name] = official.arrays[name][..., :-1]
    shape = official.arrays[name].shape
    with pytest.raises(WeightsError, match=mentions(name, "options.json", shape)):
        load(official)


@pytest.mark.parametrize("name", ["char_embed", "softmax/b", f"{CELL}/B"])
def test_a_single_number_or_nothing_where_an_array_should_be(name, official, load):
    for value in (np.float32(1.0), h5py.Empty("f4")):
        official.arrays[name] = value
        with pytest.raises(WeightsError, match=mentions(name)):
            load(official)


def test_a_single_number_for_the_embedding_of_words(load):
    official = random_official(words=len(WORDS))
    official.arrays["embedding"] = np.float32(1.0)
    with pytest.raises(WeightsError, match=mentions("embedding", (8, 5), "options.json", ())):
        load(official)


def test_a_group_where_a_dataset_should_be(official, load):
    del official.arrays["char_embed"]
    official.arrays["char_embed/inside"] = np.zeros(3, np.float32)
    with pytest.raises(WeightsError, match=mentions("'char_embed'")):
        load(official)


@pytest.mark.parametrize("dtype", ["int32", "bool", "S4", "complex64"])
def test_a_wrong_dtype(dtype, official, load):
    official.arrays["char_embed"] = np.zeros(official.arrays["char_embed"].shape, dtype)
    with pytest.raises(WeightsError, match=mentions("char_embed", "float32", np.dtype(dtype))):
        load(official)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite(value, official, load):
    official.arrays[f"{CELL}/W_P_0"][0, 0] = value
    with pytest.raises(WeightsError, match=mentions(f"{CELL}/W_P_0", "NaN", "Inf")):
        load(official)


def test_a_float64_beyond_float32(official, load):
    official.arrays["CNN_proj/b_proj"] = np.full(5, 1e300)
    with pytest.raises(WeightsError, match=mentions("CNN_proj/b_proj", "NaN", "Inf")):
        load(official)


# Links, and data that is elsewhere


def test_links_are_refused(official, tmp_path):
    options, weights = official.write(tmp_path)
    other = tmp_path / "other.hdf5"
    weights.rename(other)
    links = {
        "soft": h5py.SoftLink("/CNN_proj/b_proj"),
        "external": h5py.ExternalLink(str(other), "/char_embed"),
    }
    for link in links.values():
        for name in ("char_embed", "extra"):
            with h5py.File(weights, "w") as file:
                for key, array in official.arrays.items():
                    if key != name:
                        file.create_dataset(key, data=array)
                file[name] = link
            with pytest.raises(WeightsError, match=mentions("weights.hdf5", name)):
                torchelmo.load_official(options, weights)


def test_a_linked_group_and_a_dangling_link(official, tmp_path):
    options, weights = official.write(tmp_path)
    for target in (h5py.ExternalLink("/etc/hostname", "/"), h5py.SoftLink("/nowhere")):
        with h5py.File(weights, "a") as file:
            file.pop("link", None) if "link" in file else None
            file[f"link{len(file)}"] = target
        with pytest.raises(WeightsError, match=r"\blink\d+"):
            torchelmo.load_official(options, weights)


def test_external_storage_is_refused(official, tmp_path):
    options, weights = official.write(tmp_path)
    raw = tmp_path / "raw.bin"
    raw.write_bytes(official.arrays["char_embed"].tobytes())
    with h5py.File(weights, "a") as file:
        del file["char_embed"]
        file.create_dataset("char_embed", (261, 3), "f4", external=[(str(raw), 0, h5py.h5f.UNLIMITED)])
    with pytest.raises(WeightsError, match=mentions("char_embed")):
        torchelmo.load_official(options, weights)


def test_a_virtual_dataset_is_refused(official, tmp_path):
    options, weights = official.write(tmp_path)
    layout = h5py.VirtualLayout((261, 3), "f4")
    layout[:] = h5py.VirtualSource(str(weights), "other", (261, 3))
    with h5py.File(weights, "a") as file:
        file.move("char_embed", "other")
        file.create_virtual_dataset("char_embed", layout)
    with pytest.raises(WeightsError, match=mentions("char_embed")):
        torchelmo.load_official(options, weights)


def test_a_type_where_data_should_be(official, tmp_path):
    options, weights = official.write(tmp_path)
    with h5py.File(weights, "a") as file:
        file["named"] = np.dtype("f4")
    with pytest.raises(WeightsError, match=mentions("weights.hdf5", "named")):
        torchelmo.load_official(options, weights)


def test_a_group_that_holds_itself(official, tmp_path):
    options, weights = official.write(tmp_path)
    with h5py.File(weights, "a") as file:
        file["CNN/again"] = file["CNN"]
    with pytest.raises(WeightsError, match=mentions("weights.hdf5", "CNN/again")):
        torchelmo.load_official(options, weights)


# Vocabularies


def test_a_vocabulary_of_another_model(tmp_path):
    options, weights = random_official(words=len(WORDS)).write(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS[:5]), encoding="utf-8")
    with pytest.raises(InputError, match=mentions("vocab.txt", 8, 5)):
        torchelmo.load_official(options, weights, tmp_path / "vocab.txt")


def test_a_missing_vocabulary(tmp_path):
    options, weights = random_official(words=len(WORDS)).write(tmp_path)
    with pytest.raises(MissingFileError, match=mentions("vocab.txt")):
        torchelmo.load_official(options, weights, tmp_path / "vocab.txt")


def test_a_heap_whose_free_blocks_form_a_ring(official, tmp_path):
    """HDF5 itself would follow the ring until memory ends."""
    options, weights = official.write(tmp_path)
    data = bytearray(weights.read_bytes())
    place = data.index(b"HEAP")
    free, start = (int.from_bytes(data[place + at : place + at + 8], "little") for at in (16, 24))
    data[start + free : start + free + 8] = free.to_bytes(8, "little")
    weights.write_bytes(bytes(data))
    with pytest.raises(WeightsError, match=mentions("weights.hdf5", "ring")):
        torchelmo.load_official(options, weights)
