"""Parquet files with vectors: their columns, and what other programs read in them."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import mentions

from torchelmo import Elmo
from torchelmo.bulk import VectorFile, embed_file, job, parquet, partial
from torchelmo.errors import InputError

TEXTS = ["I took a bow. It was fine.", "bow and arrow", "", "Zürich and 東京 are far from here.", "one"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(line + "\n" for line in TEXTS), encoding="utf-8")
    return path


@pytest.mark.parametrize("pool", [None, "mean"])
@pytest.mark.parametrize("layers", ["all", "top", "concat"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_file_has_the_vectors_tokens_and_offsets_of_every_line(text, tmp_path, tiny_bilm, layers, pool, dtype):
    elmo, out = Elmo(tiny_bilm), tmp_path / "out.parquet"
    embed_file(text, out, model=elmo, layers=layers, pool=pool, dtype=dtype)
    expected = elmo.embed(TEXTS, layers=layers, pool=pool)
    with VectorFile(out) as file:
        assert len(file) == 5
        assert file.n_tokens == 9 + 3 + 0 + 8 + 1
        assert [token.text for token in file.tokens(1)] == ["bow", "and", "arrow"]
        for line, vectors in enumerate(expected):
            assert file[line].dtype == dtype
            np.testing.assert_allclose(file[line], vectors, atol=1e-6 if dtype == "float32" else 1e-2, strict=False)
            assert file[line].shape == vectors.shape
            assert all(TEXTS[line][token.start : token.end] == token.text for token in file.tokens(line))
        with pytest.raises(IndexError, match="5"):
            file[5]


def test_columns_and_metadata(text, tmp_path, tiny_bilm, monkeypatch):
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 1000)
    out = tmp_path / "out.parquet"
    embed_file(text, out, model=Elmo(tiny_bilm), layers="all")
    file = pq.ParquetFile(out)
    assert file.schema_arrow.names == ["id", "text", "tokens", "start", "end", "layer_0", "layer_1", "layer_2"]
    assert file.schema_arrow.field("layer_0").type == pa.list_(pa.list_(pa.float32(), 16))
    assert file.num_row_groups > 1
    table = file.read()
    assert table.column("id").to_pylist() == [0, 1, 2, 3, 4]
    assert table.column("text").to_pylist() == TEXTS
    settings = json.loads(table.schema.metadata[b"torchelmo"])
    assert settings["layers"] == "all"
    assert settings["fingerprint"] == tiny_bilm.fingerprint()


def test_equal_calls_give_equal_bytes(text, tmp_path, tiny_bilm):
    for name in ("one.parquet", "two.parquet"):
        embed_file(text, tmp_path / name, model=Elmo(tiny_bilm), layers="top")
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


@pytest.mark.parametrize("point", ["append", "finish"])
def test_an_interrupted_run_is_resumed(text, tmp_path, tiny_bilm, monkeypatch, point):
    monkeypatch.setattr(job, "COMMIT_SECONDS", 0.0)
    whole, out = tmp_path / "whole.parquet", tmp_path / "out.parquet"
    embed_file(text, whole, model=Elmo(tiny_bilm), batch_tokens=1)
    owner, calls = (partial.PartialOutput, iter([0, 0, 0, 1])) if point == "append" else (parquet.os, iter([1]))
    name = "append" if point == "append" else "replace"
    function = getattr(owner, name)

    def interrupt(*arguments):
        if (arguments[0] == tmp_path / "out.parquet.partial" / "finished" or point == "append") and next(calls):
            raise KeyboardInterrupt
        return function(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            embed_file(text, out, model=Elmo(tiny_bilm), batch_tokens=1)
    assert not out.exists()
    embed_file(text, out, model=Elmo(tiny_bilm), batch_tokens=1, resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.parquet", "whole.parquet"]
    with VectorFile(out) as one, VectorFile(whole) as two:
        for line in range(len(one)):
            assert one.tokens(line) == two.tokens(line)
            np.testing.assert_allclose(one[line], two[line], rtol=1e-5, atol=1e-6, strict=True)


@pytest.fixture
def pooled(text, tmp_path, tiny_bilm):
    """One vector per line, and what they should be."""
    out, elmo = tmp_path / "pooled.parquet", Elmo(tiny_bilm)
    embed_file(text, out, model=elmo, layers="average", pool="mean")
    return out, np.stack(elmo.embed(TEXTS, layers="average", pool="mean"))


def test_duckdb_ranks_rows_by_cosine_similarity(pooled):
    duckdb = pytest.importorskip("duckdb")
    out, vectors = pooled
    query = vectors[1].tolist()
    rows = duckdb.execute(
        f"SELECT id, array_cosine_similarity(vector::FLOAT[16], $query::FLOAT[16]) AS cosine FROM '{out}' "
        "WHERE len(tokens) > 0 ORDER BY cosine DESC",
        {"query": query},
    ).fetchall()
    lengths = np.linalg.norm(vectors, axis=1)
    cosines = {line: vectors[line] @ vectors[1] / lengths[line] / lengths[1] for line in (0, 1, 3, 4)}
    assert [line for line, _ in rows] == sorted(cosines, key=lambda line: -cosines[line])
    np.testing.assert_allclose([cosine for _, cosine in rows], sorted(cosines.values(), reverse=True), atol=1e-5)


def test_polars_reads_arrays_of_fixed_size(pooled):
    polars = pytest.importorskip("polars")
    out, vectors = pooled
    frame = polars.read_parquet(out)
    assert frame.schema["vector"] == polars.Array(polars.Float32, 16)
    np.testing.assert_allclose(frame["vector"].to_numpy(), vectors, atol=1e-6)


def test_pandas_reads_a_row_for_each_line(pooled):
    pandas = pytest.importorskip("pandas")
    out, vectors = pooled
    frame = pandas.read_parquet(out)
    assert frame["text"].tolist() == TEXTS
    np.testing.assert_allclose(np.stack(frame["vector"]), vectors, atol=1e-6)


def test_other_files_are_refused(tmp_path):
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    with pytest.raises(InputError, match=mentions(other, "layout")):
        VectorFile(other)
    other.write_bytes(b"PAR1, or not")
    with pytest.raises(InputError, match=mentions(other, "Parquet")):
        VectorFile(other)


def test_a_changed_name_of_a_column_is_refused(text, tmp_path, tiny_bilm):
    """Names are in the metadata, for which Parquet has no checksum."""
    out = tmp_path / "out.parquet"
    embed_file(text, out, model=Elmo(tiny_bilm), layers="all")
    out.write_bytes(out.read_bytes().replace(b"layer_0", b"la>er_0"))
    with pytest.raises(InputError, match=mentions(out)):
        VectorFile(out)


def test_without_pyarrow_the_extra_is_named(text, tmp_path):
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from torchelmo.bulk import embed_file\n"
        f"embed_file({str(text)!r}, {str(tmp_path / 'out.parquet')!r})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'torchelmo[parquet]'" in run.stderr
    assert not list(tmp_path.iterdir())
