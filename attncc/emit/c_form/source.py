"""The text of a module with Triton kernels → the same kernels in C, and what a caller has to know of each."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import lru_cache

from attncc.emit.c_form.body import FunctionTranslator
from attncc.emit.c_form.expressions import function_of
from attncc.emit.c_form.reading import Called, c_name, calls_in, is_constant, nodes_of, walk
from attncc.emit.c_form.text import CText
from attncc.emit.c_form.values import INT, REAL, Variable, address_type
from attncc.emit.triton_form.scope import CPUS_ALONE, OF_CLASSES
from attncc.emit.units import units_of

_SIZE = re.compile(r"_size_\d+$")  # of an axis of a table


@dataclass(frozen=True, slots=True)
class CKernel:
    """One kernel in C.

    Attributes:
        name: its name in Triton's text, without the underscore.
        arguments: the names of what it is given, in order, without what is known when it is compiled.
        whole: those of them that are whole numbers.
        constants: the names of what is.
        text: its functions.
    """

    name: str
    arguments: tuple[str, ...]
    whole: tuple[str, ...]
    constants: tuple[str, ...]
    text: str


def kernels_in_c(text: str, library: Container[str]) -> tuple[CKernel, ...]:
    """Every kernel of a module.

    Args:
        text: the module.
        library: the names of the helpers that have a counterpart in C.
    """
    text = _own_kernels(text, library)
    functions = {each.name: each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)}
    comments = _comments_of(text)
    kernels = {name: node for name, node in functions.items() if _is_kernel(node)}
    others = {name: node for name, node in functions.items() if name not in kernels}
    return tuple(_kernel(node, others, comments) for node in kernels.values())


def _own_kernels(text: str, library: Container[str]) -> str:
    """What stands where triton is known to be there, but for the library, which need not be parsed."""
    units = [each for each in units_of(text) if each.is_kernel]
    return "\n".join(each.text for each in units if not any(name in library for name in each.names))


def _comments_of(text: str) -> dict[int, str]:
    """The comments by line; kernels have no strings with a `#`."""
    found = ((at, line.partition("#")[2].strip()) for at, line in enumerate(text.split("\n"), 1) if "#" in line)
    return {at: comment for at, comment in found if comment != "fmt: skip"}


def _is_kernel(node: ast.FunctionDef) -> bool:
    return node.name.rstrip("_0123456789").endswith("_kernel")


def _kernel(node: ast.FunctionDef, others: Mapping[str, ast.FunctionDef], comments: Mapping[int, str]) -> CKernel:
    called = {name: Called(others[name]) for name in _called_by(node, others)}
    everything = [node, *(each.node for each in called.values())]
    constants = frozenset(
        argument.arg
        for each in everything
        for argument in each.args.args
        if is_constant(argument) and argument.arg != "MASKED"
    )
    arguments = [each.arg for each in node.args.args if not is_constant(each)]
    parameters = {name: _parameter(name, node, everything) for name in arguments if not name.endswith("_strides")}
    translated = FunctionTranslator(node, parameters, called, constants, comments).translate()
    text = CText()
    for each in called.values():
        text.lines([*each.lines, ""])
    _document(text, node)
    own = [_declared(name, parameters.get(name)) for name in arguments]
    text.line(f"static void {c_name(node.name)}(const Grid program, const Grid programs, {', '.join(own)})")
    text.lines(["{", *translated, "}", ""])
    in_order = any(CPUS_ALONE in ast.unparse(each) for each in node.decorator_list)
    _entry(text, c_name(node.name), arguments, own, in_order=in_order)
    own_constants = tuple(each.arg for each in node.args.args if is_constant(each) and each.arg != "PRECISION")
    whole = tuple(name for name, each in parameters.items() if each.ctype == INT)
    return CKernel(c_name(node.name), tuple(arguments), whole, own_constants, "\n".join(text.written) + "\n")


def _called_by(node: ast.FunctionDef, others: Mapping[str, ast.FunctionDef]) -> list[str]:
    names = [function_of(each) for each in calls_in(node)]
    return list(dict.fromkeys(name for name in names if name in others))


def _document(text: CText, node: ast.FunctionDef) -> None:
    said = ast.get_docstring(node)
    if said:
        text.line(f"// {said}")


def _parameter(name: str, node: ast.FunctionDef, everything: list[ast.FunctionDef]) -> Variable:
    if name.endswith("_ptr"):
        of = name.removesuffix("_ptr")
        return Variable(c_name(name), (), address_type(of), of=of)
    is_whole = (
        name.isupper()
        or name in OF_CLASSES
        or _SIZE.search(name)
        or name in _whole_names(node)
        or any(name in _counted(each) for each in everything)
    )
    return Variable(c_name(name), (), INT if is_whole else REAL)


def _whole_names(node: ast.FunctionDef) -> set[str]:
    """The arguments that Triton does not specialise: lengths, positions and counts."""
    decorators = [each for each in node.decorator_list if isinstance(each, ast.Call)]
    constants = [each for decorator in decorators for each in walk(decorator) if isinstance(each, ast.Constant)]
    return {str(each.value) for each in constants}


@lru_cache(64)
def _counted(node: ast.FunctionDef) -> frozenset[str]:
    """The names that a function counts with: divides by them, compares them, or holds an index to them."""
    found: set[str] = set()
    for each in nodes_of(node):
        match each:
            case ast.BinOp(op=ast.FloorDiv() | ast.Mod(), left=left, right=right):
                found.update(_names_among(left, right))
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                found.update(_names_among(left, right))
            case ast.Call(func=ast.Name(id="_clamp" | "_is_named"), args=[*_, size]):
                found.update(_names_among(size))
    return frozenset(found)


def _names_among(*nodes: ast.expr) -> list[str]:
    return [each.id for each in nodes if isinstance(each, ast.Name)]


def _declared(name: str, parameter: Variable | None) -> str:
    return f"const int64_t *{name}" if parameter is None else parameter.parameter


def _entry(text: CText, name: str, arguments: list[str], declared: list[str], *, in_order: bool) -> None:
    """The function that the module calls: every program, by several threads, or a thread's share of them.

    Programs that add to what other programs of their head have written run `in_order`, by one thread a head.
    """
    given = [each.replace("real ", "double ") if each.startswith("real ") else each for each in declared]
    text.line(f"void run(const Grid programs, const int threads, const int share, {', '.join(given)})")
    with text.braces():
        depth = 2 if in_order else 3
        text.line(f"#pragma omp parallel for collapse({depth}) schedule(dynamic) num_threads(threads)")
        for axis in "zyx":
            text.line(f"for (int {axis} = 0; {axis} < programs.{axis}; {axis}++)")
        names = ", ".join(c_name(each) for each in arguments)
        head = "(int64_t)z * programs.y + y"
        text.line(f"    if (IS_MINE({head if in_order else f'({head}) * programs.x + x'}))")
        text.line(f"        {name}((Grid){{x, y, z}}, programs, {names});")
