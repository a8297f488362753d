"""embed_file of tables, treebanks and proteins: ids become the names of the arrays."""

import h5py
import numpy as np
import pytest
from facts import mentions

from torchelmo import Elmo
from torchelmo.bulk import VectorFile, embed_file, job, partial
from torchelmo.errors import InputError

TEXTS = ["I took a bow. It was fine.", "", "bow and arrow", "Zürich and 東京"]
IDS = ["P12345", "a/b", "Zürich 1", "."]
PROTEINS = {"P12345": "MALLHSARV", "seq2": "ACDX"}


@pytest.fixture
def elmo(tiny_bilm):
    return Elmo(tiny_bilm)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("key\ttext\n" + "".join(f"{id}\t{text}\n" for id, text in zip(IDS, TEXTS)), encoding="utf-8")
    return path


@pytest.fixture(params=[".h5", ".npz", ".parquet"])
def out(request, tmp_path):
    return tmp_path / f"out{request.param}"


def check(out, elmo, ids=IDS, texts=TEXTS):
    with VectorFile(out) as file:
        assert file.ids == ids
        for number, (id, expected) in enumerate(zip(ids, elmo.embed(texts))):
            np.testing.assert_allclose(file[id], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(file[id], file[number])
            assert file.tokens(id) == file.tokens(number)
            assert len(file.tokens(id)) == expected.shape[1]


def test_ids_are_the_names_of_the_arrays(elmo, table, out):
    result = embed_file(table, out, model=elmo, id_column="key")
    assert result.n_lines == 4
    check(out, elmo)
    if out.suffix == ".npz":
        with np.load(out) as file:
            assert set(IDS) <= set(file.files)
            assert file["a/b"].shape == (3, 0, 16)
    elif out.suffix == ".h5":
        with h5py.File(out) as file:
            assert {"P12345", "a%2Fb", "Zürich 1", "%2E"} <= set(file)
    with VectorFile(out) as file, pytest.raises(KeyError, match="nope"):
        file["nope"]


def test_an_interrupted_run_with_ids_is_resumed(elmo, table, out, monkeypatch):
    monkeypatch.setattr(job, "COMMIT_SECONDS", 0.0)
    append = partial.PartialOutput.append

    def interrupt(self, record):
        if self._n_written == 2:
            raise KeyboardInterrupt
        append(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(partial.PartialOutput, "append", interrupt)
        with pytest.raises(KeyboardInterrupt):
            embed_file(table, out, model=elmo, id_column="key", batch_tokens=1)
    embed_file(table, out, model=elmo, id_column="key", batch_tokens=1, resume=True)
    check(out, elmo)
    assert embed_file(table, out, model=elmo, id_column="key", batch_tokens=1, resume=True).already_complete


def test_other_ids_are_another_text(elmo, table, out):
    embed_file(table, out, model=elmo, id_column="key")
    table.write_text(table.read_text(encoding="utf-8").replace("P12345", "P99999"), encoding="utf-8")
    with pytest.raises(FileExistsError, match="text_sha256"):
        embed_file(table, out, model=elmo, id_column="key", resume=True)


def test_every_residue_of_a_protein_is_a_token(elmo, tmp_path, out):
    path = tmp_path / "p.fasta"
    path.write_text(">sp|P12345|X some protein\nMALLH\nsarv\n>seq2\nACDX*\n")
    embed_file(path, out, model=elmo)
    check(out, elmo, list(PROTEINS), [list(sequence) for sequence in PROTEINS.values()])
    with VectorFile(out) as file:
        assert [tuple(token) for token in file.tokens("seq2")][:2] == [("A", 0, 1), ("C", 1, 2)]
        assert not file.settings["lang"]


def test_proteins_as_sums_and_concatenations(elmo, tmp_path):
    path = tmp_path / "p.fa"
    path.write_text("".join(f">{id}\n{sequence}\n" for id, sequence in PROTEINS.items()))
    embed_file(path, tmp_path / "sum.npz", model=elmo, layers="sum", pool="mean")
    embed_file(path, tmp_path / "concat.npz", model=elmo, layers="concat")
    for id, layers in zip(PROTEINS, elmo.embed(list(map(list, PROTEINS.values())))):
        with np.load(tmp_path / "sum.npz") as sums, np.load(tmp_path / "concat.npz") as wide:
            np.testing.assert_allclose(sums[id], layers.sum(axis=0).mean(axis=0), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(wide[id], np.concatenate(layers, axis=1), rtol=1e-5, atol=1e-6)


def test_given_tokens_are_not_split(elmo, tmp_path, out):
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": ["10 000", "don\'t"]}\n{"text": "don\'t"}\n')
    embed_file(path, out, model=elmo)
    check(out, elmo, ["0", "1"], [["10 000", "don't"], "don't"])


def test_ids_that_cannot_be_names_are_refused(elmo, table, out, tmp_path):
    text = table.read_text(encoding="utf-8")
    table.write_text(text.replace("a/b", "P12345"), encoding="utf-8")
    with pytest.raises(InputError, match=mentions(table, "lines 2 and 3")):
        embed_file(table, out, model=elmo, id_column="key")
    table.write_text(text.replace("a/b", "tokens"), encoding="utf-8")
    if out.suffix == ".parquet":  # its ids are not names
        assert embed_file(table, out, model=elmo, id_column="key").n_lines == 4
        return
    with pytest.raises(InputError, match=mentions("Row 2", "'tokens'", "`id_column`")):
        embed_file(table, out, model=elmo, id_column="key")
    assert [path.name for path in tmp_path.iterdir()] == [table.name]


def test_ids_that_look_like_escapes_stay_apart(elmo, tmp_path, out):
    ids = ["a/b", "a%2Fb", "a%252Fb", "%2E", "."]
    path = tmp_path / "t.tsv"
    path.write_text("id\ttext\n" + "".join(f"{id}\tbow {n}\n" for n, id in enumerate(ids)))
    embed_file(path, out, model=elmo, id_column="id")
    check(out, elmo, ids, [f"bow {n}" for n in range(len(ids))])
