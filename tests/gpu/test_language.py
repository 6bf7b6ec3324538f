"""Every part of the language on the device."""

from __future__ import annotations

import pytest

from tests.api.language_cases import LANGUAGE
from tests.api.test_language_on_gpu import check

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", LANGUAGE)
def test_it_computes_what_the_host_computes(name: str) -> None:
    check(name)
