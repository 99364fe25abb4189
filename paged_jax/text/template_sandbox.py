"""A Jinja environment for chat templates that nobody vouches for.

Beyond Jinja's own sandbox (no private attributes, no changes to arguments) a rendering has a
deadline and a budget of characters, and what a template could blow up is measured before it is
made. One environment serves one rendering; only the compiled code is shared.
"""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import CodeType
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from paged_jax.text.template_limits import (
    BOUNDED_FILTERS,
    ITEM_COST,
    MAX_TEXT_LEN,
    TemplateTooCostly,
    check_format,
    check_method,
    check_numbers,
    check_operator,
    check_size,
    written_len,
)

DEADLINE_S = 5.0
MAX_TEMPLATE_LEN = 1 << 18
MAX_SPENT = 1 << 28  # characters of all values of a rendering together

# Names that no chat template needs and that make much out of little.
DROPPED_FILTERS = frozenset(("pprint", "urlize", "wordwrap", "xmlattr", "sum"))
# Filters whose numbers are widths, counts or exponents.
SIZED_FILTERS = frozenset(("center", "batch", "slice", "round"))
# Filters that look at a structure without writing it out.
STRUCTURAL_FILTERS = frozenset(
    "attr batch count d default dictsort first groupby items last length list map max min random "
    "reject rejectattr reverse select selectattr slice sort unique".split()
)


def run_template(source: str, variables: Mapping[str, object]) -> str:
    """Return what the template writes.

    Raises:
        TemplateError: it is malformed, raised an error itself, left the sandbox or cost too much.
    """
    code = _compile(source)
    environment = TemplateEnvironment()
    template = Template.from_code(environment, code, environment.make_globals(None))
    return "".join(_bounded(template.generate(variables)))


@functools.lru_cache(maxsize=32)
def _compile(source: str) -> CodeType:
    """The template's code, with calls on the budget written into it."""
    if len(source) > MAX_TEMPLATE_LEN:
        raise TemplateTooCostly(f"a template has at most {MAX_TEMPLATE_LEN} characters")
    environment = TemplateEnvironment()
    tree = _Metering().visit(environment.parse(source))
    return environment.compile(tree)


def _bounded(pieces: Iterable[str]) -> Iterator[str]:
    written = 0
    for piece in pieces:
        written += len(piece)
        if written > MAX_TEXT_LEN:
            raise TemplateTooCostly(f"the prompt exceeds {MAX_TEXT_LEN} characters")
        yield piece


class _Metering(NodeTransformer):
    """Makes each turn of a loop and each `~` of a template call on the budget."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        cost = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        turn = nodes.ExprStmt(_call("spend", [nodes.Const(cost)]), lineno=node.lineno)
        node.body.insert(0, turn)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("join_texts", node.nodes)


def _call(method: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)


class GenerationBlock(Extension):
    """Reads `{% generation %} ... {% endgeneration %}`, a mark for training, as its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the statements inside the block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class PublicNamespace(Namespace):
    """Jinja's `namespace`, without private names."""

    def __init__(*args: Any, **fields: Any) -> None:
        self, *given = args
        for name in dict(*given, **fields):
            _check_public(name)
        Namespace.__init__(self, *given, **fields)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace takes no private name such as {name}")


def raise_exception(message: str) -> NoReturn:
    """End the rendering with a template's own message."""
    raise TemplateError(message)


def strftime_now(form: str) -> str:
    """Return the local time in the given form."""
    check_format(form)
    return datetime.now().strftime(form)


def new_dict(*args: Any, **fields: Any) -> dict[Any, Any]:
    """Return `dict(...)`, without the methods of the class."""
    return dict(*args, **fields)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """What one rendering may use, and what it has used."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, loopcontrols],
            optimized=False,  # nothing is computed while compiling, outside the budget
            finalize=self.written,
        )
        self.filters = {
            name: self._metered(name, function)
            for name, function in {**self.filters, **BOUNDED_FILTERS}.items()
            if name not in DROPPED_FILTERS
        }
        del self.globals["lipsum"]
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now
        self.globals["dict"] = new_dict
        self.globals["namespace"] = PublicNamespace
        self.ends_s = time.monotonic() + DEADLINE_S
        self.spent = 0

    def spend(self, cost: int) -> None:
        """Take `cost` characters from the budget; raise if it or the time is used up."""
        self.spent += cost
        if self.spent > MAX_SPENT:
            raise TemplateTooCostly(f"it makes more than {MAX_SPENT} characters")
        if time.monotonic() > self.ends_s:
            raise TemplateTooCostly(f"it takes more than {DEADLINE_S:g} seconds")

    def written(self, value: Any) -> Any:
        """Account for a value that is written out, and return it."""
        self.spend(written_len(value))
        return value

    def join_texts(self, *values: Any) -> str:
        """Return the values' texts, one behind the other (the operator `~`)."""
        text = "".join([str(self.written(value)) for value in values])
        check_size(len(text))
        return text

    def call(
        __self,
        __context: Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call an object for a template."""
        __self.spend(0)
        args = check_method(__obj, args, kwargs)
        return __self._made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right` for a template."""
        check_operator(operator, left, right)
        return self._made(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a harmless `str.format`, or None for anything else."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            check_format(value.__self__)
        return wrapped

    def _made(self, value: Any) -> Any:
        if isinstance(value, (str, bytes)):
            check_size(len(value))
            self.spend(len(value))
        elif isinstance(value, (list, tuple)):
            self.spend(ITEM_COST * len(value))
        return value

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            if name in SIZED_FILTERS:
                check_numbers([*args[1:], *kwargs.values()])
            if name not in STRUCTURAL_FILTERS:
                self.spend(sum(written_len(value) for value in args))
            return self._made(function(*args, **kwargs))

        return metered
