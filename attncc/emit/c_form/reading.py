"""What the functions of kernels say: which they call, what they name, and where."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeGuard

from attncc.emit.c_form.expressions import Term, function_of
from attncc.emit.c_form.values import Variable

PRODUCTS = ("_dot", "_weigh")
# By the operator of OpenMP: what a reduction begins with, of real and of whole numbers.
REDUCTIONS = {
    "tl.sum": ("+", "R(0.0)", "0"),
    "tl.max": ("max", "-INFINITY", "INT_MIN"),
    "tl.min": ("min", "INFINITY", "INT_MAX"),
}
APART = (*PRODUCTS, *REDUCTIONS)  # what is computed by statements of its own
_CONSTANTS = ("BLOCK_", "LIST_", "BY_STATES", "TERM", "FACTOR", "PRECISION", "MASKED")
LOADS = ("_load_tile", "_load_part")
_RESERVED = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int long "
    "register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while "
    "real vector program programs threads share has_threads asm typeof main "
    "r c x y "  # indices of loops
    "linux unix NULL NAN INFINITY INLINE COPY VECTOR VECTORS ROWS LANES IS_MINE Grid Rows bf16 fp16".split()
)


def is_constant(argument: ast.arg) -> bool:
    """Whether an argument is known when a kernel is compiled: tiles and choices of code, but no widths of vectors."""
    return argument.annotation is not None and argument.arg.startswith(_CONSTANTS)


def c_name(name: str) -> str:
    """A name that C allows."""
    return f"{name}_" if name in _RESERVED else name.lstrip("_") or name


@dataclass(slots=True)
class Called:
    """A function of kernels that is translated with the types of its first call."""

    node: ast.FunctionDef
    arguments: list[str] = field(init=False)  # but for constants; whether its tile is masked is none
    turned: frozenset[str] = field(init=False)  # of which it multiplies transposes with keys or rows of its own
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.arguments = [each.arg for each in self.node.args.args if each.arg == "MASKED" or not is_constant(each)]
        products = [each for each in calls_in(self.node) if function_of(each) in PRODUCTS]
        self.turned = frozenset(
            each.args[0].id
            for each in products
            if isinstance(each.args[0], ast.Name)
            and each.args[0].id in self.arguments
            and is_call(each.args[1], ("tl.trans",))
        )


# The fields with expressions of what kernels are mostly made of: one each, and lists of them.
_WITHIN: dict[type[ast.AST], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ast.Assign: (("value",), ("targets",)),
    ast.Attribute: (("value",), ()),
    ast.BinOp: (("left", "right"), ()),
    ast.BoolOp: ((), ("values",)),
    ast.Call: (("func",), ("args", "keywords")),
    ast.Compare: (("left",), ("comparators",)),
    ast.Constant: ((), ()),
    ast.Expr: (("value",), ()),
    ast.Name: ((), ()),
    ast.Subscript: (("value", "slice"), ()),
    ast.UnaryOp: (("operand",), ()),
    ast.keyword: (("value",), ()),
}


def walk(node: ast.AST) -> list[ast.AST]:
    """Everything within, outermost first, but for operators and contexts; in a fifth of the time of `ast.walk`."""
    found = [node]
    for each in found:  # which grows
        own = vars(each)
        known = _WITHIN.get(each.__class__)
        if known is not None:
            for name in known[0]:
                found.append(own[name])
            for name in known[1]:
                found += own[name]
            continue
        for name in each._fields:
            inner = own.get(name)
            if isinstance(inner, list):
                found += [one for one in inner if isinstance(one, ast.AST)]
            elif isinstance(inner, ast.AST) and inner._fields:
                found.append(inner)
    return found


@lru_cache(64)
def nodes_of(node: ast.FunctionDef) -> tuple[ast.AST, ...]:
    """Everything within a function, which is asked for again and again."""
    return tuple(walk(node))


@lru_cache(64)
def calls_in(node: ast.FunctionDef) -> tuple[ast.Call, ...]:
    """The calls among them."""
    return tuple(each for each in nodes_of(node) if isinstance(each, ast.Call))


def is_call(node: ast.AST, functions: Container[str]) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and function_of(node) in functions


def calls_of(node: ast.FunctionDef, called: Mapping[str, Called]) -> list[ast.Call]:
    return [each for each in calls_in(node) if function_of(each) in called]


def turned_arguments(call: ast.Call, called: Mapping[str, Called]) -> list[str]:
    function = called[function_of(call)]
    pairs = zip(function.node.args.args, call.args, strict=True)
    return [name_of(argument) for parameter, argument in pairs if parameter.arg in function.turned]


def name_of(node: ast.expr) -> str:
    assert isinstance(node, ast.Name), ast.unparse(node)
    return node.id


def names_read(node: ast.expr) -> Counter[str]:
    """The names that an expression reads, and how often."""
    return Counter(each.id for each in walk(node) if isinstance(each, ast.Name))


def is_none_test(node: ast.expr) -> bool:
    return isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot)


def unconverted(node: ast.expr) -> ast.expr:
    """A tile without its type: products take numbers as they are held."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
        node = node.func.value
    return node


def c_name_of(name: str, known: Mapping[str, Variable | Term]) -> str:
    found = known.get(name)
    return found.name if isinstance(found, Variable) else name


def blocks_of(node: ast.FunctionDef) -> dict[str, list[tuple[int, ...]]]:
    """For each name the blocks, from the outermost inwards, of every place where it stands."""
    found: dict[str, list[tuple[int, ...]]] = {}

    def visit(body: Sequence[ast.stmt], path: tuple[int, ...]) -> None:
        for statement in body:
            inner: list[Sequence[ast.stmt]] = []
            heads: list[ast.AST] = [statement]
            if isinstance(statement, ast.If):
                inner, heads = [statement.body, statement.orelse], [statement.test]
            elif isinstance(statement, ast.For):
                inner, heads = [statement.body], [statement.iter]
            for head in heads:
                for each in walk(head):
                    if isinstance(each, ast.Name):
                        found.setdefault(each.id, []).append(path)
            for each_body in inner:
                visit(each_body, (*path, id(each_body)))

    visit(node.body, ())
    return found
