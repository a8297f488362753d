"""Fuzz targets: models in all formats that `torchelmo.load` reads.

Half of the changes are those of `fuzz.mutate`, for files of any kind. The others write good checksums and good
compression around wrong content, so that the code behind them is reached, too.
"""

import gzip
import io
import json
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from official_files import WORDS, random_official
from tf_files import HEADER, block, bundle_entry, table, write_checkpoint

import torchelmo
from fuzz.mutate import damage, mutate_folder
from fuzz.run import SilentlyWrongError, Target
from torchelmo import BiLM, BiLMConfig, Elmo, SentenceEncoder
from torchelmo.formats import registry
from torchelmo.text.vocabulary import Vocabulary

SENTENCES = [["the", "bow", "and", "arrow"], ["a"]]
FOLDER = {"char_dim": 2, "filters": ((1, 2), (2, 3)), "n_highway": 1, "projection_dim": 4, "cell_dim": 5}
SHAPE = {"filters": ((1, 2), (2, 1)), "char_dim": 1, "projection_dim": 2, "cell_dim": 2, "n_layers": 1, "n_highway": 1}
FIXTURES = Path(__file__).parents[1] / "fixtures"
Change = Callable[[Path, random.Random], object]


def flip(data: bytes, rng: random.Random, n: int = 4) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, n + 1)):
        changed[rng.randrange(len(changed))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
    return bytes(changed)


# Official files


def make_official(folder: Path) -> None:
    official = random_official(**SHAPE)
    official.arrays["softmax/W"] = np.ones((len(WORDS), 2), np.float32)
    official.arrays["softmax/b"] = np.ones(len(WORDS), np.float32)
    official.write(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")


def change_hdf5(folder: Path, rng: random.Random) -> None:
    """The first kilobytes describe the datasets; the rest are numbers, and any numbers are weights."""
    path = folder / "weights.hdf5"
    data = path.read_bytes()
    start = rng.randrange(min(len(data), 6000))
    path.write_bytes(data[:start] + flip(data[start : start + 64], rng) + data[start + 64 :])


# TensorFlow


def variables(scope: str = "lm/") -> dict[str, np.ndarray]:
    arrays = {scope + name: array for name, array in random_official(**SHAPE).arrays.items()}
    softmax = {"lm/softmax/W": np.ones((len(WORDS), 2), np.float32), "lm/softmax/b": np.ones(len(WORDS), np.float32)}
    return arrays | (softmax if scope == "lm/" else {}) | {"global_step": np.zeros(())}


def make_checkpoint(folder: Path) -> None:
    write_checkpoint(folder, variables())
    (folder / "options.json").write_text(json.dumps(random_official(**SHAPE).options))
    (folder / "checkpoint").write_text('model_checkpoint_path: "/x/model.ckpt-1"\n')


def make_module(folder: Path) -> None:
    write_checkpoint(folder / "variables", variables("bilm/"), "variables")


def change_index(prefix: str) -> Change:
    """Change entries, and sign them: the checksums are right, and the entries lie."""
    scope = "bilm/" if "variables" in prefix else "lm/"
    offset, entries = 0, []
    for name, array in sorted(variables(scope).items()):
        array = np.ascontiguousarray(array, np.float32)
        entries.append((name.encode(), bundle_entry(array, offset)))
        offset += array.nbytes

    def change(folder: Path, rng: random.Random) -> None:
        lying = [(name, flip(value, rng, 2)) if rng.random() < 0.1 else (name, value) for name, value in entries]
        lying = [(flip(name, rng, 1) if rng.random() < 0.02 else name, value) for name, value in lying]
        content = block([HEADER, *lying])
        if rng.random() < 0.3:
            content = flip(content, rng)
        (folder / f"{prefix}.index").write_bytes(table([content]))

    return change


# ELMoForManyLangs and AllenNLP


def make_efml(folder: Path) -> None:
    for path in (FIXTURES / "efml_tiny.model").iterdir():
        if path.suffix != ".npz":
            shutil.copy(path, folder / path.name)


def make_allennlp(folder: Path) -> None:
    from torchelmo.compat import allennlp

    options, weights = random_official(**SHAPE, max_characters=50).write(folder)
    tensors = allennlp.Elmo(options, weights, 1).state_dict()
    torch.save({f"x._elmo.{name}": tensor for name, tensor in tensors.items()}, folder / "weights.th")
    (folder / "config.json").write_text('{"model": {"elmo": {"type": "elmo_token_embedder"}}}')
    weights.unlink()
    options.unlink()


def change_pickle(*names: str) -> Change:
    """Change the tensors, and write a good file: other shapes, types and numbers, or expanded and absent ones."""

    def change(folder: Path, rng: random.Random) -> None:
        path = folder / rng.choice(names)
        tensors = dict(torch.load(path, weights_only=True))
        name = rng.choice(sorted(tensors))
        tensor = tensors[name]
        tensors[name] = rng.choice(
            [
                torch.full_like(tensor, float("nan")),
                tensor.to(torch.float16),
                tensor.long(),
                tensor.flatten(),
                tensor[..., :-1].clone(),
                torch.zeros(1, device="meta").expand(tensor.shape),
                torch.zeros(2 ** rng.choice([1, 16]), 3),
                torch.sparse_coo_tensor(size=tuple(tensor.shape)),
                list(tensor.shape),
                None,
            ]
        )
        if rng.random() < 0.3:
            tensors[rng.choice(["", "x", name + "x", 7])] = tensors.pop(name)
        torch.save(tensors, path, _use_new_zipfile_serialization=rng.random() < 0.5)
        if rng.random() < 0.3:
            path.write_bytes(flip(path.read_bytes(), rng))

    return change


# Archives


def make_archive(kind: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        source = folder / "source"
        make_official(source)
        shutil.make_archive(str(folder / "model"), kind, source)
        shutil.rmtree(source)

    return make


NAMES = ["../x.json", "/x.json", "a/../../x.json", "options.json", "a/" * 20 + "x.json", "\0.json", "", "x" * 300]


def change_zip(folder: Path, rng: random.Random) -> None:
    """Write other names, links, sizes and content."""
    path = folder / "model.zip"
    with zipfile.ZipFile(path) as archive:
        files = [(member, archive.read(member)) for member in archive.infolist()]
    with zipfile.ZipFile(path, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for member, content in files:
            new = zipfile.ZipInfo(rng.choice(NAMES) if rng.random() < 0.2 else member.filename)
            new.external_attr = rng.choice([0, 0o100644, 0o120777, 0o010644, rng.randrange(2**16)]) << 16
            if rng.random() < 0.2:
                content = flip(content, rng) if content else b"{}"
            archive.writestr(new, content)
    if rng.random() < 0.3:
        data = path.read_bytes()
        path.write_bytes(data[:-200] + flip(data[-200:], rng))


def change_tar(folder: Path, rng: random.Random) -> None:
    """Write other names, types and sizes of members."""
    path = folder / "model.tar.gz"
    with tarfile.open(path) as archive:
        files = [(member, archive.extractfile(member)) for member in archive]
        contents = [(member, stream.read() if stream else b"") for member, stream in files]
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=rng.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])) as archive:
        for member, content in contents:
            new = tarfile.TarInfo(rng.choice(NAMES) if rng.random() < 0.2 else member.name)
            new.size = len(content)
            if rng.random() < 0.2:
                new.type = bytes([rng.randrange(48, 56)])
                new.linkname = rng.choice(["/etc/hostname", "..", "options.json"])
            archive.addfile(new, io.BytesIO(content))
    data = target.getvalue()
    if rng.random() < 0.5:
        start = rng.randrange(0, max(1, len(data) - 512), 512)
        data = data[:start] + flip(data[start : start + 512], rng) + data[start + 512 :]
    path.write_bytes(gzip.compress(data, 1))


# Our own folders


def check_vectors(bilm: BiLM) -> None:
    """Raise unless the vectors of a loaded model are finite."""
    for vectors in Elmo(bilm).embed(SENTENCES):
        if not np.isfinite(vectors).all():
            raise SilentlyWrongError("vectors that are not finite")


def make_folder(folder: Path) -> None:
    bilm = BiLM(BiLMConfig(**FOLDER, softmax_words=len(WORDS)), Vocabulary(WORDS))  # type: ignore[arg-type]
    bilm.save(folder)


def make_int8(folder: Path) -> None:
    make_folder(folder)
    torchelmo.load(folder).save(folder, dtype=torch.int8)


def run_folder(folder: Path, extra: None, rng: random.Random) -> None:
    check_vectors(torchelmo.load(folder))


def make_encoder(folder: Path) -> None:
    bilm = BiLM(BiLMConfig(**FOLDER))  # type: ignore[arg-type]
    SentenceEncoder(bilm).fit([*SENTENCES, ["b"]]).save(folder / "encoder")


def run_encoder(folder: Path, extra: None, rng: random.Random) -> None:
    if not np.isfinite(SentenceEncoder.load(folder / "encoder").encode(SENTENCES)).all():
        raise SilentlyWrongError("sentence vectors that are not finite")


def make_registry(folder: Path) -> None:
    (folder / "models.toml").write_text(
        '[[model]]\nname = "mine"\nlang = "en"\nformat = "official"\naddresses = ["http://a/b_options.json"]\n'
        'megabytes = 14\nlicense = "MIT"\nlemmas = false\n'
        '[[model]]\nname = "nlpl:136"\nlast = 140\naddresses = ["http://a/136.zip"]\nformat = "efml"\n'
    )


def run_registry(folder: Path, extra: None, rng: random.Random) -> None:
    registry._read_registry.__wrapped__(folder / "models.toml")


def reader(name: str, make: Callable[[Path], object], change: Change, file: str = "") -> Target:
    """Return a target, half of whose changes are those for files of any kind."""

    def mutate(folder: Path, rng: random.Random) -> str:
        if rng.random() < 0.5:
            change(folder, rng)
            return "a change of the format"
        return mutate_folder(folder, sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()), rng)

    return Target(name, make, mutate, lambda folder, extra, rng: check_vectors(torchelmo.load(folder / file)))


FORMATS = [
    reader("official files", make_official, change_hdf5),
    reader("TensorFlow checkpoint", make_checkpoint, change_index("model.ckpt-1")),
    reader("TF-Hub module", make_module, change_index("variables/variables")),
    reader("ELMoForManyLangs", make_efml, change_pickle("encoder.pkl", "token_embedder.pkl")),
    reader("AllenNLP model", make_allennlp, change_pickle("weights.th")),
    reader("model in .zip", make_archive("zip"), change_zip, "model.zip"),
    reader("model in .tar.gz", make_archive("gztar"), change_tar, "model.tar.gz"),
]


def model_targets() -> Iterator[Target]:
    """Yield the targets of this module."""
    yield Target("model folder", make_folder, damage(), run_folder)
    yield Target("int8 model folder", make_int8, damage(), run_folder)
    yield Target("sentence encoder", make_encoder, damage(), run_encoder)
    yield from FORMATS
    yield Target("registry of models", make_registry, damage(), run_registry)
