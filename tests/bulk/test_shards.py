"""Collections: shards, their plan, and what a run leaves behind."""

import gzip
import json
import os
import resource
import shutil

import numpy as np
import pytest
from facts import mentions

import torchelmo.bulk
from torchelmo import Elmo
from torchelmo.bulk import embed_files, read_status
from torchelmo.bulk.plan import Plan, find_files, parse_size, plan_shards
from torchelmo.bulk.shards import hold_collection, open_plan, run_shard
from torchelmo.errors import InputError, MissingFileError, OutputError, OutputExistsError, WrongCallError

TEXTS = ["I took a bow. It was fine.", "bow and arrow", "", "Zürich and 東京 are far from here.", "one", "  "]
SMALL = {"shard_size": 60, "layers": "top"}


@pytest.fixture
def elmo(tiny_bilm):
    return Elmo(tiny_bilm)


@pytest.fixture
def folder(tmp_path):
    """Two files of text, one of them compressed."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    lines = [f"{text} {number}" if text.strip() else text for number, text in enumerate(TEXTS * 3)]
    (inputs / "a.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with gzip.open(inputs / "b.txt.gz", "wt", encoding="utf-8") as stream:
        stream.write("\n".join(lines[::-1]))
    return inputs


def rows_of(folder):
    lines = (folder / "a.txt").read_text(encoding="utf-8").splitlines()
    return [*lines, *lines[::-1]]


def listing(folder):
    """All files of a folder with their content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("file_format", ["parquet", "h5", "npz"])
def test_every_row_is_in_one_shard_in_order(folder, tmp_path, elmo, file_format):
    out = tmp_path / "out"
    result = embed_files([folder], out, model=elmo, file_format=file_format, **SMALL)
    rows = rows_of(folder)
    assert result.n_rows == len(rows) == 36
    assert result.n_shards == result.n_done > 8
    expected = elmo.embed(rows, layers="top")
    with torchelmo.bulk.open(out, check=True) as collection:
        assert len(collection) == len(rows)
        assert collection.n_tokens == result.n_tokens == sum(map(len, expected))
        for row, vectors in enumerate(expected):
            np.testing.assert_allclose(collection[row], vectors, atol=1e-6)
            assert "".join(token.text for token in collection.tokens(row)) == "".join(rows[row].split())
        assert sum(1 for _ in collection) == 36
        assert collection.origin(19) == (str(folder / "b.txt.gz"), 1)
        assert collection.id(-1) == "35"
        assert collection.find(7) == collection.find("7") == 7
        with pytest.raises(KeyError):
            collection.find("36")
        with pytest.raises(IndexError, match="36"):
            collection[36]
    names = {path.name for path in out.iterdir() if not path.name.startswith("part-")}
    assert names == {"plan.json", "manifest.json"}


def test_a_second_call_does_nothing(folder, tmp_path, elmo):
    out = tmp_path / "out"
    embed_files([folder], out, model=elmo, **SMALL)
    before = listing(out)
    assert embed_files([folder], out, model=elmo, **SMALL).already_complete
    assert listing(out) == before


def test_a_lost_shard_is_written_again_with_the_same_bytes(folder, tmp_path, elmo):
    out = tmp_path / "out"
    embed_files([folder], out, model=elmo, **SMALL)
    before = listing(out)
    lost = sorted(out.glob("part-*"))[3]
    lost.unlink()
    with pytest.raises(InputError, match=mentions(lost)):
        torchelmo.bulk.open(out)
    assert not embed_files([folder], out, model=elmo, **SMALL).already_complete
    assert listing(out) == before


def test_the_plan_depends_on_nothing_but_text_and_settings(folder, tmp_path):
    plans = [plan_shards([folder], tmp_path / name, {"a": 1}, shard_size=60) for name in ("one", "two")]
    assert plans[0].shards == plans[1].shards
    other = plan_shards([folder], tmp_path / "one", {"a": 2}, shard_size=60)
    assert not {shard.name for shard in other.shards} & {shard.name for shard in plans[0].shards}
    assert all(shard.n_rows > 0 for shard in other.shards)
    starts = [shard.first for shard in other.shards]
    assert starts == [0, *np.cumsum([shard.n_rows for shard in other.shards])[:-1]]


def test_a_changed_row_changes_one_shard(folder, tmp_path):
    before = plan_shards([folder / "a.txt"], tmp_path, {}, shard_size=60)
    text = (folder / "a.txt").read_text(encoding="utf-8")
    (folder / "a.txt").write_text(text.replace("bow and arrow 7", "arrow and bow 7"), encoding="utf-8")
    after = plan_shards([folder / "a.txt"], tmp_path, {}, shard_size=60)
    assert len({shard.name for shard in after.shards} - {shard.name for shard in before.shards}) == 1


@pytest.mark.parametrize("n_shards", [1, 3, 7])
def test_the_number_of_shards_can_be_chosen(folder, tmp_path, n_shards):
    assert len(plan_shards([folder / "a.txt"], tmp_path, {}, n_shards=n_shards).shards) == n_shards


TABLES = {
    "rows.csv": 'name,text\na1,"I took, then\nlost a bow"\nb2,arrow\nc3,bow\n',
    "rows.jsonl": '{"name": "a1", "text": "I took a bow"}\n\n'
    '{"name": "b2", "text": "arrow"}\n{"name": "c3", "text": ""}\n',
    "rows.fasta": ">a1\nMK\nV\n>b2\nGG\n>c3\nA\n",
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_sharded_by_rows_and_found_by_ids(name, tmp_path, elmo):
    (tmp_path / name).write_text(TABLES[name])
    options = {} if name.endswith("fasta") else {"id_column": "name"}
    embed_files(tmp_path / name, tmp_path / "out", model=elmo, layers="top", shard_size=1, **options)
    with torchelmo.bulk.open(tmp_path / "out") as collection:
        assert len(collection) == 3
        assert len(list((tmp_path / "out").glob("part-*"))) == 3
        assert [collection.id(row) for row in range(3)] == ["a1", "b2", "c3"]
        assert collection.find("c3") == 2
        with pytest.raises(KeyError):
            collection.find("d4")


def test_ids_must_be_unique_when_they_are_used(tmp_path, elmo):
    for name in ("one.jsonl", "two.jsonl"):
        (tmp_path / name).write_text('{"name": "a1", "text": "I took a bow"}\n')
    embed_files([tmp_path / "*.jsonl"], tmp_path / "out", model=elmo, layers="top", id_column="name")
    with torchelmo.bulk.open(tmp_path / "out") as collection, pytest.raises(InputError, match=mentions("a1", "two")):
        collection.find("a1")


def test_a_poisoned_row_is_named_and_the_other_shards_finish(folder, tmp_path, elmo):
    text = (folder / "a.txt").read_bytes()
    (folder / "a.txt").write_bytes(text.replace(b"arrow 7", b"arr\xff 7"))
    out = tmp_path / "out"
    with pytest.raises(InputError, match=mentions("a.txt", "line 8", "0xff", "1 of", "overwrite=True")):
        embed_files([folder], out, model=elmo, **SMALL)
    status = read_status(out)
    assert (status.n_shards - status.n_done, len(status.failed), status.complete) == (1, 1, False)
    with pytest.raises(MissingFileError, match=mentions("--status", out)):
        torchelmo.bulk.open(out)
    parts = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    (folder / "a.txt").write_bytes(text)
    with pytest.raises(OutputExistsError, match=mentions("a.txt", "overwrite=True")):
        embed_files([folder], out, model=elmo, **SMALL)
    embed_files([folder], out, model=elmo, overwrite=True, **SMALL)
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert kept.items() > parts.items()
    assert read_status(out).complete


def test_text_that_changes_during_a_run_is_refused(folder, tmp_path, elmo):
    plan, _ = open_plan([folder / "a.txt"], tmp_path / "out", model=elmo, **SMALL)
    (folder / "a.txt").write_text("other text\n" * 30)
    with pytest.raises(InputError, match=mentions("a.txt", "overwrite=True")):
        run_shard(plan, plan.shards[0], elmo)


def test_other_settings_are_refused(folder, tmp_path, elmo):
    out = tmp_path / "out"
    embed_files([folder], out, model=elmo, **SMALL)
    with pytest.raises(OutputExistsError, match=mentions("layers", "top", "average")):
        embed_files([folder], out, model=elmo, layers="average")
    with pytest.raises(OutputExistsError, match=mentions("shard_size", "60", "61")):
        embed_files([folder], out, model=elmo, layers="top", shard_size=61)
    with pytest.raises(OutputExistsError, match=mentions("2 files", "b.txt.gz")):
        embed_files([folder / "a.txt"], out, model=elmo, **SMALL)
    embed_files([folder / "a.txt"], out, model=elmo, overwrite=True, layers="average")
    assert len(list(out.glob("part-*"))) == 1


def test_parts_complete_each_other(folder, tmp_path, elmo):
    whole, out = tmp_path / "whole", tmp_path / "out"
    embed_files([folder], whole, model=elmo, **SMALL)
    for i in (3, 1, 2):
        assert not (out / "manifest.json").exists()
        embed_files([folder], out, model=elmo, part=(i, 3), **SMALL)
    assert listing(out) == listing(whole)
    with pytest.raises(WrongCallError, match=mentions("4/3")):
        embed_files([folder], out, model=elmo, part=(4, 3))


def test_a_second_run_at_once_is_refused(folder, tmp_path, elmo):
    out = tmp_path / "out"
    for held, wanted in ((None, None), (None, (1, 2)), ((1, 2), None), ((1, 2), (1, 2))):
        with hold_collection(out, held), pytest.raises(OutputError, match=mentions(out, "process")):
            embed_files([folder], out, model=elmo, part=wanted, **SMALL)
    with hold_collection(out, (1, 2)):
        embed_files([folder], out, model=elmo, part=(2, 2), **SMALL)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_cannot_be_written_ends_the_run(folder, tmp_path, elmo, workers):
    """A file in the place of the folder of records: even root cannot write there."""
    out = tmp_path / "out"
    open_plan([folder], out, model=elmo, **SMALL)
    (out / "done").write_text("")
    with pytest.raises(OutputError, match=mentions(out)):
        embed_files([folder], out, model=elmo, workers=workers, **SMALL)
    (out / "done").unlink()
    embed_files([folder], out, model=elmo, **SMALL)
    assert not [path for path in out.rglob("*") if path.name.endswith(".tmp")]


def test_a_full_disk_ends_the_run_and_leaves_nothing_unfinished(folder, tmp_path, elmo):
    """No file may have more than 1,500 bytes, which the plan and the records have not."""
    out = tmp_path / "out"
    open_plan([folder / "a.txt"], out, model=elmo, **SMALL)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
    try:
        with pytest.raises(OutputError, match=mentions(out, "File too large")):
            embed_files([folder / "a.txt"], out, model=elmo, **SMALL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name for path in out.iterdir()} == {"plan.json"}
    assert embed_files([folder / "a.txt"], out, model=elmo, **SMALL).n_rows == 18


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(folder, tmp_path, elmo):
    out = tmp_path / "out"
    open_plan([folder], out, model=elmo, **SMALL)
    out.chmod(0o500)
    with pytest.raises(OutputError, match=mentions(out, "permission")):
        embed_files([folder], out, model=elmo, **SMALL)
    out.chmod(0o700)


def test_workers_write_the_bytes_of_one_process(folder, tmp_path, elmo):
    one, two = tmp_path / "one", tmp_path / "two"
    embed_files([folder], one, model=elmo, threads=1, **SMALL)
    result = embed_files([folder], two, model=elmo, workers=2, threads=2, **SMALL)
    assert result.n_done == result.n_shards
    assert listing(two) == listing(one)


def test_foreign_folders_are_left_alone(folder, tmp_path, elmo):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(OutputExistsError, match=mentions(out)):
        embed_files([folder], out, model=elmo)
    assert listing(out) == {"thesis.txt": b"mine"}
    with pytest.raises(WrongCallError, match=mentions("file")):
        embed_files([folder], folder / "a.txt", model=elmo)


def test_a_wrong_call_leaves_no_folder(folder, tmp_path, elmo):
    for wrong in ({"layers": "topp"}, {"shard_size": "many"}, {"n_shards": 2, "shard_size": 5}, {"workers": 0}):
        with pytest.raises(WrongCallError):
            embed_files([folder], tmp_path / "new" / "out", model=elmo, **wrong)
        assert not (tmp_path / "new").exists()
    with pytest.raises(WrongCallError, match=mentions(folder)):
        embed_files([folder], folder / "out", model=elmo)
    with pytest.raises(WrongCallError, match=mentions("standard input")):
        find_files(["-"], tmp_path)
    with pytest.raises(WrongCallError, match=mentions("*.none")):
        find_files([tmp_path / "*.none"], tmp_path)


def test_status_estimates_the_rest(folder, tmp_path, elmo):
    out = tmp_path / "out"
    open_plan([folder], out, model=elmo, **SMALL)
    assert read_status(out).seconds_left is None
    embed_files([folder], out, model=elmo, part=(1, 2), **SMALL)
    status = read_status(out)
    assert 0 < status.n_done < status.n_shards
    assert status.seconds_left > 0
    assert status.n_rows == 36
    embed_files([folder], out, model=elmo, part=(2, 2), **SMALL)
    assert read_status(out)[-3:] == (0.0, {}, True)


def test_damaged_plans_and_manifests_are_named(folder, tmp_path, elmo):
    out = tmp_path / "out"
    embed_files([folder], out, model=elmo, **SMALL)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["n_rows"] += 1
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=mentions("manifest.json", "checksum")):
        torchelmo.bulk.open(out)
    (out / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=mentions("manifest.json")):
        torchelmo.bulk.open(out)
    (out / "plan.json").write_text('{"format": "other"}')
    with pytest.raises(InputError, match=mentions("plan.json")):
        Plan.load(out)


def test_a_changed_file_is_found(folder, tmp_path, elmo):
    out = tmp_path / "out"
    embed_files([folder], out, model=elmo, file_format="npz", **SMALL)
    one, two = sorted(out.glob("part-*"))[:2]
    data = bytearray(one.read_bytes())
    data[-30] ^= 1
    one.write_bytes(data)
    torchelmo.bulk.open(out).close()
    with pytest.raises(InputError, match=mentions(one)):
        torchelmo.bulk.open(out, check=True)
    shutil.copy(two, one)
    with pytest.raises(InputError, match=mentions(one)):
        torchelmo.bulk.open(out)


def test_sizes():
    assert parse_size("64MB") == 64_000_000
    for wrong in ("", "MB", "-1", "nan", "64 XB"):
        with pytest.raises(WrongCallError, match="`shard_size`"):
            parse_size(wrong)
