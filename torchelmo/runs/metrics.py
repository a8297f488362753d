"""The log of a run: a file of JSON lines, and TensorBoard events."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchelmo.errors import ConfigError
from torchelmo.files import atomic_write, parse_json, read_bounded

_MAX_BYTES = 2**30


class RecordLog:
    """Append records to a file of JSON lines and, if tensorboard is installed, to a folder of events.

    Args:
        path: The file.
        step: Records after this step belong to a part of the run that was lost; they are removed.
        events: The folder for TensorBoard events; None for none.
        writes: False on all ranks except the first: then nothing is written.
    """

    def __init__(self, path: Path, step: int, *, events: Path | None = None, writes: bool = True) -> None:
        self.path, self.writes, self._events = path, writes, None
        if writes:
            kept = [record for record in read_records(path) if record["step"] <= step]
            with atomic_write(path) as temporary:
                temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
            if events is not None:
                self._events = _open_events(events, step)

    def __enter__(self) -> "RecordLog":
        return self

    def __exit__(self, *error: object) -> None:
        if self._events is not None:
            self._events.close()

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record, which must have the key "step"; values that are None are left out."""
        if not self.writes:
            return
        plain = {name: _rounded(value) for name, value in record.items() if value is not None}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain) + "\n")
        if self._events is not None:
            for name in plain.keys() - {"step", "n_steps"}:
                self._events.add_scalar(name, plain[name], plain["step"])
            self._events.flush()


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read the records of a log, up to the first line that is damaged or that a killed process left half-written."""
    records: list[dict[str, Any]] = []
    content = read_bounded(path, "the log of a run", max_bytes=_MAX_BYTES) if path.is_file() else b""
    for line in content.splitlines():
        try:
            record = parse_json(line, str(path))
        except ConfigError:
            break
        if not isinstance(record, dict) or type(record.get("step")) is not int:
            break
        records.append(record)
    return records


def duration(seconds: float) -> str:
    """Format a time.

    >>> duration(59), duration(61), duration(3720)
    ('59s', '1m01s', '1h02m')
    """
    if not math.isfinite(seconds):
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _open_events(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=step + 1)
