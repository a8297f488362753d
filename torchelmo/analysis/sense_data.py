"""Text whose words are tagged with senses, as JSON lines or as the XML of the unified evaluation framework.

JSON lines  {"tok": ["He", "took_part"], "senses": {"1": ["take_part%2:41:00::"]}}, senses by the place of the token
XML         <instance id="d0.s0.t0" lemma="take_part" pos="VERB">took part</instance> among <wf>, keys in a second file

Words of several parts ("took_part", "took part") are split: no biLM has read them in one piece.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchelmo.analysis.sense_xml import read_xml
from torchelmo.analysis.senses import split_keys, word_of
from torchelmo.analysis.tagged import TaggedSentence, TaggedWord, add_word
from torchelmo.errors import ConfigError
from torchelmo.files import read_lines
from torchelmo.tasks.columns import malformed
from torchelmo.tasks.json_lines import parse_object


def read_tagged(path: str | Path, keys: str | Path | None = None) -> Iterator[TaggedSentence]:
    """The sentences of a plain or compressed file; XML (by its name) needs the file of its `keys` too."""
    is_xml = ".xml" in Path(path).suffixes
    if is_xml != (keys is not None):
        wanted = "a file of keys beside the XML, got none" if is_xml else f"no keys beside JSON lines, got {keys}"
        raise ConfigError(f"{path}: expected {wanted}.")
    return _read_json_lines(path) if keys is None else read_xml(path, keys)


def _read_json_lines(path: str | Path) -> Iterator[TaggedSentence]:
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            yield _sentence(parse_object(line, path, number), path, number)


def _sentence(content: dict[str, Any], path: str | Path, number: int) -> TaggedSentence:
    words, tagged = content.get("tok"), content.get("senses")
    if not isinstance(words, list) or not all(isinstance(word, str) and word.strip() for word in words):
        raise malformed(path, number, 'a list of words under "tok"', f"{words!r:.60}")
    if not isinstance(tagged, dict):
        raise malformed(path, number, 'an object under "senses"', f"{tagged!r:.60}")
    tokens: list[str] = []
    spans = [add_word(tokens, word) for word in words]
    sentence = TaggedSentence(tokens, [])
    for place, senses in tagged.items():
        if not (place.isdecimal() and int(place) < len(words)):
            raise malformed(path, number, f'places from 0 to {len(words) - 1} under "senses"', repr(place))
        if not isinstance(senses, list) or not senses or not all(isinstance(key, str) for key in senses):
            raise malformed(path, number, f"a list of sense keys for place {place}", f"{senses!r:.60}")
        keys = [key for some in senses for key in split_keys(some)]
        tagged_as = [word_of(key) for key in keys]
        if tagged_as[0] is None or None in tagged_as:
            raise malformed(path, number, "sense keys such as say%2:32:00::", f"{senses!r:.60}")
        sentence.words.append(TaggedWord(*spans[int(place)], tagged_as[0], tuple(keys)))
    return sentence
