"""The tasks by name. Their modules are imported when one is asked for."""

from importlib import import_module
from typing import Any

from torchelmo.config import suggest
from torchelmo.errors import ConfigError
from torchelmo.tasks.task import Task

TASKS = {
    "ner": "Ner",
    "pos": "Pos",
    "srl": "Srl",
    "sentiment": "Sentiment",
    "nli": "Nli",
    "qa": "Qa",
    "coref": "Coref",
}


def find_task(name: str) -> Task[Any, Any]:
    if name not in TASKS:
        raise ConfigError(f"There is no task {name!r}.{suggest(name, TASKS)}")
    found: Task[Any, Any] = getattr(import_module(f"torchelmo.tasks.{name}"), TASKS[name])()
    return found
