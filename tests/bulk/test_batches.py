"""Batches of rows for other engines: dicts of columns, Arrow tables, Hugging Face datasets."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
from facts import mentions

from torchelmo import Elmo
from torchelmo.bulk import BatchEmbedder
from torchelmo.bulk.datasets import embed_dataset
from torchelmo.errors import InputError

TEXTS = ["I took a bow.", "", "bow and arrow"]


@pytest.mark.parametrize("pool", [None, "max"])
@pytest.mark.parametrize("layers", ["all", "concat", 1])
def test_dicts_and_tables_get_the_same_columns(tiny_bilm, layers, pool):
    elmo = Elmo(tiny_bilm)
    embed = BatchEmbedder(elmo, layers=layers, pool=pool)
    expected = elmo.embed(TEXTS, layers=layers, pool=pool)
    columns = embed({"text": TEXTS})
    table = embed(pa.table({"text": TEXTS}))
    assert list(columns) == embed.names == table.column_names[1:]
    for number, name in enumerate(embed.names):
        for row, vectors in enumerate(expected):
            wanted = vectors[number] if layers == "all" else vectors
            np.testing.assert_allclose(columns[name][row], wanted, atol=1e-6)
            found = np.array(table.column(name)[row].as_py(), dtype=np.float32).reshape(wanted.shape)
            np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_tokens_are_used_as_they_are(tiny_bilm):
    embed = BatchEmbedder(Elmo(tiny_bilm), column="words", pool=None)
    assert len(embed({"words": [["a.b", "c"]]})["vectors"][0]) == 2


def test_missing_values_are_named(tiny_bilm):
    with pytest.raises(InputError, match=mentions("'text'", "row 1", "None")):
        BatchEmbedder(Elmo(tiny_bilm))({"text": ["bow", None]})


def test_a_pickled_copy_holds_no_weights_and_has_the_same_fingerprint(bilm_folder):
    embed = BatchEmbedder(bilm_folder, layers=0)
    before = embed.fingerprint("data")  # loads the model
    copied = pickle.dumps(embed)
    assert len(copied) < 1000
    assert pickle.loads(copied).fingerprint("data") == before  # noqa: S301
    assert embed.fingerprint("other data") != before
    assert BatchEmbedder(bilm_folder, layers=1).fingerprint("data") != before


def test_a_hugging_face_dataset_is_computed_once(bilm_folder, tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    frame = {"text": TEXTS, "label": [0, 1, 2]}
    datasets.Dataset.from_dict(frame).save_to_disk(tmp_path / "data")
    results = [
        embed_dataset(datasets.load_from_disk(tmp_path / "data"), model=bilm_folder, layers="top") for _ in range(2)
    ]
    assert results[0]._fingerprint == results[1]._fingerprint
    assert results[0].cache_files == results[1].cache_files
    assert results[0].features["vector"].length == 16
    assert results[0]["label"][:] == [0, 1, 2]
    expected = np.stack(Elmo(bilm_folder).embed(TEXTS, layers="top", pool="mean"))
    np.testing.assert_allclose(results[1].with_format("numpy")["vector"][:], expected, atol=1e-6)
