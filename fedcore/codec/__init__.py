"""Updates to packed 64-bit words that add up, and sums of such words to weighted means.

`first_encoding` and `next_encoding` fix the public parameters of an exchange, each client calls
`encode`, the server `decode`s the sum. See PROTOCOL.md, "Encoding", and encoding.py for the words.
"""

from fedcore.codec.decoder import Decoded, decode, error_bound
from fedcore.codec.encoder import Encoded, encode
from fedcore.codec.encoding import Encoding
from fedcore.codec.metrics import MetricName, MetricValue
from fedcore.codec.settings import CodecSettings
from fedcore.codec.statistics import Statistics, first_encoding, next_encoding

__all__ = [
    "CodecSettings",
    "Decoded",
    "Encoded",
    "Encoding",
    "MetricName",
    "MetricValue",
    "Statistics",
    "decode",
    "encode",
    "error_bound",
    "first_encoding",
    "next_encoding",
]
