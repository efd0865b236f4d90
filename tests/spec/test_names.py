"""Names that declared data may have, and those that emitted modules need for something else."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from keyword import kwlist
from typing import Any

import pytest
import torch

from attncc.compiler import compile_source
from attncc.diagnostics import AttnError, Source
from attncc.graph.core import TAKEN_NAMES
from attncc.spec.data import OF_MODULES, RESERVED
from attncc.spec.functions import FUNCTIONS, KEY_FUNCTIONS, VECTOR_FUNCTIONS
from attncc.spec.words import RESERVED as OF_THE_LANGUAGE
from attncc.syntax.mistake import KEYWORDS

_AT_ONCE = 12  # names in one module


def _is_refused(declaration: str, name: str) -> bool:
    try:
        _module(declaration, [name])
    except AttnError:
        return True
    return False


def _module(declaration: str, names: Sequence[str]) -> str:
    """A module whose scores are sums of numbers of keys, or of distances."""
    axes, index = ("[B, H, m]", "") if declaration == "input" else ("[H, 9]", "[h, clip(i - j, 0, 8)]")
    terms = " + ".join(["scale * dot(q, k)", *(f"{name}{index}" for name in names)])
    body = "; ".join([*(f"{declaration} {name}{axes}" for name in names), f"score = {terms}"])
    return compile_source(Source("names.attn", f"attention names {{ {body} }}"), in_c=False).text


def test_attributes_of_modules_are_no_parameters() -> None:
    public = {name for name in dir(torch.nn.Module()) if not name.startswith("_")}
    assert public <= OF_MODULES


@pytest.mark.parametrize(
    "name", ["isinstance", "torch", "form", "ValueError", "kv_lengths", "x", "forward", "to", "half"]
)
def test_names_of_a_module_are_refused_for_parameters(name: str) -> None:
    assert _is_refused("param", name)


def test_attributes_of_modules_may_be_inputs() -> None:
    assert not _is_refused("input", "half")


@pytest.mark.parametrize("declaration", ["param", "input"])
def test_every_other_name_of_a_module_is_free(declaration: str) -> None:
    """Names of locals and of what Python has built in: a module of data called so runs, and tells them apart.

    Parameters take every second name, and inputs the others: both are arguments of the same functions.
    """
    free = _free_names()[int(declaration == "input") :: 2]
    for at in range(0, len(free), _AT_ONCE):
        some = free[at : at + _AT_ONCE]
        made: dict[str, Any] = {"__name__": "names"}
        exec(compile(_without_kernels(_module(declaration, some)), "names.py", "exec"), made)
        data = [torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3)]
        shape = (1, 2, 5) if declaration == "input" else (2, 9)
        given = {name: torch.randn(shape, requires_grad=True) for name in some}
        out = made["attention"](*data, **given)
        assert all(slope.any() for slope in torch.autograd.grad(out.sin().sum(), list(given.values()))), some
        made["weights"](*data[:2], **given)
        for name in some:
            with pytest.raises(ValueError, match=f"names: {name} is "):
                made["attention"](*data, **given | {name: torch.randn(1)})


@pytest.mark.parametrize(
    ("axes", "pattern"),
    (
        ("B, m]: int", "{0}[i] == {0}[j]"),
        ("B, H, m]: bool", "({0}[i] | {0}[j])"),
        ("B, ceil(n / 2), ceil(m / 2)]: bool", "{0}[i // 2, j // 2]"),
    ),
    ids=("numbers", "marks", "tables"),
)
def test_names_are_free_for_what_patterns_read(axes: str, pattern: str) -> None:
    """What finds tiles and pairs has locals of its own; the first of some names decides how rows and keys stand."""
    free = _free_names()
    for at in range(0, len(free), _AT_ONCE):
        some = free[at : at + _AT_ONCE]
        declared = "; ".join(f"input {name}[{axes}" for name in some)
        related = " & ".join(["causal", *(pattern.format(name) for name in some)])
        text = f"attention names {{ {declared}; pattern = {related} | i - j in [0, 2] }}"
        made: dict[str, Any] = {"__name__": __name__}
        text = compile_source(Source("names.attn", text), in_c=False).text
        exec(compile(_without_kernels(text), "names.py", "exec"), made)
        q, k, v = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3))
        shape = {"B, m]: int": (1, 5), "B, H, m]: bool": (1, 2, 5)}.get(axes, (1, 3, 3))
        data = [torch.ones(shape, dtype=torch.int64 if "int" in axes else torch.bool) for _ in some]
        found = made["attention"](q, k, v, *data, form="torch")
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert torch.allclose(found, expected, atol=1e-5), some
        assert torch.autograd.grad(found.sin().sum(), q)[0].any()
        made["weights"](q, k, *data)


def _free_names() -> list[str]:
    """Names that the modules' own text uses, and that declared data may have."""
    names = TAKEN_NAMES | {each for each in dir(builtins) if each.isalpha()} | {"outs", "windows", "keep_residual"}
    refused = RESERVED | OF_THE_LANGUAGE | OF_MODULES | FUNCTIONS.keys() | VECTOR_FUNCTIONS.keys() | {*kwlist}
    refused |= KEY_FUNCTIONS.keys()
    refused |= {each.lower() for each in KEYWORDS}
    return sorted(names - refused)


def _without_kernels(text: str) -> str:
    """A module's text as where triton is missing: its decorator wants a file."""
    return text.replace("import triton\n", "raise ImportError\n").replace("    import triton.language as tl\n", "")
