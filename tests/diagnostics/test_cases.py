"""Every diagnostic, word for word: `cases/CODE_what.attn` → `golden/CODE_what.txt`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from attncc.codes import CODES
from attncc.compiler import compile_any, compile_source, read_source
from attncc.diagnostics import AttnError, Source, render

CASES = sorted((Path(__file__).parent / "cases").glob("*.attn"))
WARNINGS = [case for case in CASES if case.name.startswith("W")]
ERRORS = [case for case in CASES if case not in WARNINGS]
NO_TEXT = {"E901"}  # it is about files, see below


def _read(case: Path) -> tuple[Source, dict[str, str]]:
    """The text of a case, and the parameters that a first line `# -D w=3 -D g=4` passes."""
    text = case.read_text(encoding="utf-8")
    first = text.split("\n", 1)[0]
    given = re.findall(r"-D (\w+)=(\S+)", first) if first.startswith("# -D") else []
    return Source(case.name, text), dict(given)


@pytest.mark.parametrize("case", WARNINGS, ids=lambda case: case.stem)
def test_the_warning_is_the_golden_one_and_stops_nothing(case: Path, golden: Callable[[str, str], None]) -> None:
    source, given = _read(case)
    warnings = compile_source(source, given, in_c=False).warnings
    assert {warning.code for warning in warnings} == {case.name.split("_")[0]}
    golden(f"{case.stem}.txt", "\n\n".join(map(render, warnings)) + "\n")


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: case.stem)
def test_the_message_is_the_golden_one(case: Path, golden: Callable[[str, str], None]) -> None:
    source, given = _read(case)
    with pytest.raises(AttnError) as caught:
        compile_any(source, given, in_c=False)
    codes = [diagnostic.code for diagnostic in caught.value.diagnostics]
    assert case.name.split("_")[0] in codes
    golden(f"{case.stem}.txt", f"{caught.value}\n")


def test_every_code_has_a_case() -> None:
    covered = {case.name.split("_")[0] for case in CASES} | NO_TEXT
    assert CODES.keys() - covered == set()


def test_every_golden_file_has_a_case() -> None:
    golden = {path.stem for path in (Path(__file__).parent / "golden").glob("*.txt")}
    assert golden == {case.stem for case in CASES}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AttnError, match=r"error\[E901\]: cannot read `.*nowhere\.attn`"):
        read_source(tmp_path / "nowhere.attn")


def test_a_folder_is_no_spec(tmp_path: Path) -> None:
    with pytest.raises(AttnError, match=r"error\[E901\]"):
        read_source(tmp_path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "picture.attn").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(AttnError, match=r"error\[E901\]: `.*picture\.attn` is no text"):
        read_source(tmp_path / "picture.attn")
