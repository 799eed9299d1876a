"""Forms of quantised rows: which holds which without loss, and codes of one form rewritten in another."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from export.tensors import QuantisedRows
from ops.layout import QuantForm


def holds(form: QuantForm, other: QuantForm) -> bool:
    """Whether `form` holds whole groups of `other` without rounding anything anew."""
    return (
        other.bits <= form.bits
        and other.group % form.group == 0
        and (form.minima or not other.minima)
        and (other.scales == "float16" or form.scales == "float32")
    )


def join(forms: Iterable[QuantForm | None]) -> QuantForm | None:
    """The smallest form that holds all; None where one part has none."""
    known = set(forms)
    present = [form for form in known if form is not None]
    if None in known or not present:
        return None
    if len(present) == 1:
        return present[0]
    return QuantForm(
        bits=max(form.bits for form in present),
        group=min(form.group for form in present),
        minima=any(form.minima for form in present),
        scales="float32" if any(form.scales == "float32" for form in present) else "float16",
    )


def recode(rows: QuantisedRows, form: QuantForm, wanted: QuantForm) -> QuantisedRows:
    """Rows of `form` in the form `wanted`, which must hold it."""
    if form == wanted:
        return rows
    repeats = form.group // wanted.group
    values, scales = rows.values, np.repeat(rows.scales, repeats, axis=1)
    minima = None if rows.minima is None else np.repeat(rows.minima, repeats, axis=1)
    zero = 1 << (form.bits - 1)
    if wanted.minima and minima is None:
        minima = scales * np.float32(-zero)
    elif not wanted.minima:
        values = values + np.uint8((1 << (wanted.bits - 1)) - zero)
    return QuantisedRows(values, scales, minima)
