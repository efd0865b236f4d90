"""The head of a module: what it was made from, and how the kernels follow from it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

from attncc.emit.writer import fill
from attncc.plan.decoder import decoder_of
from attncc.plan.describe import cost_sentence, decoder_sentence, plan_sentence
from attncc.plan.model import Plan
from attncc.rewrite.engine import Step
from attncc.spec.model import Spec
from attncc.version import VERSION

_CODING = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*[-_.a-zA-Z0-9]+")  # how Python finds a file's encoding (PEP 263)


def header(spec: Spec, plans: Sequence[tuple[str, Plan]]) -> str:
    """The comment at the top; plans have the names of their branches, or none."""
    parameters = "".join(f" -D {each.name}={each.value}" for each in spec.parameters)
    digested = hashlib.sha256(spec.source.text.encode()).hexdigest()
    lines = [
        f"{spec.name}: made by attncc {VERSION} from {_file_name(spec)} (sha256 {digested[:16]}). Do not edit.",
        f"Rebuild: attncc build {_file_name(spec)}{parameters}",
        "",
        *(f"    {line}" if line else "" for line in spec.source.text.rstrip().splitlines()),
        "",
    ]
    for name, plan in plans:
        of = f" of `{name}`" if name else ""
        lines += fill(f"Plan{of}: {plan_sentence(plan.domain, plan.pieces, plan.lists)}", 96)
        lines += fill(f"Cost{of}: {cost_sentence(plan)}", 96)
        lines += fill(f"Decoder{of}: {decoder_sentence(decoder_of(plan))}", 96)
    text = "\n".join(f"# {line}".rstrip() for line in lines)
    if any(_CODING.match(line) for line in text.splitlines()[:2]):  # a name such as `coding` must not declare one
        text = f"# -*- coding: utf-8 -*-\n{text}"
    return text


def derivation(steps: Iterable[Step]) -> str:
    """The laws that were applied, as a comment."""
    lines = ["How the kernels follow from the spec:"]
    for step in steps:
        first, *rest = fill(f"- {step.law}: {step.statement}", 96)
        lines += [first, *(f"  {line}" for line in rest)]
    return "\n".join(f"# {line}" for line in lines)


def docstring(spec: Spec) -> str:
    """The first line of the functional form's description."""
    summary = spec.summary or f"The attention `{spec.name}`."
    return "\n    ".join(fill(summary.replace("\\", "/").replace('"""', "'''"), 92))


def digest(spec: Spec) -> str:
    """What tells modules of different specs, parameters and versions apart."""
    parameters = ",".join(f"{each.name}={each.value}" for each in spec.parameters)
    return hashlib.sha256(f"{VERSION}\n{parameters}\n{spec.source.text}".encode()).hexdigest()


def _file_name(spec: Spec) -> str:
    """The file's own name: where it lay when it was built is nobody's business."""
    name = spec.source.name.replace("\\", "/").rsplit("/", 1)[-1]
    return "".join(one if one.isprintable() else "?" for one in name)
