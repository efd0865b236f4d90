"""What a check found: errors of tensors, cases, properties, and the table of them."""

from __future__ import annotations

from dataclasses import dataclass

from attncc.check.sizes import Case


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor of one case; `error` is its largest absolute error, `row_error` that of a row over the row, in norms.

    `used` is the part of the allowed error that was used: above 1 is wrong.
    """

    tensor: str
    error: float
    row_error: float
    used: float
    fault: str = ""  # what is wrong beyond a number: NaN, a shape, a dtype

    @property
    def ok(self) -> bool:
        """Within the limit and without a fault."""
        return not self.fault and self.used <= 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """One case of one form."""

    case: Case
    form: str | None
    comparisons: tuple[Comparison, ...]
    fault: str = ""  # the call itself failed
    in_pieces: bool = False  # whether a short call was made to take the pattern in pieces, as long ones do

    @property
    def way(self) -> str:
        """The form, and whether it ran in pieces."""
        return f"{self.form or 'default'}{' in pieces' if self.in_pieces else ''}"

    @property
    def ok(self) -> bool:
        """Every tensor is right."""
        return not self.fault and all(each.ok for each in self.comparisons)

    @property
    def text(self) -> str:
        """One line: ok, or which tensors are wrong and by how much."""
        head = f"{self.way}: {self.case.name}"
        if self.fault:
            return f"{head}: {self.fault}"
        wrong = [
            each.fault or f"{each.tensor} off by {each.error:.1e}, {each.used:.1f} times the limit"
            for each in self.comparisons
            if not each.ok
        ]
        return f"{head}: {'; '.join(wrong) or 'ok'}"


@dataclass(frozen=True, slots=True)
class Property:
    """A statement that must hold exactly, such as that outputs do not read later keys."""

    name: str
    form: str | None
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a check found."""

    verdicts: tuple[Verdict, ...]
    properties: tuple[Property, ...]

    def __add__(self, other: Report) -> Report:
        """Both together."""
        return Report(self.verdicts + other.verdicts, self.properties + other.properties)

    @property
    def ok(self) -> bool:
        """Nothing failed, and something ran."""
        return bool(self.verdicts) and not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """One line for each failing case or property."""
        found: tuple[Verdict | Property, ...] = (*self.verdicts, *self.properties)
        return tuple(each.text for each in found if not each.ok)

    @property
    def table(self) -> str:
        """One row for each form, dtype and tensor: the worst errors and the case that used most of its limit."""
        groups: dict[tuple[str, str, str], list[tuple[Comparison, Case]]] = {}
        for verdict in self.verdicts:
            dtype = str(verdict.case.dtype).removeprefix("torch.")
            for each in verdict.comparisons:
                groups.setdefault((verdict.way, dtype, each.tensor), []).append((each, verdict.case))
        rows = [("form", "dtype", "tensor", "cases", "max error", "row error", "of limit", "worst case")]
        for key, found in groups.items():
            worst, case = max(found, key=lambda pair: (bool(pair[0].fault), pair[0].used))
            error, row_error = (max(getattr(each, name) for each, _ in found) for name in ("error", "row_error"))
            rows.append((*key, str(len(found)), f"{error:.1e}", f"{row_error:.1e}", f"{worst.used:.0%}", case.name))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )
