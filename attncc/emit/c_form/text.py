"""Lines of C with indentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from attncc.emit.writer import fill

WIDTH = 100
_BREAK = re.compile(r"(?<=,) (?=\S)| (?=(?:[?:&|+*/-]|==|<=|>=) )")


class CText:
    """Collects lines; blocks are braced and indent."""

    def __init__(self, depth: int = 0) -> None:
        self._lines: list[str] = []
        self._depth = depth

    def line(self, text: str = "") -> None:
        """One line at the current indentation, broken where it is too long."""
        if not text:
            self._lines.append("")
            return
        indent = "    " * self._depth
        if text.startswith("#"):
            self._lines.append(text if not text.startswith("#pragma") else indent + text)
            return
        self._lines += wrapped(indent, text)

    def lines(self, lines: list[str]) -> None:
        """Lines that are written already, deeper by the current indentation."""
        self._lines += [self._indented(line) for line in lines]

    def _indented(self, line: str) -> str:
        return "    " * self._depth + line if line else ""

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        """A statement that opens a block, and the block."""
        self.line(f"{opening} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    @contextmanager
    def braces(self) -> Iterator[None]:
        """The body of a function."""
        self.line("{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    @property
    def written(self) -> list[str]:
        """All lines."""
        return list(self._lines)


def wrapped(indent: str, text: str) -> list[str]:
    """A statement in lines of at most WIDTH characters, broken at operators and after commas."""
    stripped = text.lstrip()
    indent += text[: len(text) - len(stripped)]
    if stripped.startswith("// "):
        return [f"{indent}// {line}" for line in fill(stripped[3:], WIDTH - len(indent) - 3)]
    lines, current = [], indent
    for part in _BREAK.split(stripped):
        if len(current) + len(part) + 1 > WIDTH and current.strip():
            lines.append(current)
            current = f"{indent}        {part}"
        else:
            current = f"{current} {part}" if current.strip() else current + part
    return [*lines, current]
