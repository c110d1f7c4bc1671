"""Tests of the errors: every one is complete, unique and readable."""

import dataclasses
import inspect
from typing import Any

import grpc
import pytest

from runtime import errors
from runtime.errors import (
    EmptyPromptError,
    LayerSplitError,
    PromptTooLongError,
    StagemeshError,
    StepGapError,
    find_error,
)

EXAMPLES: dict[str, Any] = {
    "bool": True,
    "int": 7,
    "float": 0.25,
    "str": "text",
    "object": (3, 4),
    "tuple[int, ...]": (1, 2),
    "tuple[str, ...]": ("A", "B"),
}


def _concrete_errors() -> list[type[StagemeshError]]:
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    return [cls for cls in classes if issubclass(cls, StagemeshError) and "template" in vars(cls)]


def _example(cls: type[StagemeshError]) -> StagemeshError:
    fields = dataclasses.fields(cls)
    return cls(**{field.name: EXAMPLES[_type_name(field.type)] for field in fields})


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation)


@pytest.mark.parametrize("cls", _concrete_errors())
def test_error_of_any_class_has_statuses_and_names_its_fields(cls: type[StagemeshError]) -> None:
    error = _example(cls)

    assert grpc.StatusCode[error.grpc_status] is not grpc.StatusCode.OK
    assert 400 <= error.http_status < 600
    assert "{" not in str(error)
    assert cls.__doc__ is not None
    assert cls.__doc__.startswith("Raised when ")


def test_error_codes_of_all_classes_are_unique() -> None:
    codes = [cls.code for cls in _concrete_errors()]

    assert len(set(codes)) == len(codes)


def test_error_message_has_both_numbers() -> None:
    error = PromptTooLongError(num_tokens=5000, max_tokens=4096)

    assert str(error) == "the prompt has 5000 tokens, but at most 4096 fit; shorten it"


def test_layer_split_error_message_shows_counts_as_typed() -> None:
    error = LayerSplitError(layers=(10, 20), num_layers=32, num_stages=2)

    assert "layers 10,20 do not fit" in str(error)
    assert "add up to the model's 32" in str(error)


def test_find_error_in_nested_groups_returns_the_first() -> None:
    wanted = StepGapError(expected=3, actual=5)
    group = ExceptionGroup(
        "outer", [ValueError(), ExceptionGroup("inner", [wanted]), EmptyPromptError(index=0)]
    )

    assert find_error(group) is wanted


def test_find_error_without_one_returns_none() -> None:
    assert find_error(ExceptionGroup("outer", [ValueError()])) is None
