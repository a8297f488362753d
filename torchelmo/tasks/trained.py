"""A trained task as a folder that needs nothing else: `torchelmo.tasks.load` reads it.

task.json            which task, its settings, its vocabularies
words.json           the words that have vectors
words.safetensors    the vectors of the last of them, which are fixed
model.safetensors    the weights of the best epoch
bilm/                a model folder, where ELMo enters: the biLM as it was before the run
metrics.json         the scores on dev
"""

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchelmo import __version__
from torchelmo.config import build_config, config_to_dict
from torchelmo.errors import ConfigError, InputError, MissingFileError, WeightsError
from torchelmo.files import atomic_write, read_json, write_json
from torchelmo.formats.load import load_folder
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.tasks.inputs import TokenInput, build_characters
from torchelmo.tasks.task import Scores, Source, Task, TaskModel, find_task
from torchelmo.tasks.words import WordEmbedding
from torchelmo.text.batching import scoring_batches, windows


class MixResult(NamedTuple):
    place: str  # "input" or "output"
    weights: list[float]  # softmaxed, one per layer
    gamma: float


class Result(NamedTuple):
    task: str
    metric: str  # the score that decided
    seed: int
    scores: Scores  # on dev, of the best epoch
    best_epoch: int  # from 1
    epochs: int  # that were run
    steps: int
    seconds: float  # of training and scoring, without the biLM
    bilm_seconds: float  # of running the biLM once over all sentences
    parameters: int  # that were trained
    mixes: list[MixResult]  # of the best epoch
    finished: bool  # no epoch is left, or none is wanted any more

    @property
    def score(self) -> float:
        return self.scores[self.metric]

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**self._asdict(), "mixes": [mix._asdict() for mix in self.mixes]}

    def line(self) -> str:
        """One line for people."""
        scores = ", ".join(f"{name} {value:.2f}" for name, value in self.scores.items())
        minutes = (self.seconds + self.bilm_seconds) / 60
        return f"{self.task}, seed {self.seed}: {scores} (epoch {self.best_epoch} of {self.epochs}, {minutes:.1f} min)"


def write_result(folder: Path, result: Result) -> None:
    write_json(folder / "metrics.json", result.plain())


def read_result(folder: Path) -> Result:
    path = folder / "metrics.json"
    plain = read_json(path, "the result of a task run")
    try:
        return Result(**{**plain, "mixes": [MixResult(**mix) for mix in plain["mixes"]]})
    except (TypeError, KeyError) as error:
        raise InputError(f"{path}: expected the result of one task run, found something else ({error}).") from error


class Summary(NamedTuple):
    """Several seeds of one configuration."""

    results: list[Result]
    mean: Scores
    sd: Scores  # of a sample; 0 for one seed

    def line(self) -> str:
        metric = self.results[0].metric
        return f"{metric} {self.mean[metric]:.2f} ± {self.sd[metric]:.2f} over {len(self.results)} seeds"


def summarise(results: Sequence[Result]) -> Summary:
    mean, sd = {}, {}
    for name in results[0].scores:
        values = [result.scores[name] for result in results]
        mean[name] = statistics.fmean(values)
        sd[name] = statistics.stdev(values) if len(values) > 1 else 0.0
    return Summary(list(results), mean, sd)


def write_summary(folder: Path, summary: Summary) -> None:
    seeds = {str(result.seed): result.scores for result in summary.results}
    write_json(folder / "metrics.json", {"mean": summary.mean, "sd": summary.sd, "seeds": seeds})


_BILM, _FIXED = "inputs.elmo.elmo.bilm.", "inputs.words.fixed"


def trained_parameters(model: TaskModel[Any, Any]) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def task_tensors(model: TaskModel[Any, Any]) -> dict[str, Tensor]:
    """The weights that belong to the task: a frozen biLM and fixed word vectors are saved once, beside them.

    So is the softmax of a biLM that is trained with the task, for the task has no use for it.
    """
    elmo, given = model.inputs.elmo, [_FIXED]
    if elmo is not None:
        given.append(f"{_BILM}softmax." if elmo.config.unfreeze else _BILM)
    return {name: tensor.detach() for name, tensor in model.state_dict().items() if not name.startswith(tuple(given))}


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    with atomic_write(path) as temporary:
        save_file({name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors.items()}, temporary)


def read_tensors(path: Path, what: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise MissingFileError(f"{path}: expected {what}, found nothing. A run has them after its first epoch.")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"{path}: expected {what}, but the file is damaged ({error}). Copy it again, or train again."
        ) from error


def load_tensors(model: TaskModel[Any, Any], path: Path) -> None:
    """Put saved weights into a model of the same shape."""
    tensors, wanted = read_tensors(path, "the weights of a task model"), task_tensors(model)
    for name in sorted(tensors.keys() | wanted.keys()):
        expected, found = (tuple(side[name].shape) if name in side else "nothing" for side in (wanted, tensors))
        if expected != found:
            raise WeightsError(
                f"{path}: expected the weights of this task model, but at {name} {expected} was expected and {found} "
                "found. The files of the folder must be of one run."
            )
    model.load_state_dict(tensors, strict=False)


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
        examples = require_examples(self.task.read(Path(path), self.data_options), path, self.task)
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
        for examples in windows(self.task.read_input(source, self.data_options, self.vocabularies), _WINDOW):
            yield from zip(examples, self.predict(examples))


def require_examples(examples: list[Any], path: str | Path, task: Task[Any, Any]) -> list[Any]:
    """`examples`, if the file had any."""
    if not examples:
        raise InputError(f"{path}: expected labelled examples for {task.name}, found none. Check that file.")
    return examples


def example_length(task: Task[Any, Any], example: Any) -> int:
    return max(map(len, task.sentences(example)), default=0)


def all_sentences(task: Task[Any, Any], examples: Iterable[Any]) -> Iterator[Sequence[str]]:
    for example in examples:
        yield from task.sentences(example)


FORMAT = 1


def load(folder: str | Path) -> TrainedTask:
    """A task folder that `torchelmo task train` wrote."""
    folder = Path(folder)
    card = _read_card(folder)
    where = str(folder / "task.json")
    config = build_config(TaskConfig, card["config"], where=where)
    task = find_task(card["task"])
    elmo = None
    if config.elmo.place != "none":
        # What is predicted comes once: to keep its layers would only fill the memory.
        settings = dataclasses.replace(config.elmo, memory_mb=0.0, disk_mb=0.0)
        elmo = ElmoLayers(load_folder(folder / "bilm"), settings)
    inputs = TokenInput(_load_words(folder, card["word_dim"]), build_characters(config), elmo)
    options = build_config(task.model_config, config.model, where=f"{where}: model")
    model = task.build(options, inputs, card["vocabularies"])
    load_tensors(model, folder / "model.safetensors")
    model.eval()
    return TrainedTask(task, config, model, card["vocabularies"])


def save_task(
    folder: Path,
    task: Task[Any, Any],
    config: TaskConfig,
    model: TaskModel[Any, Any],
    vocabularies: Mapping[str, list[str]],
) -> None:
    """Everything but the weights, which are written at every new best epoch."""
    words, elmo = model.inputs.words, model.inputs.elmo
    card = {
        "format": FORMAT,
        "torchelmo": __version__,
        "task": task.name,
        "word_dim": words.dim if words is not None else 0,
        "config": config_to_dict(config),
        "vocabularies": dict(vocabularies),
    }
    write_json(folder / "task.json", card, indent=1)
    if words is not None:
        write_json(folder / "words.json", words.words, indent=0)
        if words.fixed is not None:
            save_tensors(folder / "words.safetensors", {"vectors": words.fixed})
    if elmo is not None:
        elmo.bilm.save(folder / "bilm")


def _load_words(folder: Path, dim: int) -> WordEmbedding | None:
    if not dim:
        return None
    words = read_json(folder / "words.json", "the words of a trained task")
    path = folder / "words.safetensors"
    if not path.exists():
        return WordEmbedding(words, dim=dim)
    fixed = read_tensors(path, "the word vectors of a trained task")["vectors"]
    learned = torch.zeros(len(words) - len(fixed), dim)  # model.safetensors has them
    return WordEmbedding(words, torch.cat([learned, fixed]), n_fixed=len(fixed))


def _read_card(folder: Path) -> dict[str, Any]:
    path = folder / "task.json"
    if not path.exists():
        kind = "a folder without task.json" if folder.is_dir() else "no such folder"
        seeds = sorted(folder.glob("seed-*/task.json"))
        raise MissingFileError(
            f"{folder}: expected a folder that `torchelmo task train` wrote, found {kind}."
            + (f" It holds runs with several seeds: give one of them, such as {seeds[0].parent}." if seeds else "")
        )
    card = read_json(path, "the card of a trained task")
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        found = card.get("format") if isinstance(card, dict) else card
        raise ConfigError(f"{path}: expected a task of format {FORMAT}, found {found!r:.60}. Train it again.")
    missing = [key for key in ("task", "word_dim", "config", "vocabularies") if key not in card]
    if missing:
        raise ConfigError(f"{path}: expected the card of a trained task, but it has no {missing[0]!r}. Train it again.")
    return card
