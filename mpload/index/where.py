"""Conditions on the columns of an index, such as `label == 3 and width >= 256`, for blocks of samples at once.

A condition is written as in Python, and means what it means there, but it is never run as Python: its syntax tree is
translated node by node into NumPy and Arrow functions, and every other node is refused.
"""

import ast
import difflib
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.index.blocks import Block
from mpload.index.columns import ColumnType, format_columns
from mpload.index.exact import DIVIDED, compared, divided, floats_of
from mpload.index.index import Index, header_of
from mpload.index.texts import binary_array, booleans_of

__all__ = ["Condition", "parse_condition"]

_MAX_CHARACTERS: Final = 100_000
_EXAMPLE: Final = 'Write, for example, label == 3 and image.endswith(".jpg")'
_MAX_INTEGER: Final = (1 << 63) - 1
_SAFE_INTEGER: Final = float((1 << 63) - (1 << 12))  # anything smaller, though rounded, fits into int64


Condition = Callable[[Block], NDArray[np.bool_]]
"""Returns whether each sample of a block fulfils the condition, bool [n]."""


class _Kind(StrEnum):
    NUMBER = "a number"
    TEXT = "a text"
    TRUTH = "true or false"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """A part of a condition: what kind of value it has, and how to compute it for a block."""

    kind: _Kind
    text: str
    """How the user wrote it."""
    of: Callable[[Block], Any]
    """Number: NumPy array or Python number. Text: Arrow array or bytes. Truth: bool [n]."""
    constant: Any = None
    """The value if it is a constant: int, float or str."""
    has_classes: bool = False
    """Whether it is the label column of an index that names its classes."""


def parse_condition(text: str, index: Index) -> Condition:
    """Return a condition on the columns of an index.

    A condition may use the names of columns, `nbytes` if sizes were measured, numbers and quoted texts; `and`, `or`,
    `not`; `==`, `!=`, `<`, `<=`, `>`, `>=`; `in` and `not in`, with a list or with a text in which a text is searched;
    `+`, `-`, `*`, `/`, `//`, `%`; and `.startswith("...")` and `.endswith("...")`. Labels may be compared with names of
    classes. A cell that locates a file is the text in the index. Texts are compared byte by byte.

    Unlike in Python, division by zero is not an error: it gives inf or nan. Only with integers above 2**53 it is one.

    Raises:
        ArgumentError: the text is not such a condition.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"where must be a text, got {text!r:.80} of type {type(text).__name__}. {_EXAMPLE}")
    parser = _Parser(index, text)
    try:
        if not text.strip():
            raise parser.error("it is empty", f"{_EXAMPLE}, or leave it out")
        if len(text) > _MAX_CHARACTERS:
            raise parser.error(
                f"it has {len(text)} characters, more than the limit of {_MAX_CHARACTERS}", "Use keys instead"
            )
        with warnings.catch_warnings(action="ignore"):  # of unknown escapes in texts
            tree = ast.parse(text.strip(), mode="eval")
        value = parser.truth(tree.body)
    except ArgumentError:
        raise
    except (SyntaxError, ValueError) as error:
        finding = error.msg if isinstance(error, SyntaxError) else error  # without the name and the line of a file
        raise parser.error(f"it cannot be parsed: {finding}", _EXAMPLE) from error
    except (RecursionError, MemoryError):
        raise parser.error("it is nested too deeply", "Write a list: label in [1, 2, 3]") from None
    return lambda block: _as_column(value.of(block), len(block))


def _as_column(truth: Any, count: int) -> NDArray[np.bool_]:
    return np.broadcast_to(np.asarray(truth, np.bool_), count)


@dataclass(frozen=True, slots=True)
class _Parser:
    """Translates the nodes of one condition."""

    index: Index
    text: str

    def error(self, finding: str, next_step: str) -> ArgumentError:
        shown = self.text if len(self.text) <= 200 else self.text[:200] + "..."
        return ArgumentError(f"where {shown!r}: {finding}. {next_step}")

    def truth(self, node: ast.expr) -> _Value:
        value = self.value(node)
        if value.kind is not _Kind.TRUTH:
            other = '""' if value.kind is _Kind.TEXT else "0"
            raise self.error(f"{value.text} is {value.kind}, not true or false", f"Compare it: {value.text} != {other}")
        return value

    def number(self, node: ast.expr) -> _Value:
        value = self.value(node)
        if value.kind is not _Kind.NUMBER:
            raise self.error(
                f"{value.text} is {value.kind}, but arithmetic needs numbers", "Use columns of type int or float"
            )
        return value

    def value(self, node: ast.expr) -> _Value:
        match node:
            case ast.Constant():
                return self._constant(node)
            case ast.Name():
                return self._column(node)
            case ast.BoolOp():
                return self._joined(node)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.BinOp():
                return self._arithmetic(node)
            case ast.Compare():
                return self._compared(node)
            case ast.Call():
                return self._called(node)
        raise self._node_error(node)

    def _node_error(self, node: ast.AST) -> ArgumentError:
        what = f"{ast.unparse(node)} " if isinstance(node, ast.expr) else ""
        return self.error(
            f"{what}({type(node).__name__}) is not allowed",
            "Use columns, numbers, texts, and, or, not, comparisons, in, + - * / // %, startswith and endswith",
        )

    def _constant(self, node: ast.Constant) -> _Value:
        value, text = node.value, ast.unparse(node)
        if isinstance(value, str):
            data = value.encode("utf-8", "surrogateescape")
            return _Value(kind=_Kind.TEXT, text=text, of=lambda _: data, constant=value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._node_error(node)
        if isinstance(value, int) and value > _MAX_INTEGER:
            raise self.error(f"{text} does not fit into 64 bits", f"Numbers end at {_MAX_INTEGER}")
        return _Value(kind=_Kind.NUMBER, text=text, of=lambda _: value, constant=value)

    def _column(self, node: ast.Name) -> _Value:
        name, header = node.id, header_of(self.index)
        for number, column in enumerate(header.columns):
            if column.name == name and column.type in {ColumnType.INT, ColumnType.FLOAT}:
                has_classes = number == header.label_column and bool(header.classes)
                return _Value(
                    kind=_Kind.NUMBER, text=name, of=lambda block: block.numbers(name), has_classes=has_classes
                )
            if column.name == name:
                return _Value(kind=_Kind.TEXT, text=name, of=lambda block: block.texts(name))
        if name == "nbytes":
            if self.index.nbytes is None:
                raise self.error(
                    "sizes were not measured", f"Measure them: mpload index {self.index.path} --stat -o NEW.txt"
                )
            return _Value(kind=_Kind.NUMBER, text=name, of=lambda block: block.numbers(name))
        names = [column.name for column in header.columns]
        close = difflib.get_close_matches(name, names, n=1)
        raise self.error(
            f"{self.index.path} has no column {name}",
            f"Do you mean {close[0]}?" if close else f"Its columns are {format_columns(header.columns)}",
        )

    def _joined(self, node: ast.BoolOp) -> _Value:
        parts = [self.truth(value) for value in node.values]
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or

        def of(block: Block) -> Any:
            found = parts[0].of(block)
            for part in parts[1:]:
                found = join(found, part.of(block))
            return found

        return _Value(kind=_Kind.TRUTH, text=ast.unparse(node), of=of)

    def _unary(self, node: ast.UnaryOp) -> _Value:
        text = ast.unparse(node)
        if isinstance(node.op, ast.Not):
            truth = self.truth(node.operand)
            return _Value(kind=_Kind.TRUTH, text=text, of=lambda block: np.logical_not(truth.of(block)))
        if not isinstance(node.op, ast.USub | ast.UAdd):
            raise self._node_error(node)
        inner = self.number(node.operand)
        if isinstance(node.op, ast.UAdd):
            return inner
        if inner.constant is not None:
            constant = -inner.constant
            return _Value(kind=_Kind.NUMBER, text=text, of=lambda _: constant, constant=constant)
        return _Value(kind=_Kind.NUMBER, text=text, of=lambda block: self._computed(np.subtract, 0, inner.of(block)))

    def _arithmetic(self, node: ast.BinOp) -> _Value:
        compute = _ARITHMETIC.get(type(node.op))
        if compute is None:
            raise self._node_error(node)
        left, right = self.number(node.left), self.number(node.right)
        return _Value(
            kind=_Kind.NUMBER,
            text=ast.unparse(node),
            of=lambda block: self._computed(compute, left.of(block), right.of(block)),
        )

    def _computed(self, compute: Any, left: Any, right: Any) -> Any:
        """Compute with numbers; integers stay exact, or are refused.

        Integers among which some were divided by 0, so that there are inf and nan, have the dtype `DIVIDED`.
        """
        left, right = np.asarray(left), np.asarray(right)
        are_integers = all(each.dtype.kind == "i" or each.dtype == DIVIDED for each in (left, right))
        divides_by_zero = compute in {np.floor_divide, np.mod} and not floats_of(right).all()
        if are_integers and (divides_by_zero or DIVIDED in {left.dtype, right.dtype}):
            if (found := divided(compute, left, right)) is not None:
                return found
            raise self.error(
                "a divisor is 0, and integers exceed 2**53",
                "Select the samples with other divisors first, then among them",
            )
        left, right = (floats_of(each) if each.dtype == DIVIDED else each for each in (left, right))
        with np.errstate(all="ignore"):
            found = compute(left, right)
            if are_integers and found.dtype.kind == "i":
                about = np.abs(compute(left.astype(np.float64), right.astype(np.float64)))
                if (about >= _SAFE_INTEGER).any():
                    raise self.error("a result does not fit into 64 bits", "Compute with 1.0 * column")
        return found

    def _compared(self, node: ast.Compare) -> _Value:
        nodes = [node.left, *node.comparators]
        parts = []
        for left, op, right in zip(nodes[:-1], node.ops, nodes[1:], strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                part = self._contained(left, right)
                parts.append(_negated(part) if isinstance(op, ast.NotIn) else part)
            else:
                parts.append(self._pair(left, op, right))
        return _Value(
            kind=_Kind.TRUTH,
            text=ast.unparse(node),
            of=lambda block: np.logical_and.reduce([_as_column(part(block), len(block)) for part in parts]),
        )

    def _pair(self, left_node: ast.expr, op: ast.cmpop, right_node: ast.expr) -> Callable[[Block], Any]:
        compare = _COMPARISONS.get(type(op))
        if compare is None:
            raise self._node_error(op)
        left, right = self.value(left_node), self.value(right_node)
        if isinstance(op, ast.Eq | ast.NotEq):
            left, right = self._class_number(left, right), self._class_number(right, left)
        self._check_alike(left, right)
        if left.kind is _Kind.NUMBER:
            return lambda block: compared(compare, left.of(block), right.of(block))
        name = _ARROW_NAMES[compare]

        def texts(block: Block) -> Any:
            pair = [left.of(block), right.of(block)]
            if all(isinstance(each, bytes) for each in pair):
                return compare(*pair)
            scalars = [pa.scalar(each, pa.binary()) if isinstance(each, bytes) else each for each in pair]
            return booleans_of(pc.call_function(name, scalars))

        return texts

    def _check_alike(self, left: _Value, right: _Value) -> None:
        if left.kind is not right.kind:
            raise self.error(
                f"{left.text} is {left.kind}, but {right.text} is {right.kind}", "Compare values of one kind"
            )
        if left.kind is _Kind.TRUTH:
            raise self.error(f"{left.text} and {right.text} are true or false, not values", "Join them by and, or, not")

    def _class_number(self, value: _Value, other: _Value) -> _Value:
        """Return the number of a class if a label is compared with the name of the class."""
        if not other.has_classes or not isinstance(value.constant, str):
            return value
        classes = self.index.classes
        if value.constant not in classes:
            close = difflib.get_close_matches(value.constant, classes, n=1)
            next_step = f"Do you mean {close[0]!r}?" if close else f"The first class is {classes[0]!r}"
            raise self.error(f"{self.index.path} has no class {value.text}", next_step)
        number = classes.index(value.constant)
        return _Value(kind=_Kind.NUMBER, text=value.text, of=lambda _: number, constant=number)

    def _contained(self, left_node: ast.expr, right_node: ast.expr) -> Callable[[Block], Any]:
        left = self.value(left_node)
        if not isinstance(right_node, ast.List | ast.Tuple | ast.Set):
            return self._substring(left, right_node)
        items = [self._class_number(self.value(item), left) for item in right_node.elts]
        for item in items:
            if item.constant is None:
                raise self.error(f"{item.text} is not a constant", "A list after `in` holds numbers or quoted texts")
            self._check_alike(left, item)
        constants = [item.constant for item in items]
        if left.kind is _Kind.NUMBER:
            return lambda block: _is_one_of(np.asarray(left.of(block)), constants)
        texts = [str(each).encode("utf-8", "surrogateescape") for each in constants]
        if left.constant is not None:
            return lambda _: left.constant in constants
        options = pc.SetLookupOptions(binary_array(texts))
        return lambda block: booleans_of(pc.call_function("is_in", [left.of(block)], options))

    def _substring(self, part: _Value, whole_node: ast.expr) -> Callable[[Block], Any]:
        whole = self.value(whole_node)
        if whole.kind is not _Kind.TEXT or not isinstance(part.constant, str):
            raise self.error(
                f"{part.text} in {whole.text} is not a search", 'Write "part" in COLUMN, or COLUMN in [1, 2, 3]'
            )
        return self._matched("match_substring", whole, part.constant)

    def _called(self, node: ast.Call) -> _Value:
        called = node.func
        if not isinstance(called, ast.Attribute) or called.attr not in _METHODS or len(node.args) != 1 or node.keywords:
            raise self._node_error(node)
        whole, part = self.value(called.value), self.value(node.args[0])
        if whole.kind is not _Kind.TEXT or not isinstance(part.constant, str):
            raise self.error(f"{ast.unparse(node)} is not a search in a text", f'Write COLUMN.{called.attr}("part")')
        return _Value(
            kind=_Kind.TRUTH, text=ast.unparse(node), of=self._matched(_METHODS[called.attr], whole, part.constant)
        )

    def _matched(self, function: str, whole: _Value, part: str) -> Callable[[Block], Any]:
        if whole.constant is not None:
            raise self.error(f"{whole.text} is a constant", "Search in a column")
        pattern: Any = part.encode("utf-8", "surrogateescape")  # bytes, as texts need not be UTF-8
        options = pc.MatchSubstringOptions(pattern)
        return lambda block: booleans_of(pc.call_function(function, [whole.of(block)], options))


def _negated(part: Callable[[Block], Any]) -> Callable[[Block], Any]:
    return lambda block: np.logical_not(part(block))


def _is_one_of(values: NDArray[Any], constants: Sequence[int | float]) -> NDArray[np.bool_]:
    if values.dtype.kind == "i":  # as floats, large integers would not be exact
        whole = [int(each) for each in constants if abs(each) <= _MAX_INTEGER and each == int(each)]
        return np.isin(values, np.array([each for each in whole if each <= _MAX_INTEGER], np.int64))
    found = np.zeros(values.shape, np.bool_)
    for each in constants:
        found |= compared(operator.eq, values, each)
    return found


_ARITHMETIC: Final = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
}
_COMPARISONS: Final = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARROW_NAMES: Final = {
    operator.eq: "equal",
    operator.ne: "not_equal",
    operator.lt: "less",
    operator.le: "less_equal",
    operator.gt: "greater",
    operator.ge: "greater_equal",
}
_METHODS: Final = {"startswith": "starts_with", "endswith": "ends_with"}
