"""Values of a layer → Python: plain torch, which autograd differentiates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count

from attncc.emit.layers.loops import loop
from attncc.emit.layers.sequence import KEEPERS, TEXTS
from attncc.spec.layers.dims import Atom, Ceil, Dim, blocks_of, constant, sequence_of
from attncc.spec.layers.model import Node, Op, Type

_SUM, _PRODUCT, _UNARY, _POWER, _ATOM = range(5)
_SIGNS = {
    Op.ADD: (_SUM, "+"), Op.SUBTRACT: (_SUM, "-"), Op.MULTIPLY: (_PRODUCT, "*"), Op.DIVIDE: (_PRODUCT, "/"),
    Op.FLOOR_DIVIDE: (_PRODUCT, "//"), Op.MODULO: (_PRODUCT, "%"), Op.MATMUL: (_PRODUCT, "@"),
}  # fmt: skip
_OF_TENSORS = {
    "silu": "functional.silu", "gelu": "functional.gelu", "softplus": "functional.softplus",
    "relu": "functional.relu", "elu": "functional.elu",
}  # fmt: skip
_OF_NUMBERS = {"abs": "abs", "exp2": "math.exp2", "min": "min", "max": "max", "floor": "math.floor"}
_LENGTHS = {"n": "lengths", "m": "m_lengths"}


class Printer:
    """Prints values; remembers which helpers and names the text needs."""

    def __init__(
        self,
        spell: Callable[[str], str],
        learned: Mapping[str, Type],
        calls: Callable[[Node], str],
        side: Callable[[Node], str] = lambda node: "",
        batch: str = "",
    ) -> None:
        self.spell = spell  # a parameter's or a run-time length's name → Python
        self.learned = learned
        self.calls = calls  # of a core: how it is called, up to the closing bracket
        self.side = side  # what a call of a core gives beside its output
        self.batch = batch  # how many batch entries there are
        self.helpers: set[str] = set()
        self.lengths: set[str] = set()  # run-time lengths that are read as numbers
        self.longest: dict[str, tuple[Dim, Dim]] = {}  # slices of sequences' lengths, with what they are cut from
        self.keep: Callable[[str, bool], str] | None = None  # of a function that keeps something: how it is called
        self.like = ""  # a tensor of the type and device that new ones have
        self.lines: list[str] = []  # that stand before the one which is being printed
        self.target = ""  # what the value that is being printed is called
        self.bound: dict[str, str] = {}  # what values of loops are called
        self.taken: set[str] = set()

    def text(self, node: Node) -> str:
        """The value as an expression."""
        return self._node(node)[0]

    def statement(self, name: str, node: Node) -> list[str]:
        """The lines that make a value known by its name."""
        self.lines, self.target = [], name if node.op is Op.ITERATE else ""
        text = self.text(node)
        return [*self.lines, *([f"{name} = {text}"] if text != name else [])]

    def keeper(self, node: Node) -> str:
        """What is called for an operator that reads earlier tokens."""
        helper = KEEPERS[node.op]
        self.helpers.add(helper)
        of_tokens = node.along is not None and sequence_of(node.along) is not None
        return self.keep(helper, node.args[0].type.batched) if self.keep is not None and of_tokens else helper

    def start(self, node: Node) -> str:
        """The position of the first token of an operator's argument, or of the first block of tokens."""
        by = blocks_of(node.along) if node.along is not None else None
        return "start" if by is None or by == constant(1) else f"start // {_tight(self.dim(by))}"

    def free_name(self, name: str) -> str:
        """The name, or one like it that nothing else has."""
        found = (
            name
            if name not in self.taken
            else next(each for each in (f"{name}_{at}" for at in count(2)) if each not in self.taken)
        )
        self.taken.add(found)
        return found

    def dim(self, dim: Dim) -> str:
        """A length as a whole number."""
        self.lengths |= dim.symbols & _LENGTHS.keys()
        return dim.text(self.spell, python=True)

    def lengths_of(self, dim: Dim) -> str:
        """How many entries of a sequence's axis are no padding, as a tensor or None."""
        found = sequence_of(dim)
        return "None" if found is None else self._lengths(found)

    def _lengths(self, atom: Atom) -> str:
        by = constant(1)
        while isinstance(atom, Ceil):  # blocks of blocks are blocks
            by *= atom.by
            inner = sequence_of(atom.of)
            assert inner is not None
            atom = inner
        if isinstance(atom, str):
            found = _LENGTHS[atom]
        else:
            self.helpers.add("_at_most")
            found = f"_at_most({self.lengths_of(atom.of)}, {self.dim(atom.most)})"
        if by.number == 1:
            return found
        self.helpers.add("_blocks")
        return f"_blocks({found}, {self.dim(by)})"

    def _inside(self, node: Node, level: int) -> str:
        text, own = self._node(node)
        return f"({text})" if own < level else text

    def _node(self, node: Node) -> tuple[str, int]:
        """The text and how tightly it binds."""
        match node.op:
            case Op.CONST:
                value = node.numbers[0]
                return (repr(value), _UNARY if value < 0 else _ATOM)
            case Op.SIZE:
                text = self._size(node.dims[0])
                return text, _ATOM if text.replace(".", "").replace("_", "").isalnum() else _SUM
            case Op.NAME if node.name in self.bound:
                return self.bound[node.name], _ATOM
            case Op.ITERATE:
                return loop(self, node), _ATOM
            case Op.NAME:
                name = f"self.{node.name}" if node.name in self.learned else self.spell(node.name)
                return name, _ATOM
            case Op.NEGATE:
                return f"-{self._inside(node.args[0], _UNARY)}", _UNARY
            case Op.POWER:
                left, right = node.args
                return f"{self._inside(left, _ATOM)} ** {self._inside(right, _UNARY)}", _POWER
            case Op.MATMUL:
                return self._matmul(node), _PRODUCT
            case _ if node.op in _SIGNS:
                level, sign = _SIGNS[node.op]
                left, right = node.args
                return f"{self._inside(left, level)} {sign} {self._inside(right, level + 1)}", level
        return self._call(node), _PRODUCT if node.op is Op.SCALE_NORM and len(node.args) > 1 else _ATOM

    def _size(self, dim: Dim) -> str:
        """A length as a number, which need not be whole: `sqrt(dim / heads)`."""
        self.lengths |= dim.symbols & _LENGTHS.keys()
        return dim.text(self.spell, python=dim.is_whole)

    def _matmul(self, node: Node) -> str:
        left, right = node.args
        inner = left.type.axes[-1]
        a_level = _PRODUCT if left.op is Op.MATMUL else _PRODUCT + 1  # `(u * v) @ w` is easier to read
        if sequence_of(inner) is None:
            return f"{self._inside(left, a_level)} @ {self._inside(right, _PRODUCT + 1)}"
        self.helpers.add("_without_padding")
        if right.type.batched:
            axis = -2 if len(right.type.axes) > 1 else -1
            kept = f"_without_padding({self.text(right)}, {axis}, {self.lengths_of(inner)})"
            return f"{self._inside(left, a_level)} @ {kept}"
        kept = f"_without_padding({self.text(left)}, -1, {self.lengths_of(inner)})"
        return f"{kept} @ {self._inside(right, _PRODUCT + 1)}"

    def _call(self, node: Node) -> str:
        args = node.args

        def x() -> str:  # once: each time that a call of a core is printed is a place of its own
            return self._inside(args[0], _ATOM)

        match node.op:
            case Op.FUNCTION:
                return self._function(node)
            case Op.TRANSPOSE:
                return f"{x()}.mT"
            case Op.INSERT:
                return f"{x()}.unsqueeze({node.axis})"
            case Op.DROP:
                return f"{x()}.squeeze({node.axis})"
            case Op.LAYER_NORM:
                return self._norm("layer_norm", node)
            case Op.RMS_NORM:
                return self._norm("rms_norm", node)
            case Op.UNIT:
                self.helpers.add("_unit")
                return f"_unit({self.text(args[0])}, {node.numbers[0]!r})"
            case Op.SCALE_NORM:
                self.helpers.add("_scale_norm")
                gain = f" * {self._inside(args[1], _PRODUCT + 1)}" if len(args) > 1 else ""
                return f"_scale_norm({self.text(args[0])}, {node.numbers[0]!r}){gain}"
            case Op.SOFTMAX | Op.SUM | Op.MEAN | Op.LARGEST:
                return self._along(node)
            case Op.CONCAT:
                return f"torch.cat(({', '.join(map(self.text, args))}), {node.axis})"
            case Op.SPLIT_HEADS:
                self.helpers.add("_heads")
                return f"_heads({self.text(args[0])}, {self.dim(node.dims[0])})"
            case Op.MERGE_HEADS:
                if len(args[0].type.axes) == 2:
                    return f"{x()}.flatten(-2)"
                self.helpers.add("_merged")
                return f"_merged({self.text(args[0])})"
            case Op.SLICE:
                return self._slice(node)
            case Op.PICK:
                return (
                    f"{x()}[:, {self.dim(node.dims[0])}]" if node.type.batched else f"{x()}[{self.dim(node.dims[0])}]"
                )
            case Op.POOL:
                by, lengths = self.dim(node.dims[0]), self.lengths_of(args[0].type.axes[node.axis])
                return f"{self.keeper(node)}({self.text(args[0])}, {node.axis}, {by}, {lengths})"
            case Op.REPEAT:
                return f"{x()}.repeat_interleave({self.dim(node.dims[0])}, {node.axis})"
            case Op.ROTATE:
                helper = "_rotated" if node.name == "halves" else "_rotated_pairs"
                self.helpers.add(helper)
                closed = ", closed=True" if node.numbers[1] else ""
                return f"{helper}({self.text(args[0])}, {node.numbers[0]!r}, {self.start(node)}{closed})"
            case Op.EXPAND:
                return f"{x()}.expand({', '.join([self.batch, *['-1'] * len(node.type.axes)])})"
            case Op.CHOOSE:
                return f"torch.where({', '.join(map(self.text, args))})"
            case Op.LARGEST_AT:
                self.helpers |= {"_top"}
                count, always = node.dims
                more = f", {self.dim(always)}" if always.terms else ""
                return f"_top({self.text(args[0])}, {self.dim(count)}, {self.lengths_of(args[0].type.axes[-1])}{more})"
            case Op.GATHER:
                self.helpers.add("_gathered")
                return f"_gathered({self.text(args[0])}, {node.axis}, {self.text(args[1])})"
            case Op.LOG_SUMS | Op.COLUMN_SUMS | Op.BLOCK_SUMS:
                return self.side(node)
            case Op.ATTEND:
                options = [f"{name}={self.text(each)}" for name, each in node.options]
                return f"{self.calls(node)}({', '.join([*map(self.text, args), *options])})"
        return TEXTS[node.op](self, node)

    def _norm(self, name: str, node: Node) -> str:
        x, *more = map(self.text, node.args)
        shape = f"({self.dim(node.args[0].type.axes[-1])},)"
        return f"functional.{name}({', '.join([x, shape, *more])}, eps={node.numbers[0]!r})"

    def _along(self, node: Node) -> str:
        """A reduction, or softmax, over an axis."""
        dim = node.along
        plain = {Op.SOFTMAX: "softmax", Op.SUM: "sum", Op.MEAN: "mean", Op.LARGEST: "amax"}[node.op]
        if dim is None and node.op is Op.LARGEST:  # of a batch, which may be empty
            self.helpers |= {"_largest"}
            return f"_largest({self.text(node.args[0])}, {node.axis}, None)"
        if dim is None or sequence_of(dim) is None:
            return f"{self._inside(node.args[0], _ATOM)}.{plain}({node.axis})"
        name = {Op.SOFTMAX: "_softmax", Op.SUM: "_sum_along", Op.MEAN: "_mean", Op.LARGEST: "_largest"}[node.op]
        self.helpers |= {name, "_without_padding"} if node.op in (Op.SUM, Op.MEAN) else {name, "_padding"}
        return f"{name}({self.text(node.args[0])}, {node.axis}, {self.lengths_of(dim)})"

    def _slice(self, node: Node) -> str:
        start, count, whole = node.dims
        if count.symbols & _LENGTHS.keys():
            self.longest[self.dim(count)] = (count, whole)
        first = "" if start.number == 0 else self.dim(start)
        last = self.dim(start + count) if start + count != whole else ""
        after = ", :" * (-node.axis - 1)
        return f"{self._inside(node.args[0], _ATOM)}[..., {first}:{last}{after}]"

    def _function(self, node: Node) -> str:
        name, args = node.name, node.args
        if node.type.is_number:
            return f"{_OF_NUMBERS.get(name, f'math.{name}')}({', '.join(map(self.text, args))})"
        if name in ("min", "max"):
            return self._extreme(name, args)
        if name == "clip":
            x, low, high = map(self.text, args)
            return f"torch.clamp({x}, {low}, {high})"
        if name == "stop_gradient":
            return f"{self._inside(args[0], _ATOM)}.detach()"
        return f"{_OF_TENSORS.get(name, f'torch.{name}')}({', '.join(map(self.text, args))})"

    def _extreme(self, name: str, args: tuple[Node, ...]) -> str:
        """The largest (smallest) of several, some of which may be numbers."""
        tensors = [self.text(each) for each in args if not each.type.is_number]
        numbers = [self.text(each) for each in args if each.type.is_number]
        found = tensors[0]
        for each in tensors[1:]:
            found = f"torch.{name}imum({found}, {each})"
        bound = "min" if name == "max" else "max"
        for each in numbers:
            found = f"torch.clamp({found}, {bound}={each})"
        return found


def _tight(text: str) -> str:
    return f"({text})" if " " in text else text
