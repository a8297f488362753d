"""⑤ The paper's task models, with and without ELMo: one folder per task, what they share, one runner."""

from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.folder import load
from torchelmo.tasks.registry import TASKS
from torchelmo.tasks.result import Result
from torchelmo.tasks.runner import train
from torchelmo.tasks.trained import TrainedTask

__all__ = ["TASKS", "Result", "TaskConfig", "TrainedTask", "load", "train"]
