"""Texts of the module template that depend on the operands and on what their gradients are summed to."""

from __future__ import annotations

from dataclasses import dataclass

from attncc.emit.numbers import tables_of
from attncc.emit.operands import Operands
from attncc.emit.torch_form.form import TorchForm
from attncc.emit.writer import WIDTH, listed, literal
from attncc.graph.core import Kind, Operand
from attncc.plan.model import Plan
from attncc.rewrite.backward import gradient_name
from attncc.spec.data import Size

_COLUMNS = (Kind.COLUMN_VECTOR, Kind.COLUMN_NUMBER)
_LONGEST_LIST = 72  # characters: a line that lists names begins with more than 20 others


@dataclass(frozen=True, slots=True)
class Total:
    """A tensor that slabs add to."""

    name: str
    operand: Operand
    sums: tuple[str, ...]  # the nodes that are added to it
    factor: str | None
    gradient: str


def lines(*arguments: str, indent: int = 20) -> list[str]:
    """Arguments in lines of the width of a file, deep in a function."""
    found = [""]
    for argument in arguments:
        if found[-1] and len(found[-1]) + len(argument) + 2 > WIDTH - indent:
            found.append("")
        found[-1] += f"{' ' * bool(found[-1])}{argument},"
    return found


class PassTexts:
    """Texts of `_forward`, `_backward` and `_batched`."""

    def __init__(self, plan: Plan, operands: Operands, form: TorchForm) -> None:
        self.plan = plan
        self.operands = operands
        self.form = form
        self.statistics = [name for name in plan.torch.forward.outputs if name != "out"]
        self.own_totals = tuple(self._totals())

    def values(self) -> dict[str, object]:
        """What the template reads, by name."""
        operands, core = self.operands, self.operands.core
        gradients = [gradient_name(each.name) for each in operands]
        rows = operands.row_gradients(self.form.backward_graph)
        whole = [each for each in operands if operands.is_whole(each)]
        real = [each for each in operands if each not in whole]
        numbers = [node.name for node in self.form.backward.statistics]
        exact = any(each.exact and each.kind is not Kind.TABLE for each in operands)
        return {
            "names": ", ".join(operands.names),
            "count": len(operands.names),
            "rows": core.rows,
            "exact": exact,
            "own_dtype": ", dtype=wide" * exact,
            "own_type": "dtype" if exact else "wide",
            "values": core.values,
            "pieces": self.form.pieces is not None,
            "chained": self.form.chained,
            "adds": self.form.adds,
            "adds_to_rows": self._adds_to_rows(negated=False),
            "distances": bool(core.of_kind(Kind.OFFSET_NUMBER)),
            "states": self._states(),
            "state_of_slab": self._state_of_slab(),
            "part_keys": self._part_keys(),
            "part_totals": self._part_totals("{part} = _room({name}, part)"),
            "add_part_totals": self._part_totals("_add_room({name}, {part}, part)"),
            "forward_slab": lines(*map(self._of_slab, operands), *self._rest_of_slab(), *self._chain()),
            "backward_slab": lines(
                *map(self._of_slab, operands),
                "d_rows",
                *("delta" if name == "delta" else f"_rows_of({name}, slab)" for name in numbers),
                *map(self._by_slab, self.form.added()),
                *self._rest_of_slab(),
                *([self._adds_to_rows(negated=True)] if self.form.counted_once() else []),
            ),
            "by_head": ", ".join(map(operands.by_head, operands)),
            "gradients_of": self._gradients_of(),
            "gradient_buffers": [self._buffer(each) for each in operands] + self._other_buffers(),
            "rows_given": self._rows_given(),
            "totals": [each.name for each in self.own_totals],
            "backward_by_head": lines(
                *map(operands.by_head, operands),
                *(f"{name}[:, at]" for name in self._rows_given()),
                *(each.name if each.operand.kind is Kind.TABLE else f"{each.name}_own" for each in self.own_totals),
                *("own", "call", "functools.partial(_store, grads, at)"),
            ),
            "backward_run": lines(
                *operands.names,
                *self._rows_given(),
                *(each.name for each in self.own_totals),
                *("numbers", "call", "functools.partial(_store, grads)"),
            ),
            "slab_rows": [
                f"{each.name}_rows = _rows_in({each.name}, slab)"
                for each in operands
                if self.form.begun and each.kind is Kind.ROW_VECTOR
            ],
            "vectors": [each.name for each in operands if each.kind.is_vector],
            "key_sums": self._key_sums("{total}_sums = _key_sums({total}, slab, chunks)"),
            "add_key_sums": self._key_sums("_add_key_sums({total}, {total}_sums, slab, chunks)"),
            "own_totals": [
                f"{each.name}_own = {each.name}.new_zeros({each.name}.shape[0], len(at), *{each.name}.shape[2:])"
                for each in self.own_totals
                if each.operand.kind is not Kind.TABLE
            ],
            "add_own_totals": [
                f"{each.name}.index_add_(1, {'kv_at' if each.operand.kind in _COLUMNS else 'at'}, {each.name}_own)"
                for each in self.own_totals
                if each.operand.kind is not Kind.TABLE
            ],
            "finished_totals": [line for each in self.own_totals for line in self.finished(each)],
            "row_gradients": ", ".join(gradient_name(each.name) for each in rows) + "," * (len(rows) == 1),
            "returned_gradients": ", ".join(map(self._returned, operands)) + "," * (len(gradients) == 1),
            "scored_by_block": ", ".join(map(self.by_block, self.form.scored())),
            "real_names": ", ".join(each.name for each in real),
            "whole_names": ", ".join(each.name for each in whole),
            "grad_names": ", ".join(gradients),
            "real_grad_names": ", ".join(gradient_name(each.name) for each in real),
            "cotangents": f"({', '.join(gradient_name(each.name) for each in real)},)" if whole else "grads",
            "second_gradients": ", ".join("None" if each in whole else gradient_name(each.name) for each in operands),
            "vmap": "_each_vmap" if self._lacks_batch() else "_fold_vmap",
            "facts_by_rows": "".join(f"{self._fact_by_rows(each)}, " for each in operands.facts),
            "schema_inputs": literal(", ".join(f"Tensor {name}" for name in operands.names)),
            "schema_gradients": literal(
                f"({', '.join(['Tensor'] * len(gradients))})" if len(gradients) > 1 else "Tensor"
            ),
            "fake_gradients": ", ".join(f"{name}.new_empty({name}.shape)" for name in operands.names),
        }

    def _lacks_batch(self) -> bool:
        """Whether an operand may have no axis of batch entries."""
        core = self.operands.core
        return bool(core.of_kind(Kind.OFFSET_NUMBER, Kind.TABLE)) or any(each.kind.is_fact for each in core.operands)

    def _fact_by_rows(self, operand: Operand) -> str:
        """The text of what the pattern reads, for some rows and all keys."""
        match operand.kind:
            case Kind.ROW_FACT if operand.listed:
                return f"{operand.name}[:, :, None, rows]"
            case Kind.ROW_FACT:
                return f"{operand.name}[:, :, None, rows, None]"
            case Kind.COLUMN_FACT:
                return f"{operand.name}[:, :, None, None]"
            case _:
                return operand.name

    # --- pieces -----------------------------------------------------------------------------------------------

    def _rest_of_slab(self) -> tuple[str, ...]:
        """What a slab is told beside its operands."""
        call = "call" if self.form.pieces is None else "part.call"
        return "_entries_of(numbers, slab)", "slab", "chunks", "work", call

    def _adds_to_rows(self, *, negated: bool) -> str:
        """The text that says whether gradients of a part's rows are there already, or that they are not."""
        if self.form.pieces is not None and self.form.pieces.have_own_rows:
            return "not part.adds" if negated else "part.adds"
        return "part.begins" if negated else "not part.begins"

    def _chain(self) -> tuple[str, ...]:
        if self.form.chained:
            return "state", "part.finishes"
        return ("state",) if self.form.begun else ()

    def _of_slab(self, operand: Operand) -> str:
        """The text of a slab's part of an operand, of the keys that its piece has."""
        if self.form.begun and operand.kind in _COLUMNS:
            return f"_keys_of({operand.name}{'_part' * (self.form.pieces is not None)}, slab, chunks)"
        if self.form.begun and operand.kind is Kind.ROW_VECTOR:
            return f"_folded({operand.name}_rows, slab)"
        if self.form.pieces is None:
            return self.operands.by_slab(operand)
        if operand.kind in _COLUMNS:
            return f"{operand.name}_part[slab.entries]"
        if operand.kind is Kind.OFFSET_NUMBER:
            return f"_own({operand.name}, slab)[..., slab.distances]"
        return self.operands.by_slab(operand)

    def _part_keys(self) -> list[str]:
        names = [each.name for each in self.operands if each.kind in _COLUMNS]
        return [f"{name}_part = {name}[:, :, part.places]" for name in names]

    def _part_totals(self, template: str) -> list[str]:
        names = [each.name for each in self.own_totals if each.operand.kind in _COLUMNS]
        return [template.format(name=name, part=f"{name}_part") for name in names]

    def _states(self) -> list[str]:
        """Room for the sums that pieces hand on."""
        rows = self.operands.core.rows
        widths = [width or "1" for _, width in self.form.states]
        return [f"{rows}.new_empty(*{rows}.shape[:3], {width}, dtype=wide)," for width in widths]

    def _state_of_slab(self) -> str:
        return " ".join(
            f"{self._rows_of_state(at)}," if width is None else f"{self._folded_state(at)},"
            for at, (_, width) in enumerate(self.form.states)
        )

    def _folded_state(self, at: int) -> str:
        own = f"states[{at}]"
        return f"_folded(_rows_in({own}, slab), slab)" if self.form.begun else f"_fold({own}, slab, kv_heads)"

    def _rows_of_state(self, at: int) -> str:
        return f"_rows_in(states[{at}], slab)" if self.form.begun else f"states[{at}][slab.entries, :, slab.rows]"

    # --- totals -----------------------------------------------------------------------------------------------

    def _totals(self) -> list[Total]:
        """One for each gradient, and one for each summand that is multiplied by a number of its own."""
        found = []
        for gradient, (operand, parts) in self.operands.totals(self.form.backward_graph).items():
            single = len(parts) == 1
            plain = tuple(part.total for part in parts if part.factor is None)
            if single or plain:
                sums = tuple(part.total for part in parts) if single else plain
                found.append(Total(gradient, operand, sums, parts[0].factor if single else None, gradient))
            for part in parts if not single else ():
                if part.factor is not None:
                    found.append(Total(part.total, operand, (part.total,), part.factor, gradient))
        return found

    def _buffer(self, operand: Operand) -> str:
        name, gradient = operand.name, gradient_name(operand.name)
        if operand.kind in (Kind.ROW_VECTOR, Kind.ROW_NUMBER):
            made = "empty" if operand in self.operands.row_gradients(self.form.backward_graph) else "zeros"
            dtype = ", dtype=wide" if self.form.adds else ""
            return f"{gradient} = {name}.new_{made}({name}.shape{dtype})"
        if self.operands.is_whole(operand):
            return f"{gradient} = torch.zeros_like({name})"
        return f"{gradient} = {name}.new_zeros({name}.shape, dtype=wide)"

    def _gradients_of(self) -> str:
        """What backward gives gradients of, on one line."""
        names = listed([each.name for each in self.operands if not each.kind.is_fact])
        return names if len(names) <= _LONGEST_LIST else "all operands that are no facts, in their order"

    def _other_buffers(self) -> list[str]:
        names = {gradient_name(each.name) for each in self.operands}
        return [
            f"{each.name} = torch.zeros_like({each.gradient})" for each in self.own_totals if each.name not in names
        ]

    def _key_sums(self, template: str) -> list[str]:
        """For each total of keys a line about what slabs that are computed together add to it."""
        part = "" if self.form.pieces is None else "_part"
        totals = [each.name for each in self.own_totals if each.operand.kind in _COLUMNS and self.form.begun]
        return [template.format(total=f"{name}{part}") for name in totals]

    def _by_slab(self, node: str) -> str:
        total = next(each for each in self.own_totals if node in each.sums)
        own = "" if self.form.pieces is None else "_part"
        if self.form.begun and total.operand.kind in _COLUMNS:
            flat = ".flatten(0, 1)" if total.operand.kind is Kind.COLUMN_VECTOR else ""
            return f"{total.name}{own}_sums{flat}"
        match total.operand.kind:
            case Kind.COLUMN_VECTOR:
                return f"{total.name}{own}[slab.entries].flatten(0, 1)"
            case Kind.COLUMN_NUMBER:
                return f"{total.name}{own}[slab.entries]"
            case Kind.OFFSET_NUMBER:
                return f"_own({total.name}, slab)" + ("[..., slab.distances]" if own else "")
            case _:
                return f"{total.name}[slab.entries]" if self.operands.has_batch(total.operand) else total.name

    def finished(self, total: Total) -> list[str]:
        """What is left to do to a total once every slab has added."""
        lines = []
        factor = total.factor
        inner = total.operand.kind in (Kind.OFFSET_NUMBER, Kind.TABLE)  # those differ between batch entries
        if factor is not None and not (inner and factor in tables_of(self.form.uniform())):
            at = [node.name for node in self.form.uniform()].index(factor)
            own = "[..., 0]" if total.operand.kind is Kind.COLUMN_NUMBER and self._is_tensor(factor) else ""
            lines.append(f"{total.name}.mul_(numbers[{at}]{own})")
        if total.name != total.gradient:
            lines.append(f"{total.gradient}.add_({total.name})")
        return lines

    def _is_tensor(self, number: str) -> bool:
        return number in tables_of(self.form.uniform())

    def _returned(self, operand: Operand) -> str:
        gradient = gradient_name(operand.name)
        wide = operand.kind is Kind.COLUMN_VECTOR
        wide |= self.form.adds and operand.kind in (Kind.ROW_VECTOR, Kind.ROW_NUMBER)
        return f"{gradient}.to({operand.name}.dtype)" if wide else gradient

    def _rows_given(self) -> list[str]:
        """What is given of each row, in the order of `_backward`'s arguments."""
        plan = self.plan
        read = {node.name for node in self.form.backward.statistics}
        given = ["out"] if plan.reads_delta else []
        given += [name for name in self.statistics if name in read]
        return [*given, "d_out", *(["d_lse"] if plan.reads_delta and plan.has_lse else [])]

    # --- plain operations -------------------------------------------------------------------------------------

    def by_block(self, operand: Operand) -> str:
        """The text of an operand in plain operations, where blocks of rows and their keys have axes."""
        return self._spread(operand, "blocked", "row[None]", "place")

    def by_rows(self, operand: Operand) -> str:
        """The text of an operand for some rows and all keys."""
        return self._spread(operand, "own", "row[None, None]", "place[None, None]")

    def _spread(self, operand: Operand, own: str, row: str, place: str) -> str:
        name = operand.name
        dtype = f", {name}.dtype" if operand.exact else ""
        match operand.kind:
            case Kind.ROW_VECTOR:
                return f"{own}({name})"
            case Kind.ROW_NUMBER:
                return f"{own}({name}[..., None]{dtype})"
            case Kind.COLUMN_VECTOR:
                return f"windows({name})"
            case Kind.COLUMN_NUMBER:
                return f"windows({name}[..., None]{dtype}).mT"
            case Kind.OFFSET_NUMBER:
                self.form.used.add("_at_distances")
                return f"_at_distances({name}, {row}, {place}, m)"
            case _:
                return name

    # --- call-wide numbers ------------------------------------------------------------------------------------

    def numbers_call(self, without: frozenset[str] = frozenset(), *, rows: str = "", values: str = "") -> str:
        """The call that computes numbers of the call: shapes are read off a row, something d wide, and values.

        Args:
            without: operands that are not at hand.
            rows: what stands in for a row, if anything does.
            values: what stands in for values.
        """
        uniform = self.form.uniform()
        if not uniform:
            return "()"
        core = self.operands.core
        wide = self.operands.as_wide_as(Size.WIDTH)
        columns = [each.name for each in core.of_kind(*_COLUMNS) if each.name not in without]
        values = values or (core.values if core.values not in without else columns[0])
        scale = "scale" if self.plan.spec.reads_scale else "None"
        lengths = "None" if rows else "kv_lengths"
        return f"_numbers({rows or core.rows}, {wide or values}, {values}, {scale}, {lengths})"
