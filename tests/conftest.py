"""Settings of the whole test run, which must stand before torch is imported, and the fixture for golden files."""

from __future__ import annotations

import difflib
import gc
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Tests run in several processes at once: one thread each, or they wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

# A test says when it means kernels in C: compiling them takes long.
os.environ.setdefault("ATTNCC_TARGET", "torch")

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


# Of tests with many cases the usual run takes some, evenly; ATTNCC_THOROUGH=1 takes all. Kernels are slow in Triton's
# interpreter, and what they say runs in C as well.
EVERY = {
    "interpret/test_kernel_operands.py": 3,
    "interpret/test_listed_interpreted.py": 2,
    "interpret/test_pieces_interpreted.py": 2,
    "interpret/test_sums_interpreted.py": 2,
    "interpret/test_forms_interpreted.py": 2,
    "interpret/test_sixteen_bits_interpreted.py": 2,
    "emit/test_operands.py": 3,
    "emit/test_choices.py": 2,
    "emit/test_over_keys.py": 3,
    "emit/test_decode.py": 3,
    "emit/test_states_against_oracle.py": 3,
    "emit/test_pieces_against_oracle.py": 3,
    "emit/test_exact_numbers.py": 3,
    "check/test_listed_patterns.py": 2,
    "check/test_fit.py": 2,
    "cli/test_show.py": 2,
    "cli/test_check.py": 2,
    "emit/test_forms.py": 2,
}
MANY = 5


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases of tests that have many."""
    if os.environ.get("ATTNCC_THOROUGH"):
        return
    of_tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        of_tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = set[pytest.Item]()
    for name, cases in of_tests.items():
        every = EVERY.get(name.partition("::")[0].removeprefix("tests/"), 1)
        if every > 1 and len(cases) >= MANY:
            left_out |= {case for at, case in enumerate(cases) if at % every}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Settings of the process once it has imported all tests."""
    # Hypothesis draws from the constants of every module that is loaded. To find those of a thousand generated ones
    # takes half a minute, and what is drawn would depend on the tests that ran before.
    providers: Any = sys.modules.get("hypothesis.internal.conjecture.providers")
    if hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = lambda: providers._local_constants

    # To look for cycles among objects that are there to stay takes a tenth of the time of compiling specs.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


_block_by_tokens = inspect.getblock


def _block_by_indentation(lines: list[str]) -> list[str]:
    """The lines of a function, as `inspect` finds them by its tokens.

    Triton asks for those of every kernel, which is half of what it takes to import a generated module.
    """
    indent = len(lines[0]) - len(lines[0].lstrip())
    if not lines[0].startswith(" " * indent + "@triton.jit"):
        return _block_by_tokens(lines)
    head = next(at for at, line in enumerate(lines) if line.partition("  #")[0].rstrip().endswith(":"))
    end = head + 1
    for at in range(head + 1, len(lines)):
        line = lines[at]
        if line.strip():
            if len(line) - len(line.lstrip()) <= indent:
                break
            end = at + 1
    return lines[:end]


inspect.getblock = _block_by_indentation


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(name, text)` compares a text with the file of that name in `golden/` beside the test, or writes it."""
    folder = Path(request.path).parent / "golden"
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = folder / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path} is missing: run pytest --update-golden and review it")
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            lines = (expected.splitlines(), text.splitlines())
            changes = "\n".join(difflib.unified_diff(*lines, str(path), "this run", lineterm=""))
            pytest.fail(f"{changes}\nif the change is right: pytest --update-golden")

    return compare
