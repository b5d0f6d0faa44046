"""What a person reads when something is refused."""

from collections.abc import Callable, Collection
from typing import Any

import pytest

from normgrowth.errors import InputError


def refused(call: Callable[..., Any], *args: Any, secrets: Collection[str] = (), **options: Any) -> str:
    """The message of an InputError, which has to be one short line without any of the secrets."""
    with pytest.raises(InputError) as caught:
        call(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    for secret in secrets:
        assert secret not in message
    return message
