"""A trained task as a folder that needs nothing else: `torchelmo.tasks.load` reads it.

task.json            which task, its settings, its vocabularies
words.txt            the words that have vectors
model.safetensors    the weights of the best epoch
bilm/                a model folder: the biLM, where ELMo enters
metrics.json         the scores on dev
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchelmo import __version__
from torchelmo.bilm.weights import load_folder
from torchelmo.config import build_config, config_to_dict
from torchelmo.errors import ConfigError, MissingFileError, WeightsError
from torchelmo.files import read_json, read_lines, writing
from torchelmo.tasks.batches import scoring_batches
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.elmo_layers import ElmoLayers
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.characters import TokenCharCNN
from torchelmo.tasks.layers.word_vectors import WordEmbedding
from torchelmo.tasks.registry import find_task
from torchelmo.tasks.task import Scores, Source, Task, TaskModel
from torchelmo.text.batching import windows

FORMAT = 1
_BILM = "inputs.elmo.elmo.bilm."
_WINDOW = 256  # unlabelled examples that are sorted by length together


class Scored(NamedTuple):
    scores: Scores
    report: str  # a table for people, or nothing
    n_examples: int


class TrainedTask:
    """A task model with all it needs to score and predict."""

    def __init__(
        self,
        task: Task[Any, Any],
        config: TaskConfig,
        model: TaskModel[Any, Any],
        vocabularies: Mapping[str, list[str]],
    ) -> None:
        self.task, self.config, self.model, self.vocabularies = task, config, model, vocabularies
        self.data_options = build_config(task.data_config, config.data, where="data")

    def evaluate(self, path: str | Path) -> Scored:
        """Score the predictions for a labelled file."""
        examples = self.task.read(Path(path), self.data_options)
        predictions = self.predict(examples)
        return Scored(self.task.score(examples, predictions), self.task.report(examples, predictions), len(examples))

    def predict(self, examples: Sequence[Any]) -> list[Any]:
        """One prediction per example, in order."""
        lengths = [example_length(self.task, example) for example in examples]
        found: dict[int, Any] = {}
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            for batch in scoring_batches(lengths, self.config.batch_size):
                found.update(zip(batch, self.model.predict([examples[i] for i in batch]), strict=True))
        self.model.train(was_training)
        return [found[i] for i in range(len(examples))]

    def predict_source(self, source: Source) -> Iterator[tuple[Any, Any]]:
        """(example, prediction) for everything in an unlabelled input, of any length, in order."""
        for examples in windows(self.task.read_input(source, self.vocabularies), _WINDOW):
            yield from zip(examples, self.predict(examples))


def example_length(task: Task[Any, Any], example: Any) -> int:
    return max(map(len, task.sentences(example)), default=0)


def save_task(
    folder: Path,
    task: Task[Any, Any],
    config: TaskConfig,
    model: TaskModel[Any, Any],
    vocabularies: Mapping[str, list[str]],
) -> None:
    """Everything but the weights, which `save_weights` writes at every new best epoch."""
    words, elmo = model.inputs.words, model.inputs.elmo
    card = {
        "format": FORMAT,
        "torchelmo": __version__,
        "task": task.name,
        "word_dim": words.dim if words is not None else 0,
        "config": config_to_dict(config),
        "vocabularies": dict(vocabularies),
    }
    with writing(folder / "task.json") as temporary:
        temporary.write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if words is not None:
        with writing(folder / "words.txt") as temporary:
            temporary.write_text("".join(f"{word}\n" for word in words.words), encoding="utf-8")
    if elmo is not None:
        elmo.bilm.save(folder / "bilm")


def task_tensors(model: TaskModel[Any, Any]) -> dict[str, Tensor]:
    """The weights that belong to the task: all but those of a frozen biLM."""
    elmo = model.inputs.elmo
    keeps_bilm = elmo is not None and elmo.config.unfreeze
    return {
        name: tensor.detach() for name, tensor in model.state_dict().items() if keeps_bilm or not name.startswith(_BILM)
    }


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    with writing(path) as temporary:
        save_file({name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors.items()}, temporary)


def load_tensors(model: TaskModel[Any, Any], path: Path) -> None:
    """Put saved weights into a model of the same shape."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        wanted = task_tensors(model)
        if tensors.keys() != wanted.keys():
            odd = sorted(tensors.keys() ^ wanted.keys())
            raise WeightsError(f"{path}: expected the weights of this task model; {odd[0]} stands on one side only.")
        model.load_state_dict(tensors, strict=False)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise WeightsError(f"{path}: expected the weights of this task model, but found others ({error}).") from error


def load(folder: str | Path) -> TrainedTask:
    """A task folder that `torchelmo task train` wrote."""
    folder = Path(folder)
    if not (folder / "task.json").exists():
        kind = "a folder without task.json" if folder.is_dir() else "no such folder"
        raise MissingFileError(
            f"{folder}: expected a folder that `torchelmo task train` wrote, found {kind}."
            + (" Give one of its seed-… folders." if any(folder.glob("seed-*/task.json")) else "")
        )
    card = read_json(folder / "task.json", "the card of a trained task")
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise ConfigError(f"{folder / 'task.json'}: expected a task of format {FORMAT}; train it again.")
    config = build_config(TaskConfig, card["config"], where=str(folder / "task.json"))
    task = find_task(card["task"])
    words = None
    if card["word_dim"]:
        listed = list(read_lines(folder / "words.txt"))
        fixed = config.words.vectors is not None and not config.words.trainable
        vectors = torch.zeros(len(listed), card["word_dim"]) if fixed else None
        words = WordEmbedding(listed, vectors, dim=card["word_dim"], trainable=not fixed)
    elmo = None
    if config.elmo.place != "none":
        elmo = ElmoLayers(load_folder(folder / "bilm"), config.elmo)
    inputs = TokenInput(words, build_characters(config), elmo)
    options = build_config(task.model_config, config.model, where=f"{folder / 'task.json'}: model")
    model = task.build(options, inputs, card["vocabularies"])
    load_tensors(model, folder / "model.safetensors")
    model.eval()
    return TrainedTask(task, config, model, card["vocabularies"])


def build_characters(config: TaskConfig) -> TokenCharCNN | None:
    settings = config.characters
    if not settings.n_filters:
        return None
    return TokenCharCNN(char_dim=settings.char_dim, n_filters=settings.n_filters, width=settings.width)


def all_sentences(task: Task[Any, Any], examples: Iterable[Any]) -> Iterator[Sequence[str]]:
    for example in examples:
        yield from task.sentences(example)
