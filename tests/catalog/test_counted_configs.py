"""Small configs as the classes of engines have them: parameters, and what each layer keeps."""

from __future__ import annotations

import pytest
from counted_configs import COUNTED
from kept_elements import kept

from kvplan.catalog.reader import read_config


@pytest.mark.parametrize("name", COUNTED)
def test_a_small_config_is_counted_as_its_class_is_built(name: str) -> None:
    row = COUNTED[name]
    spec = read_config(row.config, model_id=name)
    assert spec.num_parameters == row.num_parameters
    assert kept(spec) == row.kept
