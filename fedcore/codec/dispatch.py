"""One way in for both kinds of exchange: with differential privacy, and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, Generic, ParamSpec, TypeVar

from fedcore.codec import decoder, encoder
from fedcore.codec.encoding import Encoding
from fedcore.codec.privacy import noised
from fedcore.codec.privacy.parameters import AnyEncoding, PrivateEncoding

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exact(Generic[P, T]):
    """A function of the codec without noise, whose parameters and docstring are those of both kinds."""

    function: Callable[Concatenate[Encoding, P], T]

    def or_noised(
        self, noised_function: Callable[Concatenate[PrivateEncoding, P], T]
    ) -> Callable[Concatenate[AnyEncoding, P], T]:
        """The function that takes either kind of encoding.

        noised_function
            Takes all parameters of the other, those too of which it makes no use: who adds one decides for both kinds.
        """

        @wraps(self.function)
        def either(encoding: AnyEncoding, /, *args: P.args, **kwargs: P.kwargs) -> T:
            if isinstance(encoding, PrivateEncoding):
                return noised_function(encoding, *args, **kwargs)
            return self.function(encoding, *args, **kwargs)

        return either


encode = Exact(encoder.encode).or_noised(noised.encode_noised)
encode_nothing = Exact(encoder.encode_nothing).or_noised(noised.encode_nothing_noised)
decode = Exact(decoder.decode).or_noised(noised.decode_noised)
