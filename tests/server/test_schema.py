"""Field descriptions: what is documented is what is enforced, told by an independent validator."""

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_jax.host.invalid_request import InvalidRequest
from server.openapi import published
from server.response_table import response_body
from server.schema import Fields
from server.tables import Limits, chat_body, completion_body, tokenize_body

LIMITS = Limits(512, 20)
BODIES = {
    "completion": completion_body,
    "chat": chat_body,
    "response": response_body,
    "tokenize": tokenize_body,
}
BASE = {
    "completion": {"prompt": "a"},
    "chat": {"messages": [{"role": "user", "content": "a"}]},
    "response": {"input": "a"},
    "tokenize": {"prompt": "a"},
}
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 600),
    st.sampled_from([2**63, -(2**63) - 1, 0.5, 1.0, "", "a", "left", "x" * 1100]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.sampled_from("1ab"), inner),
    max_leaves=8,
)


def is_taken(body, value):
    try:
        Fields(body(LIMITS), value)
    except InvalidRequest:
        return False
    return True


def strict(schema):
    """JSON Schema takes 1.0 for an integer; the server does not."""
    checker = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: type(value) is int
    )
    kind = jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=checker)
    return kind(schema)


@pytest.mark.parametrize("name", BODIES)
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_parser_agrees_with_the_published_schema(name, data):
    schema = BODIES[name](LIMITS)
    field = data.draw(st.sampled_from(sorted(schema["properties"])))
    body = BASE[name] | {field: data.draw(VALUES)}
    if field == "logit_bias" and isinstance(body[field], dict):
        body[field].pop("a", None), body[field].pop("b", None)  # keys are told apart later
    expected = strict(published(schema)).is_valid(body)
    assert is_taken(BODIES[name], body) == expected, json.dumps(body)


@pytest.mark.parametrize("name", BODIES)
def test_schemas_are_schemas(name):
    jsonschema.Draft202012Validator.check_schema(published(BODIES[name](LIMITS)))


def test_field_in_a_list_blames_the_list():
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.role") as caught:
        Fields(chat_body(LIMITS), {"messages": [{"role": "user"}, {"role": 5}]})
    assert caught.value.param == "messages"


def test_ids_in_quantity_are_checked_each():
    body = completion_body(LIMITS)
    Fields(body, {"prompt": list(range(5000))})
    with pytest.raises(InvalidRequest):
        Fields(body, {"prompt": [*range(5000), -1]})


def test_null_is_the_default():
    fields = Fields(chat_body(LIMITS), BASE["chat"] | {"stream": None, "n": None})
    assert fields.get("stream") is False and not fields.has("n")
