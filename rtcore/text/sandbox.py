"""A jinja2 sandbox for chat templates, in which a template can neither run on nor grow without bound.

A template is part of a checkpoint, so it is a stranger's code. The sandbox of jinja2 keeps it from Python's
internals; what is added here is a budget. Every round of a loop, every call and every filter costs a step, and
what makes a text or a list is charged for its size, before it is made where the size can be foreseen.
In everything else it is the environment that transformers renders chat templates in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import update_wrapper
from threading import local
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from rtcore.text.budget import MAX_CHARACTERS, Budget, TemplateTooCostly

_COUNTED = "ortolan_counted"
_JOINED = "ortolan_joined"
_SLICED = "ortolan_sliced"


class ChatSandbox(ImmutableSandboxedEnvironment):
    """The environment. Use `compile_template` and `render`, from any number of threads."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, loopcontrols],
            finalize=self._written,
        )
        self._threads = local()
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["namespace"] = _PlainNamespace
        # It makes random text of any length.
        del self.globals["lipsum"]
        self.filters["tojson"] = _tojson
        self.filters["join"] = self._join
        self.filters = {name: self._charged(name, run) for name, run in self.filters.items()}
        self.filters[_COUNTED] = self._count
        self.filters[_JOINED] = self._concatenate
        self.filters[_SLICED] = self._made

    def compile_template(self, source: str) -> Template:
        """Compile a template. Raises jinja2.TemplateSyntaxError."""
        self._threads.budget = Budget()
        return self.from_string(source)

    def render(self, template: Template, variables: dict[str, Any]) -> str:
        """Render a template within a fresh budget. Raises what a template can raise: any Exception."""
        self._threads.budget = Budget()
        chunks = []
        size = 0
        for chunk in template.generate(variables):
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_CHARACTERS:
                raise TemplateTooCostly(f"It makes a text of more than {MAX_CHARACTERS} characters.")
        return "".join(chunks)

    @property
    def _budget(self) -> Budget:
        """The budget of the rendering that this thread is doing."""
        budget: Budget = self._threads.budget
        return budget

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse, and route loops, `~` and slices through filters that the budget sees."""
        template = Parser(self, source, name, filename).parse()
        _route(template)
        template.set_environment(self)
        return template

    def _count(self, items: Any) -> Iterable[Any]:
        """The items of a loop, each for a step. What has a length keeps it, for `loop.length`."""
        if isinstance(items, str | list | tuple | dict):
            self._budget.step(len(items))
            return items
        return self._counted(items)

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._budget.step()
            yield item

    def _concatenate(self, values: Iterable[Any]) -> str:
        self._budget.step()
        parts = [str(self._written(value)) for value in values]
        self._budget.grow(sum(map(len, parts)))
        return "".join(parts)

    def _join(self, items: Iterable[Any], separator: Any = "", attribute: str | int | None = None) -> str:
        """The filter of jinja2, with each entry charged before it is written."""
        entries = list(items)
        if attribute is not None:
            entries = list(map(make_attrgetter(self, attribute), entries))
        for entry in entries:
            self._budget.grow(self._budget.written(entry) + len(str(separator)))
        return str(separator).join(map(str, entries))

    def _made(self, value: Any) -> Any:
        self._budget.made(value)
        return value

    def _written(self, value: Any) -> Any:
        """A value that is about to be written out."""
        if not isinstance(value, str):
            self._budget.written(value)
        return value

    def _charged(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        """The filter `run` with its cost charged."""

        def filtered(*arguments: Any, **named: Any) -> Any:
            self._budget.before(name, (*arguments, *named.values()))
            return self._made(run(*arguments, **named))

        # It copies the marks by which jinja2 knows whether a filter takes the context.
        return update_wrapper(filtered, run)

    def call(__self, __context: Context, __obj: Any, *arguments: Any, **named: Any) -> Any:
        """Call what a template calls: a macro, a function, or a method of a value."""
        method = getattr(__obj, "__wrapped__", __obj)
        name = getattr(method, "__name__", "")
        if name == "join":
            arguments = tuple(list(value) if isinstance(value, Iterator) else value for value in arguments)
        __self._budget.before(name, (getattr(method, "__self__", None), *arguments, *named.values()))
        return __self._made(super().call(__context, __obj, *arguments, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Do an operation whose result may be large."""
        self._budget.operation(operator, left, right)
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _PlainNamespace(Namespace):
    """A namespace without names that begin with an underscore, the way to Python's internals."""

    def __init__(*arguments: Any, **named: Any) -> None:
        # Without a parameter of that name, a template may call an attribute `self`.
        this, *mappings = arguments
        values = dict(*mappings, **named)
        for name in values:
            _check_name(name)
        Namespace.__init__(this, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"A namespace takes no name that begins with an underscore: {name!r}.")


def _route(node: nodes.Node) -> None:
    """Put the budget's filters around what is below `node`."""
    for name, value in node.iter_fields():
        if isinstance(value, list):
            setattr(node, name, [_routed(item) for item in value])
        else:
            setattr(node, name, _routed(value))


def _routed(value: Any) -> Any:
    if not isinstance(value, nodes.Node):
        return value
    _route(value)
    if isinstance(value, nodes.For):
        value.iter = _filter(value.iter, _COUNTED)
    elif isinstance(value, nodes.Concat):
        return _filter(nodes.Tuple(value.nodes, "load", lineno=value.lineno), _JOINED)
    elif isinstance(value, nodes.Getitem) and isinstance(value.arg, nodes.Slice):
        return _filter(value, _SLICED)
    return value


def _filter(value: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; the filter of jinja2 escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
