"""Reading any compression, and writing all or nothing."""

import bz2
import errno
import gzip
import io
import lzma
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from facts import mentions

from torchelmo.errors import ConfigError, InputError, MissingFileError, OutputError, TorchelmoError, short_repr
from torchelmo.files import (
    atomic_write,
    content_hash,
    hold_lock,
    open_bytes,
    os_errors_as_output_error,
    read_json,
    read_lines,
    require_file,
)

COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
TEXT = "naïve\n\nbow and arrow\n日本\n"


@pytest.fixture(params=COMPRESS)
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def write_text(folder: Path, suffix: str, data: bytes) -> Path:
    path = folder / f"text.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](data))
    return path


# Reading


def test_lines_of_every_compression(suffix, tmp_path):
    path = write_text(tmp_path, suffix, TEXT.encode())
    assert list(read_lines(path)) == ["naïve", "", "bow and arrow", "日本"]
    assert list(read_lines(str(path))) == ["naïve", "", "bow and arrow", "日本"]


def test_invalid_utf8_names_line_and_column(suffix, tmp_path):
    path = write_text(tmp_path, suffix, b"good\nbad \xff here\n")
    lines = read_lines(path)
    assert next(lines) == "good"
    with pytest.raises(InputError, match=mentions(path.name, "line 2", "UTF-8", "0xff", "column 5", "iconv")):
        next(lines)


@pytest.mark.parametrize("cut", [1, 8, 20])
@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_a_file_that_is_cut_short(suffix, cut, tmp_path):
    path = write_text(tmp_path, suffix, TEXT.encode() * 50)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputError, match=mentions(path.name)):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_a_file_that_is_something_else(suffix, tmp_path):
    path = tmp_path / f"text.txt{suffix}"
    path.write_bytes(b"plain text, not compressed at all\n" * 3)
    with pytest.raises(InputError, match=mentions(path.name)):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_a_byte_changed_in_the_middle(suffix, tmp_path):
    path = write_text(tmp_path, suffix, os.urandom(3000).hex().encode())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match=mentions(path.name)):
        list(read_lines(path))


def test_byte_order_mark_and_line_ends(tmp_path):
    path = write_text(tmp_path, "", b"\xef\xbb\xbfone\r\ntwo\r\n\xef\xbb\xbfthree\rstill three\x85\xe2\x80\xa8")
    with pytest.raises(InputError, match="line 3"):  # a lone 0x85 is Latin-1
        list(read_lines(path))
    path.write_bytes("\ufeffone\r\ntwo\n\ufeffthree\rstill\u2028three\x0c".encode())
    assert list(read_lines(path)) == ["one", "two", "\ufeffthree\rstill\u2028three\x0c"]


def test_an_empty_file_has_no_lines(suffix, tmp_path):
    assert list(read_lines(write_text(tmp_path, suffix, b""))) == []


def test_a_last_line_without_an_end(tmp_path):
    assert list(read_lines(write_text(tmp_path, "", b"one\ntwo"))) == ["one", "two"]


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert list(read_lines("-")) == ["naïve", "", "bow and arrow", "日本"]


def test_invalid_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xfe")))
    with pytest.raises(InputError, match=mentions("line 1", "UTF-8", "0xfe", "column 1")):
        list(read_lines("-"))


def test_lines_are_read_as_they_are_asked_for(tmp_path):
    """A file of any size in constant memory: what follows has not been looked at yet."""
    lines = read_lines(write_text(tmp_path, "", b"one\n\xff\n"))
    assert next(lines) == "one"


def test_a_missing_file(tmp_path):
    with pytest.raises(MissingFileError, match=mentions("nowhere.txt")):
        list(read_lines(tmp_path / "nowhere.txt"))


def test_a_directory(tmp_path):
    with pytest.raises(MissingFileError, match=mentions(tmp_path)):
        list(read_lines(tmp_path))


def test_a_missing_file_is_an_os_error_of_python_too(tmp_path):
    with pytest.raises(FileNotFoundError):
        require_file(tmp_path / "nowhere")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = write_text(tmp_path, "", b"secret")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match=mentions(path.name)):
        list(read_lines(path))


def test_bytes(suffix, tmp_path):
    with open_bytes(write_text(tmp_path, suffix, TEXT.encode())) as stream:
        assert stream.read() == TEXT.encode()


def test_a_hash_is_that_of_the_content_and_the_names_in_a_folder(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / "a.conll").write_text("a\n")
    assert content_hash(one / "inner" / "a.conll") == content_hash(two / "inner" / "a.conll")
    assert content_hash(one) == content_hash(two)
    (two / "inner" / "a.conll").rename(two / "b.conll")
    assert content_hash(one) != content_hash(two)
    with pytest.raises(MissingFileError, match=mentions("gone")):
        content_hash(tmp_path / "gone")


# Writing


def test_writing_makes_folders_and_replaces(tmp_path):
    path = tmp_path / "new" / "folder" / "out.txt"
    for text in ("one", "two"):
        with atomic_write(path) as temporary:
            assert temporary.parent.parent == path.parent
            assert temporary.name == path.name
            temporary.write_text(text)
            assert not path.exists() or path.read_text() == "one"
        assert path.read_text() == text
        assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt, SystemExit, BrokenPipeError])
def test_a_failure_leaves_nothing_and_keeps_the_old_file(problem, tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old")

    def write() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half")
            raise problem

    with pytest.raises(problem):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_in_a_folder_leaves_nothing(tmp_path):
    def write() -> None:
        with atomic_write(tmp_path / "out") as temporary:
            temporary.mkdir()
            (temporary / "part").write_text("half")
            raise ValueError

    with pytest.raises(ValueError):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_can_be_written_whole(tmp_path):
    with atomic_write(tmp_path / "out") as temporary:
        temporary.mkdir()
        (temporary / "part").write_text("whole")
    assert (tmp_path / "out" / "part").read_text() == "whole"


def test_disk_full(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "out.txt"
    with (
        pytest.raises(OutputError, match=mentions("out.txt", os.strerror(errno.ENOSPC))),
        atomic_write(path) as temporary,
    ):
        temporary.write_text("all")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO])
def test_other_refusals_say_what_to_do(number, tmp_path, monkeypatch):
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refuse)
    with (
        pytest.raises(OutputError, match=mentions("out.txt", os.strerror(number))),
        atomic_write(tmp_path / "out.txt") as temporary,
    ):
        temporary.write_text("all")
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match=mentions(tmp_path / "file" / "out.txt")),
        atomic_write(tmp_path / "file" / "out.txt"),
    ):
        pytest.fail("there is no place to write to")


def test_a_folder_where_the_file_should_be(tmp_path):
    (tmp_path / "out").mkdir()
    with (
        pytest.raises(OutputError, match=mentions(tmp_path / "out", os.strerror(errno.EISDIR))),
        atomic_write(tmp_path / "out") as temporary,
    ):
        temporary.write_text("all")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_nothing_was_written_in_the_block(tmp_path):
    with pytest.raises(TorchelmoError, match=mentions("out.txt")), atomic_write(tmp_path / "out.txt"):
        pass


def test_errors_of_reading_pass_through_unchanged(tmp_path):
    with pytest.raises(MissingFileError, match=mentions("input.txt")), os_errors_as_output_error(tmp_path / "out.txt"):
        require_file(tmp_path / "input.txt")
    with pytest.raises(OutputError, match="^said already$"), os_errors_as_output_error(tmp_path / "out.txt"):
        raise OutputError("said already")


def test_errors_of_whoever_reads_are_not_taken_for_damage(suffix, tmp_path):
    path = write_text(tmp_path, suffix, b"text")
    with pytest.raises(OutputError, match="^elsewhere$"), open_bytes(path):
        raise OutputError("elsewhere")
    with pytest.raises(PermissionError), open_bytes(path):
        raise PermissionError(errno.EACCES, "no")


def test_files_are_as_readable_as_any_other_new_file(tmp_path):
    (tmp_path / "plain").touch()
    with atomic_write(tmp_path / "ours") as temporary:
        temporary.touch(mode=0o600)
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(
    "text", ["", "{", "9" * 5000, "[" * 100_000, "[" * 5000 + "]" * 5000, "[" * 100 + "]" * 100, "\ud800", "nul"]
)
def test_json_that_cannot_be_read_is_named(text, tmp_path):
    path = tmp_path / "card.json"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(ConfigError) as error:
        read_json(path, "a card")
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 500


def test_json_is_read_from_regular_files_of_bounded_size(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(MissingFileError, match=name):
            read_json(tmp_path / name, "a card")
    (tmp_path / "memory").symlink_to("/proc/self/mem")
    with pytest.raises(ConfigError, match="memory"):
        read_json(tmp_path / "memory", "a card")
    (tmp_path / "large").write_text("[" + " " * 1000 + "]")
    with pytest.raises(ConfigError, match="1,000"):
        read_json(tmp_path / "large", "a card", max_bytes=1000)
    assert read_json(tmp_path / "large", "a card") == []


def test_values_in_messages_are_short():
    for value in ("a" * 10**6, list(range(10**6)), {"a" * 1000: 1}, 10**5000, [[[[[[[[]]]]]]]]):
        assert len(short_repr(value)) <= 80


def test_a_failure_leaves_no_new_folder(tmp_path):
    (tmp_path / "old").mkdir()

    def write() -> None:
        with atomic_write(tmp_path / "old" / "new" / "folder" / "out") as temporary:
            temporary.write_text("half")
            raise ValueError

    with pytest.raises(ValueError):
        write()
    assert os.listdir(tmp_path) == ["old"]
    assert os.listdir(tmp_path / "old") == []


KILLED = """
import os, signal, sys
from torchelmo.files import atomic_write
with atomic_write(sys.argv[1]) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_run_removes_what_a_killed_one_left(tmp_path):
    path = tmp_path / "out.txt"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (leftover,) = tmp_path.iterdir()
    others = [f".out.txt.{os.getpid()}.tmp", leftover.name + ".mine", leftover.name.replace("out.txt", "out")]
    for name in others:
        (tmp_path / name).mkdir()
    running = re.sub(r"-\d+-", f"-{os.getpid()}-", leftover.name)  # as another thread of this process would name it
    (tmp_path / running).mkdir()
    with atomic_write(path) as temporary:
        temporary.write_text("whole")
    assert sorted(os.listdir(tmp_path)) == sorted(["out.txt", running, *others])


def test_temporary_files_are_out_of_reach_for_other_users(tmp_path):
    with atomic_write(tmp_path / "out.txt") as temporary:
        assert stat.S_IMODE(temporary.parent.stat().st_mode) == 0o700
        assert not temporary.exists()
        temporary.write_text("secret")


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_follow_the_umask(mask, mode, tmp_path):
    before = os.umask(mask)
    try:
        with atomic_write(tmp_path / "out.txt") as temporary:
            temporary.touch(0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out.txt").stat().st_mode) == mode


def test_a_name_as_long_as_the_system_allows(tmp_path):
    with atomic_write(tmp_path / ("é" * 127)) as temporary:
        temporary.write_text("whole")
    with pytest.raises(OutputError, match="too long"), atomic_write(tmp_path / ("é" * 129)) as temporary:
        temporary.write_text("whole")


HOLDING = """
import sys
from torchelmo.files import hold_lock
with hold_lock(sys.argv[1], "out"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_names_its_owner_and_ends_with_it(tmp_path):
    command = [sys.executable, "-c", HOLDING, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with (
            pytest.raises(OutputError, match=mentions("out", f"process {process.pid} ")),
            hold_lock(tmp_path / "lock", "out"),
        ):
            pass
        process.kill()
        process.wait()
    with hold_lock(tmp_path / "lock", "out"):
        assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} ")


def test_a_line_that_is_too_long_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("torchelmo.files.MAX_LINE_BYTES", 10)
    path = tmp_path / "text.txt"
    path.write_text("123456789\n1234567890\n")
    lines = read_lines(path)
    assert next(lines) == "123456789"
    with pytest.raises(InputError, match=mentions(path, "line 2", "10 bytes")):
        next(lines)


def test_a_pipe_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MissingFileError, match=mentions("pipe")):
        require_file(tmp_path / "pipe", regular=True)
    assert require_file(tmp_path / "pipe") == tmp_path / "pipe"


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs Linux's /proc")
def test_a_file_that_cannot_be_read_is_named():
    with pytest.raises(InputError, match=mentions("/proc/self/mem", "line 1")):
        list(read_lines("/proc/self/mem"))
