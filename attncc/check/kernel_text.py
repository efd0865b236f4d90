"""Text of a generated module → its kernels: what each is made of, and the loops over tiles that it should have."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

KERNELS = ("forward", "backward_columns", "backward_rows")
# The kernels of sums, each with the kernels whose tiles it takes.
SUMS = {
    "sums_by_row": ("forward", "backward_rows"),
    "rows_by_sums": ("forward",),
    "row_gradients_by_sums": ("backward_rows",),
    "sums_by_key": ("backward_columns",),
    "keys_by_sums": ("backward_columns",),
    "key_gradients_by_sums": ("backward_columns",),
}
_KERNEL = re.compile(rf"_((?:\w+_)?(?:{'|'.join((*KERNELS, *SUMS))}))_kernel(_\d+)?")
_PIECE = re.compile(r"_\d+$")
_BLOCK = re.compile(r"^if triton is not None:\n(?:(?: .*)?\n)+", re.M)


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
    `asked` tells the types behind the pointers to what a pattern reads, as a caller may have them.
    """

    module: str
    kernel: str
    digest: str
    shape: str
    size: int
    loops: tuple[TileLoop, ...]
    vectors: frozenset[str]
    asked: tuple[tuple[str, str], ...]
    variants: tuple[Variant, ...]

    @property
    def of_sums(self) -> bool:
        """Whether it is a kernel of sums, which has no bodies of tiles."""
        return in_branch(self.kernel)[1] in SUMS


Variant = tuple[tuple[str, int], ...]  # constants by which one text is several programs


@dataclass(frozen=True, slots=True)
class _Function:
    """A function: what its text says without the docstring, the names in it, and the pointers of vectors.

    `outline` is the text with nought for every number. `asked` are names of what a pattern reads, each with its
    pointer, `numbers` those of numbers in scores and weights, `lists` pointers to lists of rows, and `truths` the names
    of which some are truth values.
    """

    text: str
    outline: str
    size: int
    names: tuple[str, ...]
    read: tuple[str, ...]
    written: tuple[str, ...]
    asked: tuple[tuple[str, str], ...]
    numbers: tuple[tuple[str, str], ...]
    lists: tuple[str, ...]
    truths: tuple[str, ...]


@cache
def kernels_of(path: Path) -> tuple[KernelText, ...]:
    """The kernels of a generated module, in the order of the file."""
    source = "".join(_BLOCK.findall(path.read_text(encoding="utf-8")))  # to parse all takes three times as long
    nodes = _functions(ast.parse(source))
    names = [match[1] + (match[2] or "") for name in nodes if (match := _KERNEL.fullmatch(name))]
    known = _Known(source.splitlines(), nodes)
    return tuple(_kernel(path.stem, name, known) for name in names)


def in_branch(kernel: str) -> tuple[str, str]:
    """The name of the branch, or nothing, and which of its kernels it is."""
    kernel = _PIECE.sub("", kernel)
    own = next(name for name in (*KERNELS, *SUMS) if kernel.endswith(name))
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
    """The functions of blocks by name."""
    blocks = [node.body for node in tree.body if isinstance(node, ast.If)]
    return {node.name: node for block in blocks for node in block if isinstance(node, ast.FunctionDef)}


class _Known:
    """The functions of a module by name; what many modules have is read once."""

    def __init__(self, lines: list[str], nodes: dict[str, ast.FunctionDef]) -> None:
        self.lines, self.nodes = lines, nodes
        self.found: dict[str, _Function] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.nodes

    def __getitem__(self, name: str) -> _Function:
        if name not in self.found:
            node = self.nodes[name]
            text = "\n".join(self.lines[node.lineno - 1 : node.end_lineno])
            if text not in _READ:
                _READ[text] = _function(node)
            self.found[name] = _READ[text]
        return self.found[name]


_READ: dict[str, _Function] = {}


def _kernel(module: str, name: str, known: _Known) -> KernelText:
    parts = _reachable(function_of(name), known)
    vectors = frozenset(_vectors(parts))
    branch, _ = in_branch(name)
    own = f"'_{branch}_" if branch else "'_"
    return KernelText(
        module=module,
        kernel=name,
        digest=_hash(part.text.replace(own, "'_") for part in parts),
        shape=_hash([_renamed([part.outline for part in parts], vectors)]),
        size=sum(part.size for part in parts),
        loops=tuple(_loops(known.nodes[function_of(name)], known)),
        vectors=vectors,
        asked=tuple(dict(_asked(parts)).items()),
        variants=_variants(known.nodes[function_of(name)]),
    )


def _variants(function: ast.FunctionDef) -> tuple[Variant, ...]:
    """The programs that a text is: with or without full tiles, for each term and factor that it tells apart."""
    if any(each.arg == "BY_STATES" for each in function.args.args):
        return (("BY_STATES", 0),), (("BY_STATES", 1),)
    terms: dict[int, set[int]] = {}
    for node in _in_order(function):
        if isinstance(node, ast.If) and (found := _compared(node, "TERM")) is not None:
            factors = [_compared(each, "FACTOR") for each in _in_order(node) if isinstance(each, ast.If)]
            terms.setdefault(found, set()).update(each for each in factors if each is not None)
    if not terms:
        factors = [_compared(each, "FACTOR") for each in _in_order(function) if isinstance(each, ast.If)]
        terms = {0: {each for each in factors if each is not None}}
    return tuple(
        (("TERM", term), ("FACTOR", factor)) for term, own in sorted(terms.items()) for factor in sorted(own or {0})
    )


def _compared(node: ast.If, name: str) -> int | None:
    """What a condition compares a name with."""
    match node.test:
        case ast.Compare(left=ast.Name(id=found), comparators=[ast.Constant(value=int(value))]) if found == name:
            return value
    return None


_NUMBER = re.compile(r"Constant\(value=[\d.][^,)]*")  # True and False say how the program is built, and stay


def _reachable(name: str, known: _Known) -> list[_Function]:
    """A function and those that it calls, directly or not, in the order in which they are met."""
    found: dict[str, _Function] = {}
    waiting = [name]
    while waiting:
        name = waiting.pop(0)
        if name in known and name not in found:
            found[name] = known[name]
            waiting += found[name].names
    return list(found.values())


def _function(node: ast.FunctionDef) -> _Function:
    inside = list(ast.walk(node))
    read: dict[str, None] = {}
    written: dict[str, None] = {}
    for each in inside:
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in _OF_VECTORS:
            pointer = next(inner.id for inner in ast.walk(each.args[0]) if isinstance(inner, ast.Name))
            pointer = f"{pointer.removesuffix('_at')}_ptr" if each.func.id in _OF_SUMS else pointer
            (read if each.func.id in _READING else written)[pointer] = None
        elif isinstance(each, ast.arg) and each.arg.endswith("_channels_ptr"):
            read[each.arg] = None
    called = [each.func for each in inside if isinstance(each, ast.Call)]
    names = tuple(dict.fromkeys(each.id for each in called if isinstance(each, ast.Name)))
    if ast.get_docstring(node) is not None:
        node = copy(node)
        node.body = node.body[1:]
    text = ast.dump(node)
    outline = _NUMBER.sub("Constant(value=0", text)
    assigned = [
        (target.id, each.value)
        for each in inside
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    ]
    asked = tuple((name, _pointer_in(value)) for name, value in assigned if _asks(name, value))
    numbers = tuple((name, _pointer_in(value)) for name, value in assigned if _is_call_of("_load_numbers", value))
    at = [each for _, value in assigned if _is_call_of("_lists_at", value) for each in ast.walk(value)]
    named_at = {each.id for each in at if isinstance(each, ast.Name)}
    lists = (*(name for name in named_at if name.endswith("_ptr")),)
    lists += tuple(_pointer_in(value) for name, value in assigned if name.endswith("_lists"))
    predicates = [each for each in inside if isinstance(each, ast.expr) and _is_of_truths(each)]
    predicates += [value for name, value in assigned if name == "related"]
    truths = tuple(truth for each in predicates for truth in _truths(each))
    return _Function(text, outline, len(inside), names, tuple(read), tuple(written), asked, numbers, lists, truths)


def _asks(name: str, value: ast.expr) -> bool:
    """Whether a name is that of what a pattern asks of tokens, or of pairs, where it is loaded."""
    return _is_call_of("_load_facts", value) or _ASKED.search(name) is not None


def _is_call_of(name: str, node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=called)):
            return called == name
    return False


def _is_of_truths(node: ast.expr) -> bool:
    """Whether names in an expression stand for truth values, as in weights that are 1 where a predicate holds."""
    match node:
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr()) | ast.UnaryOp(op=ast.Invert()):
            return True
    return False


def _pointer_in(node: ast.expr) -> str:
    names = (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
    return next(name for name in names if name.endswith("_ptr"))


def _truths(node: ast.expr) -> Iterator[str]:
    """The names of truth values that a predicate is put together from."""
    match node:
        case ast.BinOp(left=left, right=right):
            yield from (*_truths(left), *_truths(right))
        case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner):
            yield from _truths(inner)
        case ast.Name(id=name):
            yield name


def _asked(parts: list[_Function]) -> Iterator[tuple[str, str]]:
    """Pointers to what a pattern asks, with a type: truth values, or the longest whole numbers there are."""
    truths = {name for part in parts for name in part.truths}
    for part in parts:
        for name, pointer in part.asked:
            yield pointer, "i1" if name in truths else "i64"
        for name, pointer in part.numbers:
            if name in truths:
                yield pointer, "i1"
        yield from ((pointer, "i32") for pointer in part.lists)


def _vectors(parts: list[_Function]) -> Iterator[str]:
    """The pointers from which tiles of vectors are read or written, and those to their channels.

    What is both read and written, or handed on to another piece, are sums, which have a type of their own.
    """
    read = dict.fromkeys(pointer for part in parts for pointer in part.read)
    written = dict.fromkeys(pointer for part in parts for pointer in part.written)
    for pointer in dict.fromkeys((*read, *written)):
        if not (pointer in read and pointer in written) and not pointer.endswith("_state_ptr"):
            yield pointer


_ASKED = re.compile(r"_asked(_\d+)?$")
_OF_SUMS = ("_load_part",)
_READING = ("_load_tile", *_OF_SUMS)
_OF_VECTORS = (*_READING, "_store_tile", "_store_spaced")
_TILE_BODY = re.compile(r"_tile(_\d+)?$")


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


def _loops(function: ast.FunctionDef, known: _Known) -> Iterator[TileLoop]:
    """Innermost loops in the order of the text. A tile body is told by its last argument whether to mask."""
    for loop in _innermost_loops(function.body):
        for call in _in_order(loop):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and _is_body(call.func.id):
                last = call.args[-1]
                masked = isinstance(last, ast.Constant) and last.value is True
                yield TileLoop(masked=masked, dots="_dot" in known[call.func.id].names)


def _innermost_loops(body: list[ast.stmt]) -> list[ast.For]:
    found = []
    for node in body:
        inside = [*_innermost_loops(getattr(node, "body", [])), *_innermost_loops(getattr(node, "orelse", []))]
        found += inside or ([node] if isinstance(node, ast.For) else [])
    return found


def _is_body(name: str) -> bool:
    """Whether a function is the body of a loop over tiles."""
    return _TILE_BODY.search(name) is not None and name not in _OF_VECTORS


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Everything inside a node in the order of the text, the node itself left out."""
    for child in ast.iter_child_nodes(node):
        yield child
        yield from _in_order(child)
