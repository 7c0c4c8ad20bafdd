"""Updates to 64-bit words that add up, and sums of such words to weighted means.

Masks cancel only in exact arithmetic, so updates become integers before they are masked. An element of the update is
divided by a public scale, rounded stochastically to one of 2L + 1 levels, and put into a field of b bits. The rounding
is unbiased, so its errors average out over clients and rounds (as in QSGD, Alistarh et al. 2017, section 3.1). A field
has room for the sum of n_max values, so fields are packed several to a word and words added modulo 2^64 without any
field running into its neighbour; parameters for which that would not hold are refused before a round starts.

If a line is slow, fields are narrower still, or hold a part of the coordinates only; `rotation` says how an update
is made fit for that (docs/adr/0052).

A scale must cover the largest update of any client, which nobody may see. Clients therefore let power sums of their
magnitudes travel in the sum, from which an upper bound for the next round follows (`statistics`, `scales`,
docs/adr/0014).

`ScaleTrack` fixes the public parameters of each exchange, every client calls `encode`, or
`encode_nothing` if its own work failed, and the server calls `decode` on the sum. `encoding` describes the words.
With differential privacy the parameters are those of `private_encoding`, and noise goes into the words of each client
(`private`, `noised`); with norm proofs they are those of `bounded_encoding`. `write_change` keeps of a sum what a
client that has the base makes the mean of, in fewer bytes than the mean has (`means.change`).

What must hold: both sides derive the same parameters, whose hash goes into the protocol's ctx;
whatever honest clients send decodes to within the proven error; a sum that no honest clients can have made raises
PeerError; of a client that failed the sum tells that there was one, and nothing else; and if more failed than the
encoding says, it tells how many, and nothing of the others either; if an update is too large for the scales, it
tells how many are, and magnitudes (`locks`).
"""

from fedcore.codec.bounded.parameters import BoundedEncoding, bounded_encoding
from fedcore.codec.bounded.updates import pads_of, steps_of, summed_steps
from fedcore.codec.decoder import Decoded
from fedcore.codec.dispatch import decode, encode, encode_nothing
from fedcore.codec.encoder import Encoded
from fedcore.codec.encoding import Encoding
from fedcore.codec.encodings import AnyEncoding, release_of
from fedcore.codec.gpu.device import DeviceVector, device_serves_from, open_vector
from fedcore.codec.locks import MOST_FAILURES
from fedcore.codec.means.change import apply_change, change_bytes, is_change, write_change
from fedcore.codec.metrics import MetricValue
from fedcore.codec.names import MetricName
from fedcore.codec.privacy.parameters import PrivateEncoding, private_encoding
from fedcore.codec.rotation import rotation_seed
from fedcore.codec.scaling.scales import ScaleMemory, check_scales, first_encoding, is_first
from fedcore.codec.scaling.statistics import MagnitudeStatistics, joined
from fedcore.codec.scaling.track import ScaleTrack
from fedcore.codec.scaling.widths import auto_field_bits
from fedcore.codec.settings import CodecSettings

__all__ = [
    "MOST_FAILURES",
    "AnyEncoding",
    "BoundedEncoding",
    "CodecSettings",
    "Decoded",
    "DeviceVector",
    "Encoded",
    "Encoding",
    "MagnitudeStatistics",
    "MetricName",
    "MetricValue",
    "PrivateEncoding",
    "ScaleMemory",
    "ScaleTrack",
    "apply_change",
    "auto_field_bits",
    "bounded_encoding",
    "change_bytes",
    "check_scales",
    "decode",
    "device_serves_from",
    "encode",
    "encode_nothing",
    "first_encoding",
    "is_change",
    "is_first",
    "joined",
    "open_vector",
    "pads_of",
    "private_encoding",
    "release_of",
    "rotation_seed",
    "steps_of",
    "summed_steps",
    "write_change",
]
