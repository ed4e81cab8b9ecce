"""`trajstitch VERB --help` on one screen: what a verb does and its common flags, each with its first sentence.

A verb's COMMON names the fields that are shown, in this order; without it all are. `--help-all` shows everything, by
tyro. This page is read from the source, so that nothing heavy is imported for it.
"""

import ast
import importlib
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NARROWEST, WIDEST = 40, 100
"""Characters in a line."""
WIDEST_NAME = 22
"""A longer flag has its text on the next line."""
WRAPPERS = ("Annotated", "Positional", "OmitArgPrefixes", "AvoidSubcommands")
TABLES = ("columns", "columns_file", "missing", "resample")
"""Fields that are shown for a source that is a table: how its columns are read."""


class UnreadableError(Exception):
    """The source of a verb can't be read here."""


@dataclass(frozen=True)
class Source:
    """A module's source."""

    tree: ast.Module

    @classmethod
    @cache
    def of(cls, module: str) -> "Source":
        try:
            spec = find_spec(module)
            if spec is not None and spec.origin in ("built-in", "frozen"):  # as `_typing`, where no flags are
                return cls(ast.parse(""))
            return cls(ast.parse(Path(str(spec and spec.origin)).read_text(encoding="utf-8")))
        except (ImportError, ValueError, OSError, SyntaxError) as error:
            raise UnreadableError(module) from error

    def find(self, name: str) -> "tuple[Source, ast.AST] | None":
        """Return a class or a constant by its name, followed through imports."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return self, node
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                return self, node.value
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for one in node.names:
                    if (one.asname or one.name) == name:
                        return Source.of(node.module).find(one.name)
        return None

    def constant(self, name: str) -> Any:
        """Return a literal constant; None if there is none of this name."""
        found = self.find(name)
        return None if found is None or isinstance(found[1], ast.ClassDef) else ast.literal_eval(found[1])


@dataclass(frozen=True)
class Flag:
    """A field of a command."""

    path: str
    """The names of the field and those it is in, with dots."""
    name: str
    """As it is typed; for a positional argument what stands for it."""
    value: str
    text: str
    default: str
    positional: bool


@dataclass(frozen=True)
class Place:
    """Where a field stands."""

    path: str = ""
    prefix: str = ""
    filled: Mapping[str, tuple[Source, ast.ClassDef]] = field(default_factory=dict)
    """Classes that type variables stand for."""


def short_help(verb: str, arguments: Sequence[str]) -> str:
    """Return the short help of a verb, with these arguments beside `--help`."""
    source = Source.of(f"trajstitch.cli.{verb}")
    words, choices, place = [verb], source.constant("CHOICES"), Place()
    if choices is None:
        kind, description = source.find("Command"), ""
    else:
        table = _table(choices["table"])
        if not arguments or arguments[0] not in table:
            return _choices(verb, source.constant("DESCRIPTION"), table)
        chosen = _class(table[arguments[0]])
        words.append(arguments[0])
        kind, place = source.find(choices["command"]), Place(filled={choices["parameter"]: chosen})
        description = choices["description"].format(summary=_summary(chosen[1]), name=arguments[0])
    if kind is None or not isinstance(kind[1], ast.ClassDef):
        raise UnreadableError(verb)
    flags = list(_flags(kind[0], kind[1], place))
    common = source.constant("COMMON") or tuple(dict.fromkeys(flag.path for flag in flags))
    table_given = any(map(_is_table, arguments))
    for_tables = TABLES if table_given else ()
    named = [flag for name in (*common, *for_tables) for flag in flags if _within(flag.path, name)]
    shown = list(dict.fromkeys(flag for flag in flags if flag.positional)), [f for f in named if not f.positional]
    usage = " ".join(["trajstitch", *words, *(flag.name for flag in shown[0]), "[flags]"])
    more = [f"All flags: trajstitch {' '.join(words)} --help-all"] if len(flags) > sum(map(len, shown)) else []
    if not table_given and any(flag.path.startswith("columns.") for flag in flags):
        more.append("A table's columns, and what mends it: put its file's name before --help")
    return _page(usage, description or ast.get_docstring(kind[1]) or "", shown, more)


def _is_table(word: str) -> bool:
    """Return whether a word names a table, by its scheme or by a file's ending."""
    formats = Source.of("trajstitch.formats.table")
    endings = (*formats.constant("PARQUET"), *formats.constant("CSV"))
    return word.startswith("table:") or (":" not in word and word.endswith(endings))


def _within(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}.")


# What the page shows


def _page(usage: str, description: str, shown: tuple[list[Flag], list[Flag]], more: Sequence[str]) -> str:
    width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
    lines = [f"usage: {usage}", "", *_paragraphs(description, width)]
    rows = [[(_spelled(flag), _said(flag)) for flag in part] for part in shown]
    column = 4 + max((len(name) for part in rows for name, _ in part if len(name) <= WIDEST_NAME), default=0)
    for part in filter(None, rows):
        lines.append("")
        for name, text in part:
            first = f"  {name}".ljust(column) if len(name) + 4 <= column else f"  {name}\n{' ' * column}"
            body = _wrapped(text, width - column) or [""]
            lines += [first + body[0], *(" " * column + line for line in body[1:])]
    return "\n".join([*lines, *([""] if more else []), *more]) + "\n"


def _paragraphs(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a description; lines that show a command follow one another and are never broken."""
    before = ""
    for paragraph in text.strip().split("\n\n"):
        command = bool(re.search(r"[:?] trajstitch |^    ", paragraph)) and not paragraph.startswith("`")
        if before and not (command and before == "command"):
            yield ""
        yield from [" ".join(paragraph.split())] if command else _wrapped(paragraph, width)
        before = "command" if command else "text"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def _spelled(flag: Flag) -> str:
    return flag.name if flag.positional else f"--{flag.name} {flag.value}".strip()


def _said(flag: Flag) -> str:
    text = " ".join(flag.text.split())
    sentence = re.match(r"(.*?[^.]\.)(?= [A-Z`(]|$)", text)
    if sentence and not text.startswith("On: "):  # which goes on with what Off is
        text = sentence[1]
    return f"{text} (default: {flag.default})" if flag.default else text


def _choices(verb: str, description: str, table: Mapping[str, str]) -> str:
    rows = [Flag(name, name, "", _summary(_class(place)[1]) + ".", "", True) for name, place in table.items()]
    return _page(f"trajstitch {verb} {'|'.join(table)} SRC [flags]", description, (rows, []), [])


def _table(place: str) -> Mapping[str, str]:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _class(place: str) -> tuple[Source, ast.ClassDef]:
    module, _, name = place.partition(":")
    found = Source.of(module).find(name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        raise UnreadableError(place)
    return found[0], found[1]


def _summary(kind: ast.ClassDef) -> str:
    return (ast.get_docstring(kind) or "").strip().partition("\n")[0].removesuffix(".")


# What the source says


def _flags(source: Source, kind: ast.ClassDef, place: Place) -> Iterator[Flag]:
    """Yield the flags of a command or a config, those of its bases first."""
    for home, node, text in _fields(source, kind).values():
        assert isinstance(node.target, ast.Name)
        yield from _flag(home, node, text, place)


def _fields(source: Source, kind: ast.ClassDef) -> dict[str, tuple[Source, ast.AnnAssign, str]]:
    found: dict[str, tuple[Source, ast.AnnAssign, str]] = {}
    for base in reversed(kind.bases):
        name = base.value if isinstance(base, ast.Subscript) else base
        parent = source.find(name.id) if isinstance(name, ast.Name) else None
        if parent is not None and isinstance(parent[1], ast.ClassDef):
            found |= _fields(parent[0], parent[1])
    for node, after in zip(kind.body, [*kind.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            told = after.value if isinstance(after, ast.Expr) else None
            text = told.value if isinstance(told, ast.Constant) else ""
            found[node.target.id] = source, node, str(text)
    return found


def _flag(source: Source, node: ast.AnnAssign, text: str, place: Place) -> Iterator[Flag]:
    name = ast.unparse(node.target)
    kind, positional, flat, metavar = _unwrapped(node.annotation)
    path = f"{place.path}.{name}" if place.path else name
    nested = _nested(source, kind, place)
    if nested is not None:
        below = replace(place, path=path, prefix=place.prefix if flat else f"{place.prefix}{name}.")
        yield from _flags(*nested, below)
        return
    default = "" if node.value is None else _default(source, node.value)
    spelled = (place.prefix + name).replace("_", "-")
    if positional:
        yield Flag(path, metavar or name.upper(), "", text, "", True)
    elif isinstance(kind, ast.Name) and kind.id == "bool":
        head, _, last = spelled.rpartition(".")
        off = default == "True"
        spelled = f"{head}{head and '.'}{'no-' if off else ''}{last}"
        yield Flag(path, spelled, "", text, "", False)
    else:
        yield Flag(path, spelled, metavar or _value(source, kind), text, default, False)


def _unwrapped(kind: ast.expr) -> tuple[ast.expr, bool, bool, str | None]:
    """Return a field's type, whether it is positional or has no name of its own, and what stands for its value."""
    positional, flat, metavar = False, False, None
    while True:
        if isinstance(kind, ast.Subscript) and isinstance(kind.value, ast.Name) and kind.value.id in WRAPPERS:
            parts = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
            positional |= kind.value.id == "Positional"
            flat |= kind.value.id == "OmitArgPrefixes"
            for call in (one for one in parts[1:] if isinstance(one, ast.Call)):
                given = {key.arg: ast.unparse(key.value).strip("'\"") for key in call.keywords}
                metavar = given.get("metavar", metavar)
                flat |= given.get("name") == ""
            kind = parts[0]
        elif isinstance(kind, ast.BinOp) and isinstance(kind.right, ast.Constant) and kind.right.value is None:
            kind = kind.left
        else:
            return kind, positional, flat, metavar


def _nested(source: Source, kind: ast.expr, place: Place) -> tuple[Source, ast.ClassDef] | None:
    """Return the config class that a field holds, if it holds one."""
    if not isinstance(kind, ast.Name):
        return None
    if kind.id in place.filled:
        return place.filled[kind.id]
    found = source.find(kind.id) if kind.id not in ("Path", "Any") else None
    return (found[0], found[1]) if found is not None and isinstance(found[1], ast.ClassDef) else None


def _value(source: Source, kind: ast.expr) -> str:
    """Return what stands for a value of this type."""
    found = source.find(kind.id) if isinstance(kind, ast.Name) and kind.id != "Path" else None
    if found is not None and isinstance(found[1], ast.expr):
        source, kind = found[0], found[1]
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Literal":
        options = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
        return "{" + ",".join(str(ast.literal_eval(one)) for one in options) + "}"
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "tuple":
        first = kind.slice.elts[0] if isinstance(kind.slice, ast.Tuple) else kind.slice
        return f"{_value(source, first)} ..."
    return re.sub(r"\W+", "|", ast.unparse(kind).upper()).strip("|")


def _default(source: Source, value: ast.expr) -> str:
    if isinstance(value, ast.Name) and (found := source.find(value.id)) is not None and isinstance(found[1], ast.expr):
        value = found[1]
    try:
        default = ast.literal_eval(value)
    except ValueError:
        return ""
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    if default is None or default is False:
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)
