"""What README.md shows is what happens: its commands run, its specs compile, its excerpts and tables are real."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from attncc import AttnError, Source, compile_any, compile_source
from attncc.cli.main import cli
from attncc.spec.expr import And, Name, Not, Or, Select
from attncc.spec.fields import READABLE, FieldName
from attncc.spec.functions import FUNCTIONS, KEY_FUNCTIONS
from attncc.spec.layers.operators import OPERATORS
from attncc.spec.resolve import load
from attncc.spec.words import prelude
from attncc.syntax import tree

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S)
SPECS = re.findall(r"^```attn\n(.*?)^```", README, re.M | re.S)
INLINE = re.findall(r"`(attncc (?:build|check|explain|list)[^`…\[]*)`", README)
INLINE = [each for each in INLINE if "FILE" not in each]


def marked(kind: str) -> list[tuple[str, str]]:
    """Blocks that a comment above describes: (what the comment says, the block)."""
    return re.findall(rf"^<!-- {kind}: (.*?) -->\n```\w+\n(.*?)^```", README, re.M | re.S)


def rows(head: str) -> dict[str, list[str]]:
    """A table by its first column; `head` is the text of its head's first cell."""
    table = re.search(rf"^\| {head} \|.*\n\|[ -|]*\|\n((?:\|.*\n)+)", README, re.M)
    assert table, f"no table with the head {head}"
    cells = [re.split(r" *(?<!\\)\| *", line)[1:-1] for line in table[1].splitlines()]
    return {row[0]: row[1:] for row in cells}


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


@cache
def attncc(*arguments: str) -> str:
    """What the command prints on both streams, run in the repository."""
    command = [sys.executable, "-m", "attncc", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_two_commands_are_one_line_each_and_the_second_is_what_ci_runs() -> None:
    assert [len(block.splitlines()) for block in SHELL] == [1, 1]
    assert SHELL[1].strip() in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()


def test_the_first_command_runs_once_it_is_installed(tmp_path: Path) -> None:
    installation, *commands = SHELL[0].replace("-o build", f"-o {tmp_path}").strip().split(" && .venv/bin/attncc ")
    assert installation == "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt ."
    for command in commands:
        assert attncc(*shlex.split(command))
    assert (tmp_path / "sliding_window.py").read_text(encoding="utf-8") == generated("sliding_window")


def generated(name: str) -> str:
    return (ROOT / f"generated/{name}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", sorted(set(INLINE)))
def test_a_command_in_the_text_runs(command: str, tmp_path: Path) -> None:
    extra = ("-o", str(tmp_path)) if command.startswith("attncc build") else ()
    assert attncc(*shlex.split(command)[1:], *extra)


@pytest.mark.parametrize("text", SPECS)
def test_a_spec_compiles(text: str) -> None:
    compiled = compile_any(Source(str(ROOT / "specs/readme.attn"), text))
    compile(compiled.text, "readme.py", "exec")


def test_the_first_spec_is_the_one_in_specs() -> None:
    assert SPECS[0] == (ROOT / "specs/sliding_window.attn").read_text(encoding="utf-8")


@pytest.mark.parametrize(("file", "block"), marked("excerpt"))
def test_an_excerpt_is_in_its_file(file: str, block: str) -> None:
    lines = [line.strip() for line in (ROOT / file).read_text(encoding="utf-8").splitlines()]
    assert "\n".join(line.strip() for line in block.splitlines()) in "\n".join(lines)


@pytest.mark.parametrize(("command", "block"), marked("output"))
def test_an_output_is_printed(command: str, block: str) -> None:
    assert block.strip() in attncc(*shlex.split(command)[1:])


@pytest.mark.parametrize(("command", "block"), re.findall(r"^<!-- table: (.*?) -->\n((?:\|.*\n)+)", README, re.M))
def test_a_table_is_printed(command: str, block: str) -> None:
    assert attncc(*shlex.split(command)[1:]) == block


@pytest.mark.parametrize(("spec", "block"), marked("error"))
def test_an_error_is_reported(spec: str, block: str) -> None:
    with pytest.raises(AttnError) as caught:
        compile_source(Source("oops.attn", spec))
    assert block.strip() == str(caught.value)


def test_the_python_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocks = [each for each in re.findall(r"^```python\n(.*?)^```", README, re.M | re.S) if "import torch" in each]
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    scopes: list[dict[str, Any]] = [{} for _ in blocks]
    for block, scope in zip(blocks, scopes, strict=True):
        exec(compile(textwrap.dedent(block), "README.md", "exec"), scope)
    loaded, whole, by_data = scopes
    assert tuple(loaded["out"].shape) == (2, 8, 300, 64)
    assert tuple(whole["w"].shape) == (2, 8, 4, 300)
    assert tuple(by_data["out"].shape) == (2, 4, 1000, 32)


def test_the_table_of_commands_is_complete() -> None:
    shown = {cell.split()[1] for cell in rows("command")}
    assert shown == set(cli.list_commands(click.Context(cli)))


def test_the_table_of_fields_says_what_each_may_read() -> None:
    table = rows("field")
    assert {f"`{each.value}`" for each in FieldName if each is not FieldName.LET} == set(table)
    for field, readable in READABLE.items():
        if field not in (FieldName.REQUIRE, FieldName.LET):
            read = {each for each in names(table[f"`{field.value}`"][2]) if "(" not in each}
            assert read == {each.value for each in readable}, field


def test_the_table_of_functions_is_complete() -> None:
    table = rows("function")
    shown = {cell.strip("`").split("(")[0]: (cell, said) for cell, said in table.items()}
    assert shown.keys() == FUNCTIONS.keys()
    for name, (call, (meaning, values, derivative)) in shown.items():
        assert meaning.replace("\\|", "|") == FUNCTIONS[name].meaning
        assert values == FUNCTIONS[name].range_text
        assert derivative == f"`{FUNCTIONS[name].derivative}`"
        arity = FUNCTIONS[name].arity
        assert ("…" in call) if arity is None else (call.count(",") == arity - 1)


def test_the_table_of_operators_of_layers_is_complete() -> None:
    assert rows("operator of layers") == {f"`{each.signature}`": [each.meaning] for each in OPERATORS.values()}


def test_the_table_of_functions_of_keys_is_complete() -> None:
    table = rows("over keys")
    shown = {cell.strip("`").split("(")[0]: said for cell, said in table.items()}
    assert shown == {each.name: [each.meaning, "yes" if each.looks_ahead else "no"] for each in KEY_FUNCTIONS.values()}


def test_the_table_of_words_is_complete() -> None:
    table = rows("kind")
    shown = {name for cells in table.values() for name in names(cells[0])}
    words = [each for each in prelude().definitions if not isinstance(each, tree.Attention)]
    signatures = {
        each.name.text + (f"({', '.join(one.name.text for one in each.parameters)})" if each.parameters else "")
        for each in words
    }
    assert shown == signatures


def test_lengths_in_the_table_are_names_of_the_language() -> None:
    shown = {cell.strip("`") for cell in rows("name") if cell.startswith("`")}
    assert shown == {Name.QUERIES.value, Name.KEYS.value, Name.VALID.value, Name.COUNT.value}


def test_operators_bind_in_the_order_of_the_table() -> None:
    def parsed(pattern: str) -> object:
        return load(Source("order.attn", f"attention order {{ pattern = {pattern} }}")).pattern

    assert isinstance(parsed("h < 2 ? j < 1 | j > 2 : j > 3"), Select)
    assert isinstance(parsed("j < 1 | j > 2 & j > 3"), Or)
    assert isinstance(parsed("!(j == 1 | j == 7) & j < 3"), And)
    assert isinstance(parsed("!(j % 2 == 1) & j // 3 < 3"), And)
    assert parsed("j < 1 + 2 * 2 ^ 3 ^ 2 & i - j <= 4") == parsed("(j < (1 + (2 * (2 ^ (3 ^ 2))))) & ((i - j) <= 4)")
    assert parsed("i < -2 ^ 2") == parsed("i < -(2 ^ 2)")
    assert parsed("! j % 2 == 1") == parsed("!(j % 2 == 1)")
    assert isinstance(parsed("! (j % 2 == 1)"), Not) or parsed("! (j % 2 == 1)") == parsed("j % 2 != 1")


def test_links_lead_somewhere() -> None:
    links = [each for each in re.findall(r"\]\(([^)#]+)\)", README) if not each.startswith("http")]
    missing = [each for each in links if not (ROOT / each).exists()]
    assert not missing


def test_folders_in_the_map_exist() -> None:
    for cell in rows("folder"):
        for folder in names(cell):
            with contextlib.suppress(StopIteration):
                assert next((ROOT / folder).iterdir())
