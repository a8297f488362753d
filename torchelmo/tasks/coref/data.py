"""Documents with coreference clusters, and files with the columns of the CoNLL-2012 shared task.

The columns are document, part, index, word, …, speaker (the tenth), …, clusters (the last). A mention of cluster 7
starts with "(7" and ends with "7)", or is "(7)" if it has one token; "|" separates several.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from torchelmo.errors import InputError, MissingFileError, short_repr, shorten
from torchelmo.files import atomic_write, read_lines
from torchelmo.text.places import Place, TextData
from torchelmo.text.reading import malformed

_log = logging.getLogger(__name__)
_BEGIN = re.compile(r"#begin document \((.*)\)(?:; part (\S+))?\s*")
_PART = re.compile(r"(\(?)([^()|]+)(\)?)")
_EMPTY_CELLS = ("", "-", "_", "*")
_WORD, _SPEAKER = 3, 9
_N_COLUMNS = 12  # with a speaker; some files have only the columns up to the word, and the clusters
_SUFFIXES = ("conll", "conll.gz", "conll.bz2", "conll.xz")
_FORMAT = (
    "the columns of CoNLL-2012 between '#begin document (name); part 000' and '#end document': document, part, index, "
    "word, …, clusters such as (7, 7) or (7)."
)


class Mention(NamedTuple):
    """The tokens from `start` up to, but not including, `end`, counted from the start of the document."""

    start: int
    end: int


class Document(NamedTuple):
    """A document, or a part of one."""

    name: str
    part: str
    sentences: list[list[str]]  # none of them empty
    speakers: list[str]  # of every token of the document; empty if unknown
    genre: str  # "bn" for "bn/abc/00/abc_0001"; "" if the name has no "/"
    clusters: list[list[Mention]] | None  # sorted by first mention, mentions sorted; None if to be predicted
    places: list[Place | None] | None = None  # of every sentence in a text to predict


@dataclass(frozen=True)
class CorefData(TextData):
    """[data]: the tokenization of text to predict."""


def sentence_bounds(sentences: Sequence[Sequence[str]]) -> list[int]:
    """Return the index of the first token of every sentence, and the number of tokens.

    >>> sentence_bounds([["He", "slept", "."], ["Why", "?"]])
    [0, 3, 5]
    """
    return list(accumulate((len(sentence) for sentence in sentences), initial=0))


def sort_clusters(clusters: Iterable[Iterable[Mention]]) -> list[list[Mention]]:
    """Return the clusters sorted by their first mention, each with sorted mentions."""
    return sorted(sorted(cluster) for cluster in clusters)


def crop(document: Document, first: int, n_sentences: int) -> Document:
    """Return the part of a document from sentence `first`, of `n_sentences`, with the mentions inside it."""
    bounds = sentence_bounds(document.sentences)
    sentences = document.sentences[first : first + n_sentences]
    start, end = bounds[first], bounds[first + len(sentences)]
    clusters = None
    if document.clusters is not None:
        inside = (
            [Mention(m.start - start, m.end - start) for m in cluster if start <= m.start and m.end <= end]
            for cluster in document.clusters
        )
        clusters = [cluster for cluster in inside if cluster]
    return document._replace(sentences=sentences, speakers=document.speakers[start:end], clusters=clusters)


def read_documents(path: str | Path) -> list[Document]:
    """Read all documents of a file, or of all files of a folder whose names end in "conll", plain or compressed.

    Raises:
        InputError: A line is malformed.
        MissingFileError: There is no such file.
    """
    path = Path(path)
    if not path.is_dir():
        return list(_read_file(path))
    files = sorted(file for file in path.rglob("*") if file.name.endswith(_SUFFIXES) and file.is_file())
    if not files:
        raise MissingFileError(f"{path}: expected files whose names end in conll, found none. Check the folder.")
    return [document for file in files for document in _read_file(file)]


def write_documents(path: str | Path, documents: Iterable[Document]) -> None:
    """Write documents in columns separated by tabs, for `read_documents` and the reference scorer."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:
        for document in documents:
            stream.writelines(f"{line}\n" for line in document_lines(document))


def document_lines(document: Document) -> Iterator[str]:
    """Yield the lines of one document, from #begin to #end."""
    cells = _cells(document.clusters or [], sum(map(len, document.sentences)), f"{document.name}, part {document.part}")
    place = 0
    yield f"#begin document ({document.name}); part {document.part}"
    for sentence in document.sentences:
        for index, word in enumerate(sentence):
            speaker = document.speakers[place] if document.speakers else "-"
            row = [document.name, document.part, str(index), word, *["-"] * 5, speaker or "-", "*", cells[place] or "-"]
            yield "\t".join(row)
            place += 1
        yield ""
    yield "#end document"


def _read_file(path: Path) -> Iterator[Document]:
    draft: _Draft | None = None
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        if line.startswith("#begin document"):
            if draft is not None:
                raise malformed(
                    path, number, f"#end document for the #begin on line {draft.line}", short_repr(line), _FORMAT
                )
            match = _BEGIN.fullmatch(line)
            if match is None:
                raise malformed(path, number, "'#begin document (name); part 000'", short_repr(line), _FORMAT)
            draft = _Draft(path, number, match[1], match[2] or "0")
        elif draft is None:
            if line.strip() and not line.startswith("#"):
                raise malformed(path, number, "'#begin document (name); part 000' first", short_repr(line), _FORMAT)
        elif line.startswith("#end document"):
            yield draft.finish()
            draft = None
        elif not line.strip():
            draft.end_sentence()
        elif not line.startswith("#"):
            draft.add(number, line)
    if draft is not None:
        raise malformed(path, number, f"'#end document' for the #begin on line {draft.line}", "the end of the file")


class _OpenMention(NamedTuple):
    start: int
    line: int


class _Draft:
    """A document while its lines are read."""

    def __init__(self, path: Path, line: int, name: str, part: str) -> None:
        self.path, self.line, self.name, self.part = path, line, name, part
        self.sentences: list[list[str]] = [[]]
        self.speakers: list[str] = []
        self.opened: dict[str, list[_OpenMention]] = {}
        self.clusters: dict[str, set[Mention]] = {}

    def end_sentence(self) -> None:
        if self.sentences[-1]:
            self.sentences.append([])

    def add(self, number: int, line: str) -> None:
        # The last column may be empty in files with tabs.
        row = [cell.strip(" ") for cell in line.split("\t")] if "\t" in line else [c for c in line.split(" ") if c]
        if len(row) <= _WORD + 1 or not row[_WORD]:
            expected = "at least 5 columns (document, part, index, word, …, clusters)"
            raise malformed(self.path, number, expected, f"{len(row)} in {short_repr(line)}", _FORMAT)
        speaker = row[_SPEAKER] if len(row) >= _N_COLUMNS else ""
        self._mark(number, row[-1])
        self.sentences[-1].append(row[_WORD].removeprefix("/") if row[_WORD] in ("/.", "/?") else row[_WORD])
        self.speakers.append("" if speaker in _EMPTY_CELLS else speaker)

    def finish(self) -> Document:
        for cluster, opened in self.opened.items():
            if opened:
                name = shorten(cluster)
                expected = f"'{name})' later in the document for '({name}' on this line"
                raise malformed(self.path, opened[-1].line, expected, "none")
        sentences = [sentence for sentence in self.sentences if sentence]
        if not sentences:
            raise malformed(self.path, self.line, "a document with tokens", "an empty one")
        return Document(
            name=self.name,
            part=self.part,
            sentences=sentences,
            speakers=self.speakers if any(self.speakers) else [],
            genre=self.name.split("/")[0] if "/" in self.name else "",
            clusters=sort_clusters(self._merged_clusters()),
        )

    def _mark(self, number: int, cell: str) -> None:
        place = len(self.speakers)
        for part in () if cell in _EMPTY_CELLS else cell.split("|"):
            match = _PART.fullmatch(part)
            if match is None or not (match[1] or match[3]):
                raise malformed(
                    self.path, number, "clusters such as (7, 7) or (7), separated by |", short_repr(cell), _FORMAT
                )
            stack = self.opened.setdefault(match[2], [])
            if match[1]:
                stack.append(_OpenMention(place, number))
            if match[3]:
                if not stack:
                    raise malformed(self.path, number, f"'({shorten(match[2])}' before it is closed", short_repr(cell))
                self.clusters.setdefault(match[2], set()).add(Mention(stack.pop().start, place + 1))

    def _merged_clusters(self) -> list[set[Mention]]:
        """Merge clusters that share a mention, as in a few documents of CoNLL-2012."""
        of: dict[Mention, set[Mention]] = {}
        for name, cluster in self.clusters.items():
            for other in [of[mention] for mention in cluster if mention in of]:
                if other is not cluster:
                    where = f"{self.path}: line {self.line}"
                    _log.warning("%s: cluster %s shares a mention with another one: they are merged.", where, name)
                    cluster |= other
            of.update((mention, cluster) for mention in cluster)
        return list({id(cluster): cluster for cluster in of.values()}.values())


def _cells(clusters: Sequence[Sequence[Mention]], n_tokens: int, where: str) -> list[str]:
    """Return the coreference column: one cell of brackets per token."""
    closing: list[list[str]] = [[] for _ in range(n_tokens)]
    opening: list[list[str]] = [[] for _ in range(n_tokens)]
    for number, cluster in enumerate(clusters):
        around: list[Mention] = []  # mentions that contain the start of the next one
        for mention in sorted(cluster, key=lambda m: (m.start, -m.end)):
            while around and around[-1].end <= mention.start + 1:
                around.pop()
            if around and around[-1].end < mention.end:
                raise InputError(
                    f"{where}: expected mentions of one cluster that nest, found {tuple(around[-1])} crossing "
                    f"{tuple(mention)}. Brackets cannot represent that: remove one of the two."
                )
            around.append(mention)
            if mention.end - mention.start == 1:
                opening[mention.start].append(f"({number})")
            else:
                opening[mention.start].append(f"({number}")
                closing[mention.end - 1].append(f"{number})")
    # Mentions that end here come before those that start here: "(7" … "(7|7)" would close the wrong one.
    return ["|".join([*ends, *begins]) for ends, begins in zip(closing, opening)]
