"""The XML of the unified evaluation framework for word senses, read as a stream, and its file of keys."""

from collections.abc import Iterator
from pathlib import Path
from xml.parsers import expat  # not ElementTree: expat knows the line

from torchelmo.analysis.senses import PARTS_OF_SPEECH, Word
from torchelmo.analysis.tagged import TaggedSentence, TaggedWord, add_word
from torchelmo.errors import InputError
from torchelmo.files import open_bytes, read_lines
from torchelmo.tasks.columns import malformed

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
