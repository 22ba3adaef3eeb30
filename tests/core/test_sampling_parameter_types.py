"""Values of another type, or that are no number, are refused when `SamplingParams` is made, with the field's name."""

from __future__ import annotations

import dataclasses
import math

import pytest

from pelton.core.config import EngineConfig
from pelton.core.errors import InvalidParameterError
from pelton.core.sampling_params import SamplingParams

# Every list of strings takes one string for a list of one.
LISTS_OF_STRINGS = ("stop", "bad_words", "dry_sequence_breakers")
OPTIONAL = {f.name for f in dataclasses.fields(SamplingParams) if f.default is None}
NAMES = [f.name for f in dataclasses.fields(SamplingParams)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", True, None, object(), b"1", {"a": 1}])
def test_value_that_no_field_has_is_refused(name: str, value: object) -> None:
    if value is None and name in OPTIONAL:
        pytest.skip("unset")
    if isinstance(value, str) and name in LISTS_OF_STRINGS:
        pytest.skip("a string")
    if value is True and name == "ignore_eos":
        pytest.skip("a switch")
    with pytest.raises(InvalidParameterError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("name", ["use_prefix_cache", "use_kv_cache"])
@pytest.mark.parametrize("value", ["no", 0, None])
def test_switch_of_the_engine_is_true_or_false(name: str, value: object) -> None:
    with pytest.raises(InvalidParameterError, match=f"{name} is {value!r}; allowed: True or False"):
        EngineConfig(**{name: value})  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("name", ["prefill_chunk", "max_num_seqs", "kv_cache_dtype", "scheduling_policy"])
def test_option_of_the_engine_with_a_value_cannot_be_unset(name: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"{name} is None"):
        EngineConfig(**{name: None})  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("max_tokens", [0, -1, -5, 2**31, 2**63])
def test_number_of_new_tokens_is_at_least_one_and_no_more_than_can_be(max_tokens: int) -> None:
    with pytest.raises(InvalidParameterError, match=f"max_tokens is {max_tokens}; allowed: 1 to 2147483647"):
        SamplingParams(max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        ({-1: 5}, "logit_bias is -1"),
        ({"abc": 1}, "logit_bias is 'abc'"),
        ({"3": 1}, "logit_bias is '3'"),
        ({3: 1e9}, r"logit_bias\[3\] is 1000000000.0; allowed: a number from -100 to 100"),
        ({3: math.nan}, r"logit_bias\[3\] is nan"),
        ({3: "1"}, r"logit_bias\[3\] is '1'"),
        ([(3, 1.0)], r"logit_bias is \[\(3, 1.0\)\]; allowed: a mapping"),
    ],
)
def test_bias_maps_token_ids_to_numbers(bias: object, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        SamplingParams(logit_bias=bias)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("field", [{"logit_bias": {32: 5}}, {"stop_token_ids": (99,)}])
def test_ids_beyond_the_vocabulary_are_found_when_it_is_known(field: dict[str, object]) -> None:
    params = SamplingParams(**field)  # type: ignore[arg-type]  # any field
    with pytest.raises(InvalidParameterError, match=f"{next(iter(field))} is (32|99); allowed: token ids 0 to 31"):
        params.check_vocabulary(32)
    with pytest.raises(InvalidParameterError, match="stop_token_ids is -1"):
        SamplingParams(stop_token_ids=(31, -1))
