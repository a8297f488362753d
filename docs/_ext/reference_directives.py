"""Sphinx directives that write the reference from the code.

    ```{commands}
    ```
    ```{settings} torchelmo.lm.config.PretrainConfig
    ```
    ```{settings} ner.model
    ```

`commands` documents every command of the Typer application, `settings` the fields of a dataclass with the comments
beside them. A hook makes docstrings, which are written in plain text with single backticks, valid reStructuredText.
"""

import dataclasses
import inspect
import io
import re
import tokenize
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from torchelmo.tasks.task import TASKS, find_task


class Commands(SphinxDirective):
    """Document every command: how it is called, what it does, its arguments and options."""

    def run(self) -> list[nodes.Node]:
        from torchelmo.cli import app

        lines: list[str] = []
        for words, command in walk_commands(typer.main.get_command(app)):
            lines += [*command_lines(words, command), ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


class Settings(SphinxDirective):
    """Document the fields of a dataclass as a table: key, type, default, meaning."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        cls = find_settings(self.arguments[0])
        self.env.note_dependency(inspect.getsourcefile(cls))
        return self.parse_text_to_nodes("\n".join(settings_table(cls)))


def walk_commands(group: Any, words: tuple[str, ...] = ("torchelmo",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words that call each command, and the command."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from walk_commands(command, (*words, name))
        else:
            yield (*words, name), command


def command_lines(words: tuple[str, ...], command: Any) -> list[str]:
    """Return Markdown that documents one command."""
    context = command.make_context(" ".join(words), [], resilient_parsing=True)
    usage = " ".join([" ".join(words), *command.collect_usage_pieces(context)])
    lines = [f"## {' '.join(words)}", "", "```text", usage, "```", "", inspect.cleandoc(command.help or ""), ""]
    rows = []
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        cells = _names(parameter, context), _cell(parameter.help or ""), _default(parameter, context)
        rows.append(f"| {' | '.join(cells)} |")
    return [*lines, "| argument or option | meaning | default |", "|---|---|---|", *rows]


def find_settings(name: str) -> type[Any]:
    """Return the dataclass with a full name, or [data] or [model] of a task: `ner.model`."""
    module, _, attribute = name.rpartition(".")
    if module in TASKS:
        settings: type[Any] = getattr(find_task(module), f"{attribute}_config")
        return settings
    return getattr(import_module(module), attribute)  # type: ignore[no-any-return]


def settings_table(cls: type[Any]) -> list[str]:
    """Return a Markdown table of the fields of a dataclass."""
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            comments |= field_comments(base)
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    hints = typing.get_type_hints(cls)
    if not dataclasses.fields(cls):
        return ["There are no settings."]
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        kind, default = _kind(hints[field.name]), _field_default(field)
        rows.append(f"| `{field.name}` | {kind} | {default} | {_cell(comments.get(field.name, ''))} |")
    return rows


def field_comments(cls: type[Any]) -> dict[str, str]:
    """Return the comments above and beside each field of a class."""
    comments: dict[str, list[str]] = {}
    names, field, above = set(cls.__annotations__), "", []
    source = inspect.cleandoc(inspect.getsource(cls))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string in names and token.line.lstrip().startswith(f"{token.string}:"):
            field, comments[token.string], above = token.string, above, []
        elif token.type == tokenize.COMMENT:
            (comments[field] if field else above).append(token.string.lstrip("# "))
        elif token.type == tokenize.NEWLINE:
            field = ""
    return {name: " ".join(lines) for name, lines in comments.items()}


def _names(parameter: Any, context: Any) -> str:
    """Return how the parameter is typed: `--out PATH`, `INPUT`."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = parameter.get_help_record(context)[0]
    return f"`{_cell(names, code=True)}`"


def _default(parameter: Any, context: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.get_default(context)
    if default is None or default is False or default in ((), [], ""):
        return ""
    return f"`{getattr(default, 'value', default)}`"


def _kind(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Annotated:
        return _kind(typing.get_args(hint)[0])
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f'`"{value}"`' for value in typing.get_args(hint))
    if dataclasses.is_dataclass(hint) or typing.get_origin(hint) is dict:
        return "table"
    if isinstance(hint, type):
        return {"str": "string", "Path": "path", "bool": "true/false", "int": "integer", "float": "number"}.get(
            hint.__name__, hint.__name__
        )
    if typing.get_origin(hint) in (tuple, list):
        return "list"
    parts = [_kind(part) for part in typing.get_args(hint) if part is not type(None)]
    return " or ".join(dict.fromkeys(parts))


def _field_default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "" if field.default_factory is not dataclasses.MISSING else "required"
    value = field.default
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, (str, Path)):
        return f'`"{value}"`'
    if isinstance(value, tuple):
        return f"`{[list(item) if isinstance(item, tuple) else item for item in value]}`"
    return f"`{value}`"


def _cell(text: str, *, code: bool = False) -> str:
    """Return text that can be put into a cell of a Markdown table."""
    text = re.sub(r"\s+", " ", text).replace("|", r"\|").strip()
    return text if code else text.replace("<", "&lt;")


def plain_text_to_rst(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape the characters of a docstring that reStructuredText would take for markup, except inside backticks."""
    code = False
    for i, line in enumerate(lines):
        if line.lstrip().startswith(("```",)):
            code = not code
        if code or line.lstrip().startswith((">>>", "...", "*args", "**kwargs")):
            continue
        parts = re.split(r"(`+[^`]*`+)", line)
        parts[::2] = [re.sub(r"([*|]|(?<=\w)_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
        lines[i] = "".join(parts)


def skip_tuple_fields(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of named tuples, whose docstring is only "Alias for field number 0"."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    app.add_directive("settings", Settings)
    app.connect("autodoc-skip-member", skip_tuple_fields)
    app.connect("autodoc-process-docstring", plain_text_to_rst, priority=400)  # before napoleon
    return {"parallel_read_safe": True}
