"""The unfinished output of `embed_file`: a folder OUT.partial from which an interrupted run is resumed.

settings.json   marks the folder as torchelmo's, and says what the run was started with
lines.jsonl     the text, split into tokens
layout.npz      the number of tokens of each line, the place of its vectors in the output, and its id
output          the output itself, which is renamed to OUT when it is complete
finished        a copy in another format, if the output cannot be filled in place
journal.jsonl   how many lines are written and safe, with a checksum of each part
lock            held by the process that writes here
"""

import hashlib
import io
import itertools
import json
import os
import zipfile
import zlib
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchelmo.bulk.outputs import Array, Line, Names, Output
from torchelmo.errors import TorchelmoError, WrongCallError, short_repr
from torchelmo.files import flush_to_disk, os_errors_as_output_error, parse_json
from torchelmo.text.tokenize import Token
from torchelmo.unfinished import Unfinished, compare_settings

KIND = "embed"
_FILES = ("journal.jsonl", "finished", "output", "layout.npz", "lines.jsonl")


class PartialOutput(Unfinished):
    """An unfinished output: `read_text`, then `lay_out`, then `append` and `commit`, then `finish`.

    Args:
        out: The output file; the folder is OUT.partial.
        settings: Everything that determines the numbers. A run is resumed only with the settings it was started with.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(out, KIND, settings, _FILES)
        self.path = self.folder / "output"
        self._n_written = 0
        self._checksum = 0  # of the records since the last commit
        self.counts: Array = np.zeros(0, dtype=np.int64)  # (n_lines,): tokens
        self._places: Array = self.counts  # (n_lines,): the start of the record of each line

    def start(self, lines: Iterator[Line], output: Output) -> None:
        """Start from the beginning: store the tokens, lay out the output, and record the settings."""
        self.clear()
        self.write_card(complete=False)
        with os_errors_as_output_error(self.folder):
            counts, digest, ids, ends = array("q"), hashlib.sha256(), bytearray(), array("q")
            with open(self.folder / "lines.jsonl", "wb") as stream:
                for line in lines:
                    record = _encode_line(line)
                    stream.write(record)
                    digest.update(text_bytes(line.text, line.id))
                    counts.append(sum(map(len, line.sentences)))
                    if line.id is not None:
                        ids += line.id.encode("utf-8")
                        ends.append(len(ids))
            self.counts = np.array(counts, dtype=np.int64)
            output.names = Names(len(counts), bytes(ids), ends)
            output.settings["text_sha256"] = digest.hexdigest()
        with os_errors_as_output_error(self.out):
            self._places = output.create(self.path, self.lines, self.counts)
            ids_array = np.frombuffer(output.names.text, dtype=np.uint8)
            arrays = {"counts": self.counts, "places": self._places, "ids": ids_array, "ends": output.names.ends}
            np.savez(self.folder / "layout.npz", allow_pickle=False, **arrays)
            for name in ("lines.jsonl", "output", "layout.npz"):
                flush_to_disk(self.folder / name)
            content = {
                "complete": True,
                "text_sha256": digest.hexdigest(),
                "layout_sha256": hashlib.sha256((self.folder / "layout.npz").read_bytes()).hexdigest(),
                "laid_out": self._checksum_laid_out(output, self.path.stat().st_size),
                "settings": self.settings,
            }
        self.write_card(**content)
        self._open()

    def resume(self, lines: Iterator[Line], output: Output) -> bool:
        """Continue an interrupted run; return whether there is one to continue.

        Raises:
            WrongCallError: The run was started with other settings or another text.
            OutputError: A file in the folder is damaged.
        """
        card = self.read_card()
        if card is None or not card.get("complete"):
            return False
        compare_settings(card.get("settings"), self.settings, self.folder)
        self._check_files()
        self._compare_text(lines, card.get("text_sha256"), output)
        self._read_layout(card, output)
        self._open()
        self._verify_records(output)
        return True

    def lines(self, first: int = 0) -> Iterator[Line]:
        """Read the lines of the text with their tokens, from line number `first`."""
        with open(self.folder / "lines.jsonl", "rb") as stream:
            for number, record in enumerate(stream):
                if number >= first:
                    yield _decode_line(record)

    def missing_bytes(self, output: Output) -> int:
        """Return how many bytes the output still needs on the disk."""
        status = os.stat(self.path)
        end = int(self._places[-1]) + output.record_size(len(self.counts) - 1, int(self.counts[-1]))
        return output.copies * max(end, status.st_size) - status.st_blocks * 512

    def append(self, record: bytes) -> None:
        """Write the record of the next line."""
        with os_errors_as_output_error(self.out):
            _write_at(self._output, record, int(self._places[self._n_written]))
        self._checksum = zlib.crc32(record, self._checksum)
        self._n_written += 1

    def commit(self) -> None:
        """Make everything that was written safe: it survives a kill or a power cut."""
        with os_errors_as_output_error(self.out):
            os.fsync(self._output)
            entry = json.dumps({"lines": self._n_written, "checksum": self._checksum})
            os.write(self._journal, f"{entry}\n".encode())
            os.fsync(self._journal)
        self.n_committed, self._checksum = self._n_written, 0

    def finish(self, output: Output) -> None:
        """Complete the output, rename it to OUT and remove the folder."""
        with os_errors_as_output_error(self.out):
            output.finish(self.path, self.lines, self.counts, self._places)
        self.publish("output")

    def _open(self) -> None:
        with os_errors_as_output_error(self.folder):
            self._output = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            self._stack.callback(os.close, self._output)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._journal = os.open(self.folder / "journal.jsonl", flags, 0o666)
            self._stack.callback(os.close, self._journal)

    def _check_files(self) -> None:
        """Check that all files are regular files: a pipe would block, and a link may lead to a file of someone else."""
        for name in ("lines.jsonl", "layout.npz", "output", "journal.jsonl"):
            path = self.folder / name
            if name == "journal.jsonl" and not os.path.lexists(path):
                continue  # the process was killed just before it was created
            if path.is_symlink() or not path.is_file():
                raise self.damaged(f"{name}: expected a regular file")

    def _read_layout(self, card: Mapping[str, Any], output: Output) -> None:
        """Read the places of the vectors, and check that the output still is as it was laid out."""
        try:
            content = (self.folder / "layout.npz").read_bytes()
            if hashlib.sha256(content).hexdigest() != card.get("layout_sha256"):
                raise self.damaged("layout.npz: the checksum is wrong")
            layout = np.load(io.BytesIO(content), allow_pickle=False)
            self.counts, self._places = layout["counts"], layout["places"]
            output.names = Names(len(self.counts), layout["ids"].tobytes(), layout["ends"])
            size = self.path.stat().st_size if card["laid_out"]["size"] else 0  # 0: the file grows with its records
            laid_out = self._checksum_laid_out(output, size)
        except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile) as error:
            raise self.damaged(f"its layout cannot be read ({error})") from error
        if laid_out != card["laid_out"]:
            raise self.damaged("output: the checksum of everything but the vectors is wrong")

    def _checksum_laid_out(self, output: Output, size: int) -> dict[str, int]:
        """Return the size of the output as it was laid out, and the checksum of everything but the records."""
        checksum = end = 0
        with open(self.path, "rb") as stream:
            for number in itertools.chain(np.argsort(self._places, kind="stable"), [None]):
                place = size if number is None else int(self._places[number])
                if end < place <= size:
                    checksum = zlib.crc32(_read_at(stream.fileno(), place - end, end), checksum)
                if number is not None:
                    end = max(end, place + output.record_size(int(number), int(self.counts[number])))
        return {"size": size, "checksum": checksum}

    def _compare_text(self, lines: Iterator[Line], digest: Any, output: Output) -> None:
        """Check that the text is the one that the run was started with, and that lines.jsonl is undamaged."""
        found = hashlib.sha256()
        with open(self.folder / "lines.jsonl", "rb") as stream:
            for number, line in enumerate(lines, 1):
                if stream.readline() != _encode_line(line):
                    raise self._other_text(f"line {number} is now {short_repr(line.text)}")
                found.update(text_bytes(line.text, line.id))
            if stream.readline():
                raise self._other_text("it had more lines")
        if found.hexdigest() != digest:
            raise self.damaged("settings.json: the checksum of the text is wrong")
        output.settings["text_sha256"] = digest

    def _other_text(self, difference: str) -> WrongCallError:
        return WrongCallError(
            f"{self.folder}: was started with another text: {difference}. Resume with the same text, or start again "
            "with overwrite=True."
        )

    def _verify_records(self, output: Output) -> None:
        """Find how many lines are safe: those of all parts of the journal whose checksums are right."""
        valid = 0  # bytes of the journal
        with open(self.folder / "journal.jsonl", "rb") as journal:
            for entry in journal:
                if not self._verify_part(entry, output):
                    break
                valid += len(entry)
        os.ftruncate(self._journal, valid)
        self._n_written = self.n_committed

    def _verify_part(self, entry: bytes, output: Output) -> bool:
        try:
            part = parse_json(entry, "journal.jsonl")
            last, expected = part["lines"], part["checksum"]
            if not isinstance(last, int) or not entry.endswith(b"\n"):
                return False
            if not self.n_committed <= last <= len(self.counts):
                return False
        except (TorchelmoError, TypeError, KeyError):
            return False
        checksum = 0
        for number in range(self.n_committed, last):
            size = output.record_size(number, int(self.counts[number]))
            checksum = zlib.crc32(_read_at(self._output, size, int(self._places[number])), checksum)
        if checksum != expected:
            return False
        self.n_committed = last
        return True


def text_bytes(text: str, id: str | None) -> bytes:
    """Return the bytes of a line that go into the checksum of a text."""
    return (text if id is None else f"{id}\t{text}").encode("utf-8", "surrogatepass") + b"\n"


def _encode_line(line: Line) -> bytes:
    spans = [[[token.start, token.end] for token in sentence] for sentence in line.sentences]
    record = [line.text, spans] if line.id is None else [line.text, spans, line.id]
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _decode_line(record: bytes) -> Line:
    text, spans, *id = json.loads(record)
    return Line(text, [[Token(text[start:end], start, end) for start, end in sentence] for sentence in spans], *id)


def _write_at(descriptor: int, data: bytes, place: int) -> None:
    view = memoryview(data)
    while view:
        n_written = os.pwrite(descriptor, view, place)
        view, place = view[n_written:], place + n_written


def _read_at(descriptor: int, size: int, place: int) -> bytes:
    parts = []
    while size > 0 and (part := os.pread(descriptor, size, place)):
        parts.append(part)
        size, place = size - len(part), place + len(part)
    return b"".join(parts)
