"""Which ISA and how many threads: what the user asks for, what the machine has, and what the environment says."""

from __future__ import annotations

import os

import pytest

from pelton._native import available_isas
from pelton.compute.native import choose_isa, choose_threads, count_default_threads
from pelton.core.config import ISA_NAMES
from pelton.core.errors import ConfigError


def test_the_best_isa_is_the_default():
    assert choose_isa(None) == available_isas()[-1]
    assert available_isas()[0] == "scalar"


def test_an_isa_this_machine_lacks_is_refused_with_those_it_has():
    lacking = next(name for name in ISA_NAMES if name not in available_isas())
    with pytest.raises(ConfigError, match=f"isa is '{lacking}'; available on this machine: scalar"):
        choose_isa(lacking)


def test_every_available_isa_has_a_name_in_the_options():
    assert set(available_isas()) <= set(ISA_NAMES)


def test_default_threads_stay_within_the_affinity():
    assert 1 <= count_default_threads() <= len(os.sched_getaffinity(0))


def test_more_threads_than_the_machine_can_use_are_refused():
    cpus = len(os.sched_getaffinity(0))
    assert choose_threads(cpus + 1) == cpus + 1
    with pytest.raises(ConfigError, match=r"threads is 100000; allowed on this machine: 1 to \d+"):
        choose_threads(100000)
