"""Text of a generated module → its kernels: what each is made of, and the loops over tiles that it should have."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

KERNELS = ("forward", "backward_columns", "backward_rows")
_KERNEL = re.compile(rf"_((?:\w+_)?(?:{'|'.join(KERNELS)}))_kernel(_\d+)?")
_PIECE = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class TileLoop:
    """A loop over tiles: whether its body masks pairs, and whether it multiplies matrices."""

    masked: bool
    dots: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelText:
    """One kernel with every function that it calls; those of branches begin with the branch's name.

    `kernel` ends in the number of the piece that it runs, if it runs one.

    `digest` names this very text. `shape` is the same for texts that differ in numbers and in names of operands and
    values alone: these compile to the same program up to constants. `size` grows with the number of operations.
    """

    module: str
    kernel: str
    digest: str
    shape: str
    size: int
    loops: tuple[TileLoop, ...]
    vectors: frozenset[str]


@cache
def kernels_of(path: Path) -> tuple[KernelText, ...]:
    """The kernels of a generated module, in the order of the file."""
    functions = _functions(ast.parse(path.read_text(encoding="utf-8")))
    names = [match[1] + (match[2] or "") for name in functions if (match := _KERNEL.fullmatch(name))]
    return tuple(_kernel(path.stem, name, functions) for name in names)


def in_branch(kernel: str) -> tuple[str, str]:
    """The name of the branch, or nothing, and which of its kernels it is."""
    kernel = _PIECE.sub("", kernel)
    own = next(name for name in KERNELS if kernel.endswith(name))
    return kernel.removesuffix(own).removesuffix("_"), own


def function_of(kernel: str) -> str:
    """The name of a kernel's function."""
    piece = _PIECE.search(kernel)
    return f"_{_PIECE.sub('', kernel)}_kernel{piece[0] if piece else ''}"


def distinct(texts: Iterator[KernelText] | tuple[KernelText, ...]) -> dict[KernelText, tuple[str, ...]]:
    """The first of every group of texts of one shape, with the modules that share it."""
    groups: dict[str, list[KernelText]] = {}
    for text in texts:
        groups.setdefault(text.shape, []).append(text)
    return {group[0]: tuple(each.module for each in group) for group in groups.values()}


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Functions of the module by name, those that stand in an `if` included."""
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def _kernel(module: str, name: str, functions: dict[str, ast.FunctionDef]) -> KernelText:
    parts = _reachable(function_of(name), functions)
    vectors = frozenset(_vectors(parts))
    branch, _ = in_branch(name)

    def plain(node: ast.AST) -> str:
        return ast.dump(node).replace(f"'_{branch}_", "'_") if branch else ast.dump(node)

    return KernelText(
        module=module,
        kernel=name,
        digest=_hash(plain(_without_docstring(part)) for part in parts),
        shape=_hash([_renamed([ast.dump(_Numbers().visit(_without_docstring(part))) for part in parts], vectors)]),
        size=sum(1 for part in parts for _ in ast.walk(part)),
        loops=tuple(_loops(functions[function_of(name)], functions)),
        vectors=vectors,
    )


def _reachable(name: str, functions: dict[str, ast.FunctionDef]) -> list[ast.FunctionDef]:
    """A function and those that it calls, directly or not, in the order in which they are met."""
    found: dict[str, ast.FunctionDef] = {}
    waiting = [name]
    while waiting:
        name = waiting.pop(0)
        if name in functions and name not in found:
            found[name] = functions[name]
            waiting += [node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)]
    return list(found.values())


def _without_docstring(function: ast.FunctionDef) -> ast.FunctionDef:
    if ast.get_docstring(function) is None:
        return function
    copy = ast.parse(ast.unparse(function)).body[0]
    assert isinstance(copy, ast.FunctionDef)
    copy.body = copy.body[1:]
    return copy


def _vectors(parts: list[ast.FunctionDef]) -> Iterator[str]:
    """The pointers from which tiles of vectors are read or written, and those to their channels.

    What is both read and written, or handed on to another piece, are sums, which have a type of their own.
    """
    read: dict[str, None] = {}
    written: dict[str, None] = {}
    for node in (node for part in parts for node in ast.walk(part)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _OF_VECTORS:
            pointer = next(each.id for each in ast.walk(node.args[0]) if isinstance(each, ast.Name))
            (read if node.func.id == "_load_tile" else written)[pointer] = None
        elif isinstance(node, ast.arg) and node.arg.endswith("_channels_ptr"):
            read[node.arg] = None
    for pointer in dict.fromkeys((*read, *written)):
        if not (pointer in read and pointer in written) and not pointer.endswith("_state_ptr"):
            yield pointer


_OF_VECTORS = ("_load_tile", "_store_tile", "_store_spaced")
_TILE_BODY = re.compile(r"_tile(_\d+)?$")


class _Numbers(ast.NodeTransformer):
    """Replaces numbers; what is true or false says how the program is built, and stays."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
        return ast.Constant(0) if is_number else node


_NAME = re.compile(r"\b(id|arg|name)='(\w+)'")
_TYPED = re.compile(r"(_ptr|_strides?|_size_\d+)$")  # what a name ends in says what type an argument has
_OF_EVERY_KERNEL = frozenset(
    "n m k_start q_start_ptr kv_lengths_ptr residual_ptr GROUP PRECISION BLOCK_M BLOCK_N".split()
)


def _renamed(dumps: list[str], vectors: frozenset[str]) -> str:
    """Functions with numbers in place of the names that they give to operands and values."""
    text = "\n".join(dumps)
    given = set(re.findall(r"arg='(\w+)'|Name\(id='(\w+)', ctx=Store|FunctionDef\(name='(\w+)'", text))
    own = {name for names in given for name in names if name} - _OF_EVERY_KERNEL
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        name = match[2]
        if name not in own:
            return match[0]
        if name not in numbers:
            ending = _TYPED.search(name)
            kind = ("BLOCK_" if name.startswith("BLOCK_") else "") + (ending[1] if ending else "")
            numbers[name] = f"{len(numbers)}{kind}{' of vectors' if name in vectors else ''}"
        return f"{match[1]}='{numbers[name]}'"

    return _NAME.sub(number, text)


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _loops(function: ast.FunctionDef, functions: dict[str, ast.FunctionDef]) -> Iterator[TileLoop]:
    """Innermost loops in the order of the text. A tile body is told by its last argument whether to mask."""
    for node in _in_order(function):
        if isinstance(node, ast.For) and not any(isinstance(inner, ast.For) for inner in _in_order(node)):
            for call in _in_order(node):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and _is_body(call.func.id):
                    last = call.args[-1]
                    body = functions[call.func.id]
                    dots = any(isinstance(each, ast.Name) and each.id == "_dot" for each in ast.walk(body))
                    yield TileLoop(masked=isinstance(last, ast.Constant) and last.value is True, dots=dots)


def _is_body(name: str) -> bool:
    """Whether a function is the body of a loop over tiles."""
    return _TILE_BODY.search(name) is not None and name not in _OF_VECTORS


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Everything inside a node in the order of the text, the node itself left out."""
    for child in ast.iter_child_nodes(node):
        yield child
        yield from _in_order(child)
