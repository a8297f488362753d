"""Rows of files in every format: ids, texts, tokens and places, and the errors that name them."""

import gzip
import json

import pytest
from facts import mentions

from torchelmo.errors import InputError, MissingFileError, TorchelmoError, WrongCallError
from torchelmo.text.rows import RowReader

CONLLU = """\
# sent_id = first
# text = Au lit.
1-2\tAu\t_\t_\t_\t_\t_\t_\t_\t_
1\tÀ\tà\tADP\t_\t_\t0\troot\t_\t_
2\tle\tle\tDET\t_\t_\t1\tdet\t_\t_
3\tlit\tlit\tNOUN\t_\t_\t1\tobl\t_\tSpaceAfter=No
3.1\tempty\t_\t_\t_\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t_\t_\t1\tpunct\t_\t_

# sent_id = second
1\t10 000\t10 000\tNUM\t_\t_\t0\troot\t_\t_

"""
FASTA = """\
; an old comment
>sp|P12345|AATM_RABIT Aspartate aminotransferase
MALLH sarv
TG*
>seq2 of mine
acDX

>seq3|x
M
"""


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return write


def read(path, **options):
    return [(row.key, row.text, row.tokens, row.line) for row in RowReader(path, **options).rows()]


def test_text(write):
    path = write("text.txt", "one two\n\nthree\n")
    assert read(path) == [("0", "one two", None, 1), ("1", "", None, 2), ("2", "three", None, 3)]
    assert not RowReader(path).has_ids


def test_csv(write):
    path = write("t.csv", 'id,text,n\na,"Hi, ""you""",1\nb,"two\nlines",2\n\nc,,3\n')
    expected = [("a", 'Hi, "you"', None, 2), ("b", "two\nlines", None, 3), ("c", "", None, 6)]
    assert read(path, id_column="id") == expected
    assert [key for key, *_ in read(path, text_column="n")] == ["0", "1", "2"]
    assert [text for _, text, *_ in read(path, text_column="n")] == ["1", "2", "3"]


def test_csv_with_one_column_with_semicolons_and_with_a_byte_order_mark(write):
    assert read(write("one.csv", "sentence\nHi there\n")) == [("0", "Hi there", None, 2)]
    assert read(write("s.csv", "\ufeffid;text\r\n1;a, b\r\n"), id_column="id") == [("1", "a, b", None, 2)]


def test_tsv_has_no_quotes(write):
    path = write("t.tsv.gz", gzip.compress(b'id\ttext\nx\t"Hi, he said.\ny\tyes\n'))
    assert read(path, id_column="id") == [("x", '"Hi, he said.', None, 2), ("y", "yes", None, 3)]


def test_json_lines(write):
    records = [{"id": 7, "text": "Hi there"}, {"id": "b", "text": ["10 000", "x"]}, {"id": "c", "text": None}]
    path = write("t.jsonl", "\n\n".join(map(json.dumps, records)) + "\n")
    assert read(path, id_column="id") == [
        ("7", "Hi there", None, 1),
        ("b", "10 000 x", ["10 000", "x"], 3),
        ("c", "", None, 5),
    ]
    assert read(write("s.jsonl", '{"text": ["a\\ud800", "b"]}'))[0][1:3] == ("a\ufffd b", ["a\ufffd", "b"])


def test_conllu(write):
    path = write("t.conllu", CONLLU)
    assert read(path) == [("0", "À le lit .", ["À", "le", "lit", "."], 3), ("1", "10 000", ["10 000"], 11)]
    assert [key for key, *_ in read(path, id_column="sent_id")] == ["first", "second"]
    assert read(path, text_column="lemma")[0][2] == ["à", "le", "lit", "."]
    assert RowReader(path).has_tokens


def test_fasta(write):
    path = write("t.faa.gz", gzip.compress(FASTA.encode()))
    assert read(path) == [
        ("P12345", "MALLHSARVTG", list("MALLHSARVTG"), 2),
        ("seq2", "ACDX", list("ACDX"), 5),
        ("seq3|x", "M", ["M"], 8),
    ]
    assert [key for key, *_ in read(path, id_column="name")] == ["sp|P12345|AATM_RABIT", "seq2", "seq3|x"]
    assert [key for key, *_ in read(path, id_column="header")][1] == "seq2 of mine"
    assert read(write("t.txt", FASTA), format="fasta") == read(path)
    assert RowReader(path).has_ids
    assert RowReader(path).has_tokens


@pytest.fixture
def parquet_file(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    n = 1000
    table = pa.table(
        {
            "name": [f"r{i}" for i in range(n)],
            "number": list(range(n)),
            "text": [None if i == 3 else f"text {i}" for i in range(n)],
            "words": [["text", str(i)] for i in range(n)],
            "x": [0.5] * n,
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=300)
    return tmp_path / "t.parquet"


def test_parquet(parquet_file):
    rows = read(parquet_file, id_column="name")
    assert len(rows) == 1000
    assert rows[3:5] == [("r3", "", None, 4), ("r4", "text 4", None, 5)]
    assert read(parquet_file, id_column="number", text_column="words")[999] == (
        "999",
        "text 999",
        ["text", "999"],
        1000,
    )
    with pytest.raises(InputError, match=mentions(parquet_file, "row 1", "'x'", "0.5")):
        read(parquet_file, text_column="x")
    with pytest.raises(InputError, match=mentions(parquet_file, "'nope'", "'words'", "`id_column`")):
        read(parquet_file, id_column="nope")


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 5), (299, 301), (600, None), (950, 2000), (2000, None), (7, 7), (5, 3)]
)
def test_ranges_of_rows_are_those_of_the_whole(parquet_file, write, start, stop):
    text = write("t.txt", "".join(f"line {i}\n" for i in range(1000)))
    for path in (parquet_file, text):
        whole = list(RowReader(path).rows())
        assert list(RowReader(path).rows(start, stop)) == whole[start:stop]


def test_a_damaged_parquet_file_is_named(parquet_file, write):
    content = parquet_file.read_bytes()
    for damaged in (b"", b"not parquet", content[: len(content) // 2], content[:-8] + b"\xff" * 8):
        path = write("d.parquet", damaged)
        with pytest.raises(InputError, match=mentions(path)):
            read(path)


@pytest.mark.parametrize(
    ("name", "content", "options", "facts"),
    [
        ("t.csv", "id,text\na,b\nc\n", {}, ["t.csv", "line 3", "2 columns", "found 1"]),
        ("t.csv", 'id,text\na,"b\nc,d\n', {}, ["t.csv", "line 2"]),
        ("t.csv", 'id,text\na,"b"c\n', {}, ["t.csv", "line 2"]),
        ("t.csv", "id,body\na,b\n", {}, ["t.csv", "'text'", "'body'", "`text_column`"]),
        ("t.csv", "id,text\na,b\n", {"id_column": "key"}, ["t.csv", "'key'", "'id'", "`id_column`"]),
        ("t.csv", "text,text\na,b\n", {}, ["t.csv", "'text'"]),
        ("t.csv", "", {}, ["t.csv", "columns"]),
        ("t.csv", b"text\nok\n\xff\n", {}, ["t.csv", "line 3", "UTF-8", "0xff"]),
        ("t.csv", "id,text\n,b\n", {"id_column": "id"}, ["t.csv", "line 2", "id"]),
        ("t.csv", "id,text\na\x07,b\n", {"id_column": "id"}, ["t.csv", "line 2", "id"]),
        ("t.tsv", "id\ttext\na\tb\tc\n", {}, ["t.tsv", "line 2", "2 columns", "found 3"]),
        ("t.jsonl", '{"text": "a"}\n[1]\n', {}, ["t.jsonl", "line 2", "JSON object"]),
        ("t.jsonl", '{"text": "a"', {}, ["t.jsonl", "line 1"]),
        ("t.jsonl", '{"body": "a"}', {}, ["t.jsonl", "line 1", "'text'", "'body'", "`text_column`"]),
        ("t.jsonl", '{"text": 5}', {}, ["t.jsonl", "line 1", "'text'", "5"]),
        ("t.jsonl", '{"text": ["a", ""]}', {}, ["t.jsonl", "line 1", "''"]),
        ("t.jsonl", '{"text": ["a\\nb"]}', {}, ["t.jsonl", "line 1"]),
        ("t.jsonl", '{"text": "a", "id": true}', {"id_column": "id"}, ["t.jsonl", "line 1", "'id'", "True"]),
        ("t.conllu", "1\ta\n", {}, ["t.conllu", "line 1", "10 columns"]),
        ("t.conllu", CONLLU, {"id_column": "doc"}, ["t.conllu", "line 3", "# doc"]),
        ("t.fa", "MAL\n", {}, ["t.fa", "line 1", "'>'"]),
        ("t.fa", ">a\nMA L1\n", {}, ["t.fa", "line 2", "'1'", "column 5"]),
        ("t.fa", ">a\n>b\nM\n", {}, ["t.fa", "line 1", "'a'"]),
        ("t.fa", ">\nM\n", {}, ["t.fa", "line 1", "id"]),
    ],
)
def test_a_wrong_row_is_named(write, name, content, options, facts):
    with pytest.raises(InputError, match=mentions(*facts)):
        list(RowReader(write(name, content), **options).rows())


@pytest.mark.parametrize(
    ("name", "options", "facts"),
    [
        ("t.txt", {"format": "xml"}, ["xml", "csv", "fasta"]),
        ("t.txt", {"id_column": "id"}, ["`id_column`", "text", "csv"]),
        ("t.fasta", {"text_column": "x"}, ["`text_column`", "fasta"]),
        ("t.fasta", {"id_column": "x"}, ["`id_column`", "header"]),
        ("t.conllu", {"text_column": "x"}, ["`text_column`", "lemma"]),
    ],
)
def test_columns_that_a_format_cannot_have_are_refused(write, name, options, facts):
    with pytest.raises(WrongCallError, match=mentions(*facts)):
        RowReader(write(name, "x"), **options)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(MissingFileError):
        RowReader(tmp_path / "none.csv")
    with pytest.raises(TorchelmoError, match="standard input"):
        RowReader("-", format="parquet")


def test_equal_ids_are_named_by_their_lines(write):
    reader = RowReader(write("t.fasta", ">a\nM\n>b\nM\nM\n>a\nA\n"))
    with pytest.raises(InputError, match=mentions("t.fasta", "lines 1 and 6", "`id_column`")):
        reader.count()
    assert RowReader(write("u.fasta", ">a\nM\n>b\nM\n")).count() == 2
    assert RowReader(write("t.txt", "a\na\n")).count() == 2
