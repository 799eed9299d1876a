"""The way back from the rows of a weight expression to the parameters it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.sources import regrouped_order


def scatter(
    recipe: Mapping[str, Any],
    rows: NDArray[np.int64],
    values: NDArray[np.float32],
    parameters: Mapping[str, NDArray[np.float32]],
) -> None:
    """Write `values` [n, ...], which are the rows `rows` of the expression, into its parameters in place.

    Rows that are constants are left out. Raises KeyError for a parameter that is not among `parameters`, and
    ValueError for an operation that has no way back.
    """
    match recipe["op"]:
        case "tensor":
            parameters[recipe["name"]][rows] = values
        case "concat":
            base = 0
            for part in recipe["parts"]:
                length = row_count(part, parameters)
                inside = (rows >= base) & (rows < base + length)
                if inside.any():
                    scatter(part, rows[inside] - base, values[inside], parameters)
                base += length
        case "slice":
            scatter(recipe["source"], rows + recipe["start"], values, parameters)
        case "regroup":
            order = regrouped_order(*recipe["arrangement"])
            scatter(recipe["source"], order[rows], values, parameters)
        case "transpose":
            parameters[recipe["source"]["name"]][:, rows] = values.T
        case "affine":
            scatter(recipe["source"], rows, (values - recipe["offset"]) / recipe["scale"], parameters)
        case "constant":
            return
        case operation:
            raise ValueError(f"{operation!r} is not an operation of a recipe")


def row_count(recipe: Mapping[str, Any], parameters: Mapping[str, NDArray[np.float32]]) -> int:
    """Rows of an expression."""
    match recipe["op"]:
        case "tensor":
            return len(parameters[recipe["name"]])
        case "concat":
            return sum(row_count(part, parameters) for part in recipe["parts"])
        case "slice":
            return int(recipe["stop"] - recipe["start"])
        case "transpose":
            return int(parameters[recipe["source"]["name"]].shape[1])
        case "constant":
            return int(recipe["shape"][0])
    return row_count(recipe["source"], parameters)
