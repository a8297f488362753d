"""Read text tagged with word senses, and the sense inventory of WordNet.

JSON lines  {"tok": ["He", "took_part"], "senses": {"1": ["take_part%2:41:00::"]}}: sense keys by token position
XML         <instance id="d0.s0.t0" lemma="take_part" pos="VERB">took part</instance> and <wf> in <sentence>, as in
            the unified evaluation framework; a second file has the sense keys of every instance id

Multiword expressions ("took_part", "took part") are split into tokens, because a biLM reads single words.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from xml.etree.ElementTree import Element, ParseError, iterparse

from torchelmo.errors import ConfigError, InputError, TorchelmoError
from torchelmo.files import open_bytes, read_lines
from torchelmo.text.reading import malformed, parse_object

Lemma: TypeAlias = tuple[str, str]  # a lemma with _ for spaces, and its part of speech
SenseInventory: TypeAlias = Mapping[Lemma, Sequence[str]]  # the sense keys of each lemma in WordNet's order
PARTS_OF_SPEECH = ("NOUN", "VERB", "ADJ", "ADV")
# lemma%ss_type:lex_filenum:lex_id:head_word:head_id
_SENSE_KEY = re.compile(r"(.+)%([1-5]):\d\d:\d\d:[^:\s]*:(?:\d\d)?")
_PART_OF_SPEECH = dict(zip("12345", [*PARTS_OF_SPEECH, "ADJ"]))  # 5 is WordNet's adjective satellite
_SENSE_NUMBER = re.compile(r"\d{1,9}")
_WORD_TAGS = ("wf", "instance")


class TaggedWord(NamedTuple):
    """A word with its senses. Its tokens are tokens[start:end] of the sentence."""

    start: int
    end: int
    lemma: Lemma
    senses: tuple[str, ...]  # sense keys; an answer is correct if it is one of them


class TaggedSentence(NamedTuple):
    """A sentence and those of its words that are tagged with senses."""

    tokens: list[str]
    words: list[TaggedWord]


def read_senses(path: str | Path) -> SenseInventory:
    """Read the sense inventory of WordNet, index.sense.

    Args:
        path: A plain or compressed file. Each line has a sense key, a synset offset, a sense number and a tag count.

    Returns:
        The sense keys of every (lemma, part of speech), ordered by sense number.

    Raises:
        InputError: A line has another form, or the file has no senses.
    """
    numbered: dict[Lemma, list[tuple[int, str]]] = {}
    for line_number, line in enumerate(read_lines(path), 1):
        columns = line.split()
        if not columns:
            continue
        lemma = parse_sense_key(columns[0])
        if lemma is None or len(columns) != 4 or not _SENSE_NUMBER.fullmatch(columns[2]):
            raise malformed(path, line_number, "a sense key, an offset, a sense number and a count", repr(line[:60]))
        numbered.setdefault(lemma, []).append((int(columns[2]), columns[0]))
    if not numbered:
        raise InputError(f"{path}: expected the index.sense of WordNet, found no senses.")
    return {lemma: [key for _, key in sorted(senses)] for lemma, senses in numbered.items()}


def read_tagged(path: str | Path, keys: str | Path | None = None) -> Iterator[TaggedSentence]:
    """Read sentences whose words are tagged with senses, from JSON lines or XML.

    Args:
        path: A plain or compressed file: XML if its name contains .xml, JSON lines otherwise.
        keys: The file with the sense keys of the XML's instances; None for JSON lines.

    Returns:
        An iterator over the sentences. The file is read while the iterator advances.

    Raises:
        ConfigError: `keys` is missing for XML, or given for JSON lines.
        InputError: The file is malformed. The message names the line (JSON lines) or the sentence (XML).
    """
    is_xml = ".xml" in Path(path).suffixes
    if is_xml and keys is None:
        raise ConfigError(f"{path}: expected a second file with the sense keys of the XML, got none. Pass keys.")
    if not is_xml and keys is not None:
        raise ConfigError(f"{path}: expected no keys with JSON lines, which contain the senses; got {keys}.")
    return _read_json_lines(path) if keys is None else _read_xml(path, keys)


def parse_sense_key(key: str) -> Lemma | None:
    """Return the lemma and part of speech of a sense key, or None if it is not a sense key.

    >>> parse_sense_key("over-all%5:00:00:gross:00")
    ('over-all', 'ADJ')
    """
    found = _SENSE_KEY.fullmatch(key)
    return None if found is None else (found[1], _PART_OF_SPEECH[found[2]])


def _read_json_lines(path: str | Path) -> Iterator[TaggedSentence]:
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            yield _sentence_of_json(parse_object(line, path, number), path, number)


def _sentence_of_json(content: dict[str, Any], path: str | Path, number: int) -> TaggedSentence:
    words, senses_by_position = content.get("tok"), content.get("senses")
    if not isinstance(words, list) or not all(isinstance(word, str) and word.strip() for word in words):
        raise malformed(path, number, 'a list of words under "tok"', f"{words!r:.60}")
    if not isinstance(senses_by_position, dict):
        raise malformed(path, number, 'an object under "senses"', f"{senses_by_position!r:.60}")
    sentence = TaggedSentence([], [])
    spans = {str(i): _append_word(sentence.tokens, word) for i, word in enumerate(words)}
    for position, senses in senses_by_position.items():
        if position not in spans:
            raise malformed(path, number, f'positions from 0 to {len(words) - 1} under "senses"', f"{position!r:.60}")
        if not isinstance(senses, list) or not senses or not all(isinstance(key, str) for key in senses):
            raise malformed(path, number, f"a list of sense keys for position {position}", f"{senses!r:.60}")
        keys = [key for joined in senses for key in _split_keys(joined)]
        lemmas = [parse_sense_key(key) for key in keys]
        if lemmas[0] is None or None in lemmas:
            raise malformed(path, number, "sense keys such as say%2:32:00::", f"{senses!r:.60}")
        sentence.words.append(TaggedWord(*spans[position], lemmas[0], tuple(keys)))
    return sentence


def _read_xml(path: str | Path, keys_path: str | Path) -> Iterator[TaggedSentence]:
    keys = _read_keys(keys_path)
    parents: list[Element] = []
    where = "before the first sentence"
    for event, element in _parse_xml(path):
        if event == "start":
            parent = parents[-1].tag if parents else "the file"
            # Words are children of a sentence and contain only text. All other elements are outside sentences.
            if (element.tag in _WORD_TAGS) != (parent == "sentence") or parent in _WORD_TAGS:
                expected = "<wf> and <instance> with text in every <sentence>, and nothing else"
                raise _malformed_xml(path, where, expected, f"<{element.tag}> in <{parent}>")
            if element.tag == "sentence":
                where = f"sentence {element.get('id')!r}"
            parents.append(element)
            continue
        parents.pop()
        if element.tag == "sentence":
            yield _sentence_of_xml(element, keys, path, keys_path, where)
            where = f"after {where}"
        if parents and element.tag not in _WORD_TAGS:
            parents[-1].remove(element)  # iterparse would keep the whole file in memory
    if keys:
        raise InputError(
            f"{keys_path}: expected the keys of the instances in {path}, found {len(keys)} that it does not have, "
            f"such as {next(iter(keys))!r}. Use the two files of one data set."
        )


def _parse_xml(path: str | Path) -> Iterator[tuple[str, Element]]:
    """Yield the start and the end of every element.

    Untrusted files are safe: expat limits the expansion of entities and loads no external ones.
    """
    with open_bytes(path) as stream:
        try:
            yield from iterparse(stream, ("start", "end"))
        except TorchelmoError:
            raise
        except (ParseError, LookupError, ValueError) as error:  # the last two: an encoding that Python does not have
            raise InputError(f"{path}: expected well-formed XML: {error}. Correct the file.") from error
        except OSError as error:
            if error.errno is None:  # damaged compression, which open_bytes reports
                raise
            raise InputError(f"{path}: could not be read ({error.strerror}).") from error


def _sentence_of_xml(
    element: Element, keys: dict[str, tuple[str, ...]], path: str | Path, keys_path: str | Path, where: str
) -> TaggedSentence:
    """Convert a <sentence>. The keys of its instances are removed from `keys`."""
    sentence = TaggedSentence([], [])
    for item in element:
        text = item.text or ""
        if not text.strip():
            raise _malformed_xml(path, where, f"a word in <{item.tag}>", "no text")
        span = _append_word(sentence.tokens, text)
        if item.tag == "wf":
            continue
        instance, lemma, pos = (item.get(name) for name in ("id", "lemma", "pos"))
        if not instance or not lemma or not pos:
            found = f"id {instance!r}, lemma {lemma!r}, pos {pos!r}"
            raise _malformed_xml(path, where, "an id, a lemma and a pos in every <instance>", found)
        if pos not in PARTS_OF_SPEECH:
            raise _malformed_xml(path, where, f"a pos of {', '.join(PARTS_OF_SPEECH)}", repr(pos))
        if instance not in keys:
            found = f"{instance!r}, which has no keys or appears twice"
            raise _malformed_xml(path, where, f"unique instances with keys in {keys_path}", found)
        senses = keys.pop(instance)
        sentence.words.append(TaggedWord(*span, (lemma.lower().replace(" ", "_"), pos), senses))
    return sentence


def _malformed_xml(path: str | Path, where: str, expected: str, found: str) -> InputError:
    return InputError(f"{path}: {where}: expected {expected}, found {found}. Correct the file.")


def _read_keys(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Read lines of an instance id and its sense keys."""
    found: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(read_lines(path), 1):
        instance, *senses = line.split() or [""]
        if not instance:
            continue
        if not senses:
            raise malformed(path, number, "an instance and its sense keys", repr(line[:60]))
        if instance in found:
            raise malformed(path, number, "unique instances", f"{instance!r} for the second time")
        found[instance] = tuple(senses)
    return found


def _split_keys(keys: str) -> list[str]:
    """Split a key that holds several senses of a word, as in SemCor.

    >>> _split_keys("year%1:28:02::;1:28:01::")
    ['year%1:28:02::', 'year%1:28:01::']
    """
    lemma, sign, senses = keys.rpartition("%")
    return [lemma + sign + sense for sense in senses.split(";")]


def _append_word(tokens: list[str], text: str) -> tuple[int, int]:
    """Append the parts of a word to `tokens`, and return their start and end.

    >>> tokens = ["He"]
    >>> _append_word(tokens, "took_part"), tokens
    ((1, 3), ['He', 'took', 'part'])
    """
    start = len(tokens)
    tokens += text.replace("_", " ").split() or [text]
    return start, len(tokens)
