"""Updates to packed 64-bit words that add up, and sums of such words to weighted means.

`first_encoding` and `next_encoding` fix the public parameters of an exchange, each client calls
`encode`, the server `decode`s the sum. See PROTOCOL.md, "Encoding", and encoding.py for the words. With differential
privacy it is `private_encoding` and private.py.
"""

from fedcore.codec.decoder import Decoded
from fedcore.codec.dispatch import decode, encode
from fedcore.codec.encoder import Encoded
from fedcore.codec.encoding import CodecSettings, Encoding
from fedcore.codec.metrics import MetricName, MetricValue
from fedcore.codec.private import (
    AnyEncoding,
    PrivateEncoding,
    private_encoding,
    release_of,
)
from fedcore.codec.statistics import Statistics, first_encoding, next_encoding

__all__ = [
    "AnyEncoding",
    "CodecSettings",
    "Decoded",
    "Encoded",
    "Encoding",
    "MetricName",
    "MetricValue",
    "PrivateEncoding",
    "Statistics",
    "decode",
    "encode",
    "first_encoding",
    "next_encoding",
    "private_encoding",
    "release_of",
]
