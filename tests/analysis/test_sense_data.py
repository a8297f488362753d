"""Text tagged with senses: JSON lines, and XML with its keys."""

import gzip
import json

import pytest
from facts import mentions
from tiny_senses import BOW_GESTURE, BOW_KNOT, BOW_WEAPON, DISPLAY, SHOW, TAKE_PART, TEST, TRAIN, as_xml, write_all

from torchelmo.analysis import senses as sense_xml
from torchelmo.analysis.senses import TaggedWord, read_tagged
from torchelmo.errors import ConfigError, InputError


@pytest.fixture
def files(tmp_path):
    return write_all(tmp_path)


def test_json_lines(files):
    sentences = list(read_tagged(files["train"]))
    assert len(sentences) == len(TRAIN)
    assert sentences[0].tokens == "He drew his bow and let the arrow fly".split()
    assert sentences[0].words == [TaggedWord(3, 4, ("bow", "NOUN"), (BOW_WEAPON,))]
    assert sentences[4].words[0] == TaggedWord(0, 1, ("show", "VERB"), (SHOW, DISPLAY))
    assert sentences[7].words == []


def test_a_word_of_several_parts_is_split(files):
    sentence = list(read_tagged(files["train"]))[6]
    assert sentence.tokens == ["They", "took", "part", "in", "the", "show"]
    assert sentence.words == [TaggedWord(1, 3, ("take_part", "VERB"), (TAKE_PART,))]


def test_what_comes_after_a_split_word_is_found(tmp_path):
    line = {"tok": ["New_York", "_", "bows"], "senses": {"2": [BOW_KNOT]}}
    (tmp_path / "a.jsonl").write_text(json.dumps(line))
    (sentence,) = read_tagged(tmp_path / "a.jsonl")
    assert sentence.tokens == ["New", "York", "_", "bows"]
    assert sentence.words[0][:2] == (3, 4)


def test_several_senses_in_one_key_are_several_senses(tmp_path):
    line = {"tok": ["the", "bows"], "senses": {"1": ["bow%1:06:00::;1:06:01::", BOW_GESTURE]}}
    (tmp_path / "a.jsonl").write_text(json.dumps(line))
    (sentence,) = read_tagged(tmp_path / "a.jsonl")
    assert sentence.words == [TaggedWord(1, 2, ("bow", "NOUN"), (BOW_WEAPON, BOW_KNOT, BOW_GESTURE))]


@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_xml_and_its_keys(files, monkeypatch, chunk):
    monkeypatch.setattr(sense_xml, "_CHUNK", chunk)
    sentences = list(read_tagged(files["test"], files["keys"]))
    assert len(sentences) == len(TEST)
    assert sentences[1].tokens == ["His", "bows", "and", "arrows", "&", "<knives>"]
    assert sentences[1].words == [TaggedWord(1, 2, ("bow", "NOUN"), (BOW_WEAPON, BOW_KNOT))]
    assert sentences[3].tokens == ["All", "took", "part", "seldom"]
    assert sentences[3].words[0] == TaggedWord(1, 3, ("take_part", "VERB"), (TAKE_PART,))


def test_sentences_come_while_the_xml_is_read(files, monkeypatch):
    monkeypatch.setattr(sense_xml, "_CHUNK", 64)
    files["test"].write_text(files["test"].read_text().replace("</corpus>", "damage"))
    sentences = read_tagged(files["test"], files["keys"])
    assert next(sentences).words[0].senses == (BOW_GESTURE,)
    with pytest.raises(InputError):
        list(sentences)


def test_compressed_files(files, tmp_path):
    with gzip.open(tmp_path / "b.xml.gz", "wb") as stream:
        stream.write(files["test"].read_bytes())
    assert list(read_tagged(tmp_path / "b.xml.gz", files["keys"])) == list(read_tagged(files["test"], files["keys"]))


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("{", ["JSON"]),
        ("[1]", ["JSON"]),
        ("{}", ['"tok"', None]),
        ('{"tok": [1], "senses": {}}', ['"tok"']),
        ('{"tok": ["a", ""], "senses": {}}', ['"tok"']),
        ('{"tok": ["a"]}', ['"senses"', None]),
        ('{"tok": ["a"], "senses": {"1": ["a%1:01:01::"]}}', ['"senses"', 0, "'1'"]),
        ('{"tok": ["a"], "senses": {"-1": ["a%1:01:01::"]}}', ['"senses"', 0, "'-1'"]),
        ('{"tok": ["a"], "senses": {"0": "a%1:01:01::"}}', [0, "'a%1:01:01::'"]),
        ('{"tok": ["a"], "senses": {"0": []}}', [0, "[]"]),
        ('{"tok": ["a"], "senses": {"0": ["a%1:01:01::;1"]}}', ["say%2:32:00::", "a%1:01:01::;1"]),
        ('{"tok": ["a"], "senses": {"0": ["a"]}}', ["say%2:32:00::", ["a"]]),
    ],
)
def test_malformed_json_lines_are_named(tmp_path, line, facts):
    (tmp_path / "a.jsonl").write_text('\n{"tok": [], "senses": {}}\n' + line + "\n")
    with pytest.raises(InputError, match=mentions("a.jsonl", "line 3", *facts)):
        list(read_tagged(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
    ("old", "new", "line", "facts"),
    [
        ("</sentence>", "", 11, ["<wf>", "<instance>", "<sentence>"]),
        ("</corpus>", "", 40, ["XML", "no element found"]),
        ("</wf>", "</w>", 5, ["XML", "mismatched tag"]),
        (' lemma="bow"', "", 9, ["instance", "lemma"]),
        (' id="d0.s0.t4"', "", 9, ["instance", "id"]),
        ('pos="NOUN"', 'pos="N"', 9, ["pos", "NOUN", "VERB", "ADJ", "ADV", "'N'"]),
        ("d0.s0.t4", "d0.s0.t9", 9, ["gold.key.txt", "'d0.s0.t9'"]),
        ("d0.s1.t1", "d0.s0.t4", 13, ["gold.key.txt", "'d0.s0.t4'"]),
        (">The<", "><", 5, ["<wf>"]),
        (">The<", "><b>The</b><", 5, ["<wf>", "<instance>", "<b>"]),
        ("<wf lemma", "<w lemma", 5, ["<wf>", "<instance>", "<w>"]),
        ('<sentence id="d0.s0">', "", 5, ["<wf>"]),
    ],
)
def test_malformed_xml_is_named(files, old, new, line, facts):
    files["test"].write_text(files["test"].read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=mentions("test.data.xml", f"line {line}", *facts)):
        list(read_tagged(files["test"], files["keys"]))


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("d0.s9.t0", ["line 8", "'d0.s9.t0'"]),
        (f"d0.s0.t4 {BOW_KNOT}", ["line 8", "'d0.s0.t4'"]),
        (f"d7.s0.t0 {BOW_KNOT}", ["test.data.xml", 1, "'d7.s0.t0'"]),
    ],
)
def test_malformed_keys_are_named(files, line, facts):
    files["keys"].write_text(files["keys"].read_text() + line + "\n")
    with pytest.raises(InputError, match=mentions("test.gold.key.txt", *facts)):
        list(read_tagged(files["test"], files["keys"]))


def test_keys_belong_to_xml(files):
    with pytest.raises(ConfigError, match=mentions("test.data.xml", "keys")):
        read_tagged(files["test"])
    with pytest.raises(ConfigError, match=mentions("train.jsonl", "keys", files["keys"])):
        read_tagged(files["train"], files["keys"])


def test_lemmas_are_looked_up_as_wordnet_writes_them(tmp_path):
    xml, keys = as_xml([[("Took part", "Take part", "VERB", [TAKE_PART])]])
    (tmp_path / "a.xml").write_text(xml)
    (tmp_path / "a.txt").write_text(keys)
    (sentence,) = read_tagged(tmp_path / "a.xml", tmp_path / "a.txt")
    assert sentence.words[0].word == ("take_part", "VERB")
    assert sentence.tokens == ["Took", "part"]
