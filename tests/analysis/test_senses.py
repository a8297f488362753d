"""The sense inventory of WordNet, and text tagged with senses as JSON lines and XML."""

import gzip
import json
import tracemalloc
from itertools import pairwise

import pytest
from facts import mentions
from tiny_senses import (
    BOW_GESTURE,
    BOW_KNOT,
    BOW_WEAPON,
    DISPLAY,
    GOOD,
    INDEX,
    PROVE,
    SHOW,
    SOUND,
    TAKE_PART,
    TEST,
    TRAIN,
    as_xml,
    write_all,
)

from torchelmo.analysis.senses import TaggedWord, parse_sense_key, read_senses, read_tagged
from torchelmo.errors import ConfigError, InputError, MissingFileError


def test_senses_are_ordered_by_their_numbers(tmp_path):
    (tmp_path / "index.sense").write_text("\n".join(INDEX) + "\n\n")
    senses = read_senses(tmp_path / "index.sense")
    assert senses["bow", "NOUN"] == [BOW_WEAPON, BOW_KNOT, BOW_GESTURE]
    assert senses["show", "VERB"] == [SHOW, PROVE, DISPLAY]
    assert len(senses) == 6


def test_both_kinds_of_adjectives_are_one_part_of_speech(tmp_path):
    (tmp_path / "index.sense").write_text("\n".join(INDEX))
    assert read_senses(tmp_path / "index.sense")["good", "ADJ"] == [GOOD, SOUND]


def test_ten_comes_after_nine(tmp_path):
    keys = [f"run%2:30:{i:02}::" for i in range(1, 12)]
    lines = [f"{key} 0 {i} 0\n" for i, key in enumerate(keys, 1)]
    (tmp_path / "index.sense").write_text("".join(sorted(lines, reverse=True)))
    assert read_senses(tmp_path / "index.sense")["run", "VERB"] == keys


@pytest.mark.parametrize(
    ("key", "lemma"),
    [
        ("say%2:32:00::", ("say", "VERB")),
        ("recent%5:00:00:past:00", ("recent", "ADJ")),
        ("'s_gravenhage%1:15:00::", ("'s_gravenhage", "NOUN")),
        ("only%5:00:00:single(a):00", ("only", "ADJ")),
        ("say", None),
        ("say%6:32:00::", None),
        ("say%2:32:00", None),
        ("%2:32:00::", None),
        ("say%2:32:00::x", None),
    ],
)
def test_a_sense_key_contains_lemma_and_part_of_speech(key, lemma):
    assert parse_sense_key(key) == lemma


@pytest.mark.parametrize(
    "line",
    ["bow%1:04:00:: 00150000 3", "bow 00150000 3 2", "bow%1:04:00:: 00150000 x 2", f"bow%1:04:00:: 0 {'9' * 5000} 2"],
)
def test_a_line_of_another_form_is_named(tmp_path, line):
    (tmp_path / "index.sense").write_text(f"{INDEX[0]}\n{line}\n")
    with pytest.raises(InputError, match=mentions("index.sense", "line 2")):
        read_senses(tmp_path / "index.sense")


def test_an_empty_or_missing_inventory_is_refused(tmp_path):
    (tmp_path / "index.sense").write_text("\n")
    with pytest.raises(InputError, match=mentions("index.sense", "WordNet")):
        read_senses(tmp_path / "index.sense")
    with pytest.raises(MissingFileError, match=mentions("gone")):
        read_senses(tmp_path / "gone")


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


def test_a_multiword_expression_is_split(files):
    sentence = list(read_tagged(files["train"]))[6]
    assert sentence.tokens == ["They", "took", "part", "in", "the", "show"]
    assert sentence.words == [TaggedWord(1, 3, ("take_part", "VERB"), (TAKE_PART,))]


def test_words_after_a_split_word_keep_their_senses(tmp_path):
    line = {"tok": ["New_York", "_", "bows"], "senses": {"2": [BOW_KNOT]}}
    (tmp_path / "a.jsonl").write_text(json.dumps(line))
    (sentence,) = read_tagged(tmp_path / "a.jsonl")
    assert sentence.tokens == ["New", "York", "_", "bows"]
    assert sentence.words[0][:2] == (3, 4)


def test_a_key_with_several_senses_is_split(tmp_path):
    line = {"tok": ["the", "bows"], "senses": {"1": ["bow%1:06:00::;1:06:01::", BOW_GESTURE]}}
    (tmp_path / "a.jsonl").write_text(json.dumps(line))
    (sentence,) = read_tagged(tmp_path / "a.jsonl")
    assert sentence.words == [TaggedWord(1, 2, ("bow", "NOUN"), (BOW_WEAPON, BOW_KNOT, BOW_GESTURE))]


def test_xml_and_its_keys(files):
    sentences = list(read_tagged(files["test"], files["keys"]))
    assert len(sentences) == len(TEST)
    assert sentences[1].tokens == ["His", "bows", "and", "arrows", "&", "<knives>"]
    assert sentences[1].words == [TaggedWord(1, 2, ("bow", "NOUN"), (BOW_WEAPON, BOW_KNOT))]
    assert sentences[3].tokens == ["All", "took", "part", "seldom"]
    assert sentences[3].words[0] == TaggedWord(1, 3, ("take_part", "VERB"), (TAKE_PART,))


def test_xml_is_read_lazily(files):
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
        (f'{{"tok": ["a"], "senses": {{"{"9" * 5000}": ["a%1:01:01::"]}}}}', ['"senses"', 0]),
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
    ("old", "new", "facts"),
    [
        ("</sentence>", "", ["'d0.s0'", "<wf>", "<instance>", "<sentence>"]),
        ("</corpus>", "", ["XML", "no element found", "line 40"]),
        ("</wf>", "</w>", ["XML", "mismatched tag", "line 5"]),
        ('encoding="UTF-8"', 'encoding="klingon"', ["XML", "klingon"]),
        ('encoding="UTF-8"', 'encoding="UTF-7"', ["XML"]),
        (' lemma="bow"', "", ["'d0.s0'", "<instance>", "lemma", None]),
        (' id="d0.s0.t4"', "", ["'d0.s0'", "<instance>", "id", None]),
        ('pos="NOUN"', 'pos="N"', ["'d0.s0'", "pos", "NOUN", "VERB", "ADJ", "ADV", "'N'"]),
        ("d0.s0.t4", "d0.s0.t9", ["'d0.s0'", "gold.key.txt", "'d0.s0.t9'"]),
        ("d0.s1.t1", "d0.s0.t4", ["'d0.s1'", "gold.key.txt", "'d0.s0.t4'"]),
        (">The<", "><", ["'d0.s0'", "<wf>"]),
        (">The<", "><b>The</b><", ["'d0.s0'", "<wf>", "<instance>", "<b>"]),
        ("<wf lemma", "<w lemma", ["'d0.s0'", "<wf>", "<instance>", "<w>"]),
        ('<sentence id="d0.s0">', "", ["first sentence", "<wf>", "<text>"]),
        ("</sentence>", '</sentence><wf lemma="x" pos="X">and</wf>', ["'d0.s0'", "<wf>", "<text>"]),
    ],
)
def test_malformed_xml_is_named(files, old, new, facts):
    files["test"].write_text(files["test"].read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=mentions("test.data.xml", *facts)):
        list(read_tagged(files["test"], files["keys"]))


def with_entity(files, declaration):
    """Declare entities and use &x; as the first word."""
    text = files["test"].read_text().replace(">The<", ">&x;<", 1)
    files["test"].write_text(text.replace("<corpus", f"<!DOCTYPE corpus [{declaration}]>\n<corpus", 1))
    return read_tagged(files["test"], files["keys"])


def test_an_internal_entity_is_expanded(files):
    assert next(with_entity(files, '<!ENTITY x "The">')).tokens[0] == "The"


def test_an_entity_bomb_is_refused(files):
    names = ["a", *(f"a{i}" for i in range(1, 12)), "x"]
    bomb = '<!ENTITY a "boom ">' + "".join(
        f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in pairwise(names)
    )
    tracemalloc.start()
    with pytest.raises(InputError, match=mentions("test.data.xml", "XML")):
        list(with_entity(files, bomb))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6


@pytest.mark.parametrize("kind", ["SYSTEM", "PUBLIC 'id'"])
def test_an_external_entity_is_not_read(files, tmp_path, kind):
    (tmp_path / "secret.txt").write_text("secret")
    with pytest.raises(InputError, match=mentions("test.data.xml", "XML", "x")) as caught:
        list(with_entity(files, f'<!ENTITY x {kind} "{(tmp_path / "secret.txt").as_uri()}">'))
    assert "secret" not in str(caught.value)


def test_an_external_document_type_is_not_read(files, tmp_path):
    (tmp_path / "corpus.dtd").write_text('<!ENTITY x "secret">')
    text = files["test"].read_text().replace(">The<", ">&x;<", 1)
    files["test"].write_text(text.replace("<corpus", '<!DOCTYPE corpus SYSTEM "corpus.dtd">\n<corpus', 1))
    with pytest.raises(InputError, match=mentions("test.data.xml", "XML")):
        list(read_tagged(files["test"], files["keys"]))


def test_xml_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "test.xml").symlink_to("/proc/self/mem")
    (tmp_path / "keys.txt").write_text("d0.s0.t0 say%2:32:00::\n")
    with pytest.raises(InputError, match=mentions("test.xml")):
        list(read_tagged(tmp_path / "test.xml", tmp_path / "keys.txt"))


def test_deeply_nested_xml_is_harmless(files):
    files["test"].write_text("<corpus>" + "<text>" * 200_000 + "</text>" * 200_000 + "</corpus>")
    files["keys"].write_text("")
    assert list(read_tagged(files["test"], files["keys"])) == []


def test_long_xml_needs_little_memory(files):
    sentence = '<sentence id="s"><wf lemma="x" pos="X">word</wf></sentence>\n'
    files["test"].write_text(f"<corpus>{sentence * 100_000}</corpus>")
    files["keys"].write_text("")
    tracemalloc.start()
    assert sum(1 for _ in read_tagged(files["test"], files["keys"])) == 100_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6


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


def test_xml_needs_keys_and_json_lines_have_none(files):
    with pytest.raises(ConfigError, match=mentions("test.data.xml", "keys")):
        read_tagged(files["test"])
    with pytest.raises(ConfigError, match=mentions("train.jsonl", "keys", files["keys"])):
        read_tagged(files["train"], files["keys"])


def test_lemmas_are_normalized_to_the_form_of_wordnet(tmp_path):
    xml, keys = as_xml([[("Took part", "Take part", "VERB", [TAKE_PART])]])
    (tmp_path / "a.xml").write_text(xml)
    (tmp_path / "a.txt").write_text(keys)
    (sentence,) = read_tagged(tmp_path / "a.xml", tmp_path / "a.txt")
    assert sentence.words[0].lemma == ("take_part", "VERB")
    assert sentence.tokens == ["Took", "part"]
