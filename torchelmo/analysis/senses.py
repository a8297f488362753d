"""Text whose words are tagged with senses, as JSON lines or as the XML of the unified evaluation framework.

JSON lines  {"tok": ["He", "took_part"], "senses": {"1": ["take_part%2:41:00::"]}}, senses by the place of the token
XML         <instance id="d0.s0.t0" lemma="take_part" pos="VERB">took part</instance> among <wf>, keys in a second file

Words of several parts ("took_part", "took part") are split: no biLM has read them in one piece.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from xml.parsers import expat  # not ElementTree: expat knows the line

from torchelmo.errors import ConfigError, InputError
from torchelmo.files import open_bytes, read_lines
from torchelmo.text.reading import malformed, parse_object

Word: TypeAlias = tuple[str, str]  # lemma with _ for spaces, and part of speech: NOUN, VERB, ADJ or ADV
Senses: TypeAlias = Mapping[Word, Sequence[str]]  # the sense keys of each word in WordNet's order
PARTS_OF_SPEECH = ("NOUN", "VERB", "ADJ", "ADV")
# lemma%ss_type:lex_filenum:lex_id:head_word:head_id
_KEY = re.compile(r"(.+)%([1-5]):\d\d:\d\d:[^:\s]*:(?:\d\d)?")
_TYPES = dict(zip("12345", [*PARTS_OF_SPEECH, "ADJ"]))  # 5 is an adjective that clusters around another


def word_of(key: str) -> Word | None:
    """The word that a sense key belongs to; None if it is no sense key.

    >>> word_of("over-all%5:00:00:gross:00")
    ('over-all', 'ADJ')
    """
    found = _KEY.fullmatch(key)
    return None if found is None else (found[1], _TYPES[found[2]])


def split_keys(keys: str) -> list[str]:
    """SemCor writes the senses of a word that has several as one key.

    >>> split_keys("year%1:28:02::;1:28:01::")
    ['year%1:28:02::', 'year%1:28:01::']
    """
    lemma, sign, senses = keys.rpartition("%")
    return [lemma + sign + sense for sense in senses.split(";")]


def read_senses(path: str | Path) -> Senses:
    """index.sense, whose lines are: sense key, synset offset, sense number, tag count."""
    numbered: dict[Word, list[tuple[int, str]]] = {}
    for line_number, line in enumerate(read_lines(path), 1):
        columns = line.split()
        if not columns:
            continue
        word = word_of(columns[0])
        if word is None or len(columns) != 4 or not columns[2].isdecimal():
            raise malformed(path, line_number, "a sense key, an offset, a sense number and a count", repr(line[:60]))
        numbered.setdefault(word, []).append((int(columns[2]), columns[0]))
    if not numbered:
        raise InputError(f"{path}: expected the index.sense of WordNet, found no sense in it.")
    return {word: [key for _, key in sorted(senses)] for word, senses in numbered.items()}


class TaggedWord(NamedTuple):
    start: int  # it is tokens[start:end] of its sentence
    end: int
    word: Word  # lemma and part of speech
    senses: tuple[str, ...]  # its sense keys: where there are several, each of them is right


class TaggedSentence(NamedTuple):
    tokens: list[str]
    words: list[TaggedWord]


def add_word(tokens: list[str], text: str) -> tuple[int, int]:
    """Append the parts of a word; say where they stand.

    >>> tokens = ["He"]
    >>> add_word(tokens, "took_part"), tokens
    ((1, 3), ['He', 'took', 'part'])
    """
    start = len(tokens)
    tokens += text.replace("_", " ").split() or [text]
    return start, len(tokens)


_CHUNK = 1 << 16  # bytes read at once


def read_xml(path: str | Path, keys: str | Path) -> Iterator[TaggedSentence]:
    """The sentences; every instance must have its keys, and every line of keys its instance."""
    reader = _Reader(path, keys)
    with open_bytes(path) as stream:
        while chunk := stream.read(_CHUNK):
            yield from reader.feed(chunk)
    yield from reader.feed(b"", end=True)
    left = reader.keys.keys()
    if left:
        raise InputError(
            f"{keys}: expected the keys of the instances in {path}, found {len(left)} that it does not have, "
            f"such as {next(iter(left))!r}. Give the two files of one data set."
        )


def read_keys(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Instance -> its sense keys, one instance on a line."""
    found: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(read_lines(path), 1):
        instance, *senses = line.split() or [""]
        if not instance:
            continue
        if not senses:
            raise malformed(path, number, "an instance and its sense keys", repr(line[:60]))
        if instance in found:
            raise malformed(path, number, "every instance once", f"{instance!r} again")
        found[instance] = tuple(senses)
    return found


class _Reader:
    """Takes the bytes of the file, gives the sentences that are complete."""

    def __init__(self, path: str | Path, keys: str | Path) -> None:
        self.path, self.keys_path = path, keys
        self.keys = read_keys(keys)  # of the instances that are still to come
        self._sentence: TaggedSentence | None = None
        self._text: list[str] | None = None  # of the word that is open
        self._instance: tuple[Word, tuple[str, ...]] | None = None  # if that word is one
        self._ready: list[TaggedSentence] = []
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters

    def feed(self, chunk: bytes, end: bool = False) -> list[TaggedSentence]:
        try:
            self._parser.Parse(chunk, end)
        except expat.ExpatError as error:
            found = f"something else ({expat.errors.messages[error.code]})"
            raise malformed(self.path, error.lineno, "well-formed XML", found) from error
        ready, self._ready = self._ready, []
        return ready

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self._text is not None or (self._sentence is not None and name not in ("wf", "instance")):
            raise self._malformed("only <wf> and <instance> in a sentence, with text in them", f"<{name}>")
        if name == "sentence":
            self._sentence = TaggedSentence([], [])
        elif name in ("wf", "instance"):
            if self._sentence is None:
                raise self._malformed(f"<{name}> in a sentence", "it outside")
            self._text = []
            if name == "instance":
                self._instance = self._described(attributes)

    def _described(self, attributes: dict[str, str]) -> tuple[Word, tuple[str, ...]]:
        for name in ("id", "lemma", "pos"):
            if not attributes.get(name):
                raise self._malformed("an instance with id, lemma and pos", f"one without {name}")
        if attributes["pos"] not in PARTS_OF_SPEECH:
            raise self._malformed(f"a pos of {', '.join(PARTS_OF_SPEECH)}", repr(attributes["pos"]))
        senses = self.keys.pop(attributes["id"], None)
        if senses is None:
            raise self._malformed(
                f"instances that have their keys in {self.keys_path}, each once", repr(attributes["id"])
            )
        return (attributes["lemma"].lower().replace(" ", "_"), attributes["pos"]), senses

    def _characters(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)

    def _end(self, name: str) -> None:
        if self._sentence is None:
            return
        if name == "sentence":
            self._ready.append(self._sentence)
            self._sentence = None
            return
        text = "".join(self._text or [])
        if not text.strip():
            raise self._malformed(f"a word in <{name}>", "no text")
        start, end = add_word(self._sentence.tokens, text)
        if self._instance is not None:
            self._sentence.words.append(TaggedWord(start, end, *self._instance))
        self._text = self._instance = None

    def _malformed(self, expected: str, found: str) -> InputError:
        return malformed(self.path, self._parser.CurrentLineNumber, expected, found)


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
