"""One way in for all kinds of exchange: exact, with differential privacy, and with norm proofs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, Generic, ParamSpec, TypeVar

from fedcore.codec import decoder, encoder
from fedcore.codec.bounded import updates
from fedcore.codec.bounded.parameters import BoundedEncoding
from fedcore.codec.encoding import Encoding
from fedcore.codec.encodings import AnyEncoding
from fedcore.codec.privacy import noised
from fedcore.codec.privacy.parameters import PrivateEncoding

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exact(Generic[P, T]):
    """A function of the exact codec, whose parameters and docstring are those of all kinds."""

    function: Callable[Concatenate[Encoding, P], T]

    def or_else(
        self,
        noised_function: Callable[Concatenate[PrivateEncoding, P], T],
        bounded_function: Callable[Concatenate[BoundedEncoding, P], T],
    ) -> Callable[Concatenate[AnyEncoding, P], T]:
        """The function that takes any kind of encoding.

        noised_function, bounded_function
            Take all parameters of the other, those too of which they make no use: who adds one decides for all kinds.
        """

        @wraps(self.function)
        def any_of_them(encoding: AnyEncoding, /, *args: P.args, **kwargs: P.kwargs) -> T:
            if isinstance(encoding, PrivateEncoding):
                return noised_function(encoding, *args, **kwargs)
            if isinstance(encoding, BoundedEncoding):
                return bounded_function(encoding, *args, **kwargs)
            return self.function(encoding, *args, **kwargs)

        return any_of_them


encode = Exact(encoder.encode).or_else(noised.encode_noised, updates.encode_bounded)
encode_nothing = Exact(encoder.encode_nothing).or_else(noised.encode_nothing_noised, updates.encode_nothing_bounded)
decode = Exact(decoder.decode).or_else(noised.decode_noised, updates.decode_bounded)
