"""The constructor of a layer's module: its arguments, what is demanded of them, and its learned tensors."""

from __future__ import annotations

from attncc.emit.layers.expressions import Printer
from attncc.plan.layers import LayerPlan
from attncc.spec.layers.dims import Dim
from attncc.spec.layers.model import Draw, Layer, Learned, Node, Op, walk
from attncc.spec.layers.text import text


class Constructor:
    """Texts of `__init__`, `reset_parameters` and `extra_repr`."""

    def __init__(self, layer: Layer, plan: LayerPlan) -> None:
        self.layer = layer
        self.plan = plan
        self.free = [each for each in layer.parameters if not each.fixed]
        self._constants = {each.name: str(each.value) for each in layer.parameters if each.fixed}
        self.printer = Printer(lambda name: self._constants.get(name, name), {}, lambda _: "")
        self.helpers = {"_whole_number" if each.is_whole else "_finite_number" for each in self.free}

    def arguments(self) -> str:
        """What it takes, in the order of the spec; those that others decide are None by default."""
        found = []
        first_default = next((at for at, each in enumerate(self.free) if each.default is not None), len(self.free))
        for at, each in enumerate(self.free):
            type_ = "int" if each.is_whole else "float"
            if each.default is None:
                found.append(f"{each.name}: {type_}")
                if at > first_default:
                    found.insert(0, "*") if "*" not in found else None
            elif each.default.op is Op.CONST:
                found.append(f"{each.name}: {type_} = {each.value!r}")
            else:
                found.append(f"{each.name}: {type_} | None = None")
        return ", ".join(["self", *found, "form: str | None = None", "device=None", "dtype=None"])

    def words(self) -> list[str]:
        """What each argument is."""
        found = []
        for each in self.free:
            if each.default is None:
                found.append(f"{each.name}: a {'whole ' if each.is_whole else ''}number.")
            elif each.default.op is Op.CONST:
                found.append(f"{each.name}: {each.value} by default.")
            else:
                found.append(f"{each.name}: {text(each.default)} by default.")
        return found

    def checks(self) -> list[str]:
        """Defaults that are made of other arguments, and what has to hold."""
        found = []
        sizes = self._sizes()
        for own in self.free:
            if own.default is not None and own.default.op is not Op.CONST:
                found.append(f"{own.name} = {self.printer.text(own.default)} if {own.name} is None else {own.name}")
            least = f", {sizes[own.name]}" if own.name in sizes else ""
            given = f'"{own.name}", {own.name}'
            check = f"_whole_number({given}{least})" if own.is_whole else f"_finite_number({given})"
            found.append(f"{own.name} = {check}")
        forms = '(None, "triton", "c", "torch")'
        found.append(f"_demand(form in {forms}, \"form\", repr(form), \"None, 'triton', 'c' or 'torch'\")")
        for condition in self.layer.conditions:
            if self._is_known(condition):
                continue
            names = sorted(_read(condition) - self._constants.keys())
            given = names[0] if len(names) == 1 else f"[{', '.join(names)}]"
            holds = self._condition(condition)
            found.append(f'_demand({holds}, "{", ".join(names)}", {given}, "{text(condition)}")')
        for each in self.layer.divisions:
            whole, by = self.printer.dim(each.whole), self.printer.dim(each.by)
            if each.whole.number is None or each.by.number is None:
                expected = (
                    f'f"a multiple of {each.by}, {{{by}}}"' if each.by.number is None else f'"a multiple of {each.by}"'
                )
                found.append(f'_demand({_tight(whole)} % {_tight(by)} == 0, "{each.whole}", {whole}, {expected})')
        for dim in self._differences():
            found.append(f'_demand({self.printer.dim(dim)} > 0, "{dim}", {self.printer.dim(dim)}, "1 or more")')
        return found

    def _nodes(self) -> list[Node]:
        return [node for _, value in self.layer.values for node in walk(value)]

    def _axes(self) -> list[Dim]:
        """Every length that a tensor of the layer has."""
        types = [
            *(each.type for each in self.layer.inputs),
            *(each.type for each in self.layer.learned),
            *(node.type for node in self._nodes()),
        ]
        return list(dict.fromkeys(axis for type_ in types for axis in type_.axes))

    def _sizes(self) -> dict[str, int]:
        """The least that whole numbers may be: 1 for lengths of axes, 0 for others that operators count by."""
        counts = [dim for node in self._nodes() if node.op is not Op.SIZE for dim in node.dims]
        return dict.fromkeys((name for dim in counts for name in dim.symbols), 0) | dict.fromkeys(
            (name for axis in self._axes() for name in axis.symbols), 1
        )

    def _differences(self) -> list[Dim]:
        """Lengths of parameters alone that need not be positive because each parameter is."""
        known = {each.name for each in self.layer.parameters}
        return [
            axis
            for axis in self._axes()
            if any(factor < 0 for _, factor in axis.terms)
            and axis.symbols <= known
            and not axis.symbols <= self._constants.keys()
        ]

    def _is_known(self, condition: Node) -> bool:
        """Whether fixed parameters alone decide it: it was checked when the file was built."""
        return _read(condition) <= self._constants.keys()

    def _condition(self, node: Node) -> str:
        match node.op:
            case Op.COMPARE:
                left, right = map(self.printer.text, node.args)
                return f"{left} {node.name} {right}"
            case Op.AND | Op.OR:
                word = " and " if node.op is Op.AND else " or "
                return word.join(f"({self._condition(each)})" for each in node.args)
        return f"not ({self._condition(node.args[0])})"

    def settings(self) -> list[str]:
        """What the module holds of its arguments."""
        return [f"self.{each.name} = {each.name}" for each in self.free] + ["self.form = form"]

    def parameters(self) -> list[str]:
        """The learned tensors, empty, and buffers of what is not learned."""
        found = [f"self.{part} = nn.Module()" for part in self._parts()]
        for each in self.layer.learned:
            empty = f"torch.empty({self._shape(each)}, device=device, dtype=dtype)"
            if each.is_fixed or each.is_running:
                part, _, name = f"self.{each.name}".rpartition(".")
                found.append(f'{part}.register_buffer("{name}", {empty})')
            else:
                found.append(f"self.{each.name} = nn.Parameter({empty})")
        return found

    def _parts(self) -> list[str]:
        """Layers that this one calls, as parts that hold what they learn; those of parts come after these."""
        found: dict[str, None] = {}
        for each in self.layer.learned:
            *names, _ = each.name.split(".")
            found.update(dict.fromkeys(".".join(names[: at + 1]) for at in range(len(names))))
        return list(found)

    def _shape(self, each: Learned) -> str:
        return ", ".join(map(self.printer.dim, each.type.axes)) or "()"

    def resets(self) -> list[str]:
        """How learned tensors begin: those that begin alike together."""
        alike: dict[tuple[Draw | None, tuple[float, ...]], list[str]] = {}
        for each in self.layer.learned:
            alike.setdefault((each.draw, each.numbers), []).append(f"self.{each.name}")
        found = []
        for (draw, numbers), names in alike.items():
            if len(names) == 1:
                found.append(_reset(names[0], draw, numbers))
            else:
                found.append(f"for tensor in ({', '.join(names)}):\n            {_reset('tensor', draw, numbers)}")
        return found

    def repr_text(self) -> str:
        """What `extra_repr` shows: arguments, and parameters that are fixed."""
        parts = [f"{each.name}={{self.{each.name}}}" for each in self.free]
        parts += [f"{name}={value}" for name, value in self._constants.items()]
        return ", ".join(parts)


def _read(condition: Node) -> set[str]:
    """The parameters that a condition is about."""
    found = {name for node in walk(condition) for dim in node.dims for name in dim.symbols}
    return found | {node.name for node in walk(condition) if node.op is Op.NAME}


def _tight(text_: str) -> str:
    return f"({text_})" if " " in text_ else text_


def _reset(name: str, draw: Draw | None, numbers: tuple[float, ...]) -> str:
    match draw:
        case Draw.CONSTANT:
            value = numbers[0]
            plain = {0.0: "zeros_", 1.0: "ones_"}.get(value)
            return f"nn.init.{plain}({name})" if plain else f"nn.init.constant_({name}, {value!r})"
        case Draw.NORMAL:
            return f"nn.init.normal_({name}, std={numbers[0]!r})"
        case Draw.UNIFORM:
            return f"nn.init.uniform_({name}, -{numbers[0]!r}, {numbers[0]!r})"
        case Draw.FAN_IN:
            rows = f"{name}.shape[-2]" if not numbers else f"({name}.numel() / {name}.shape[{int(numbers[0])}])"
            return f"_uniform({name}, {rows} ** -0.5)"
        case Draw.XAVIER:
            if numbers:
                out, of = (-1, -2) if numbers[0] == -1 else (0, 1)
                both = f"{name}.shape[{out}] + {name}.shape[{of}]"
                area = f"{name}.numel() / ({name}.shape[{out}] * {name}.shape[{of}])"
                return f"_uniform({name}, (6 / ({area} * ({both}))) ** 0.5)"
            return f"_uniform({name}, (6 / ({name}.shape[-2] + {name}.shape[-1])) ** 0.5)"
    rows = f"{name}.shape[-2]" if not numbers else f"({name}.numel() / {name}.shape[{int(numbers[0])}])"
    return f"nn.init.normal_({name}, std=(2 / {rows}) ** 0.5)"
