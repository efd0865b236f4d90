"""`use`: files that take the words of others, and what is said where they cannot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from attncc.cli.inputs import sources_of
from attncc.diagnostics import AttnError
from attncc.sources import read_source
from attncc.spec.resolve import load

ATTENTION = "attention a { pattern = x }"


def _written(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, text in files.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / next(iter(files))


CASES: dict[str, tuple[dict[str, str | bytes], list[str]]] = {
    "itself": ({"a.attn": f'use "a.attn"\n{ATTENTION}'}, ["E219", "a.attn → a.attn"]),
    "in a circle of three": (
        {
            "a.attn": f'use "b.attn"\n{ATTENTION}',
            "b.attn": 'use "c.attn"\npattern x = y',
            "c.attn": 'use "b.attn"\npattern y = x',
        },
        ["E219", "b.attn → c.attn → b.attn"],
    ),
    "a file that is no text": ({"a.attn": f'use "b.attn"\n{ATTENTION}', "b.attn": b"\x7fELF\xff"}, ["E901", "b.attn"]),
    "a file with mistakes": (
        {"a.attn": f'use "b.attn"\n{ATTENTION}', "b.attn": "pattern x = = y"},
        ["E101", "b.attn:1"],
    ),
    "a folder": ({"a.attn": f'use "folder"\n{ATTENTION}'}, ["E219", "this is a folder"]),
    "nothing": ({"a.attn": f'use ""\n{ATTENTION}'}, ["E219", "no such file"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_used_is_the_one_finding(name: str, tmp_path: Path) -> None:
    files, told = CASES[name]
    (tmp_path / "folder").mkdir()
    with pytest.raises(AttnError) as caught:
        load(read_source(_written(tmp_path, files)))
    assert len(caught.value.diagnostics) == 1
    assert all(each in str(caught.value) for each in told)


def test_a_file_of_words_says_how_they_are_used(tmp_path: Path) -> None:
    with pytest.raises(AttnError, match=r'by `use "words.attn"`'):
        load(read_source(_written(tmp_path, {"words.attn": "pattern x = causal"})))


def test_a_folder_may_hold_words_beside_specs(tmp_path: Path) -> None:
    """They are no specs: only what is said of a file by its name, and the formatter, takes them."""
    words = _written(tmp_path, {"words.attn": "pattern x = causal", "a.attn": f'use "words.attn"\n{ATTENTION}'})
    assert [Path(each.name).name for each in sources_of([str(tmp_path)], "")[0]] == ["a.attn"]
    assert len(sources_of([str(tmp_path)], "", words=True)[0]) == 2
    assert len(sources_of([str(words)], "")[0]) == 1
