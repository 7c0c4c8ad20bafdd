"""A proof that an update's norm is within a bound, tied to the vector that is masked (docs/adr/0074-norm-proofs.md).

A client draws `Pads`, masks them as further words of its vector and sends their commitment. Once all masked vectors are
there the server throws a coin, 32 uniform bytes, and each client answers with a proof (`prove`). The server drops
clients whose proof is not `accepted`, and at the end the sum of all others has to be the one they proved (`sum_holds`).
"""

from fedcore.secagg.norm.projection import sum_holds
from fedcore.secagg.norm.proof import values_of
from fedcore.secagg.norm.prover import Pads, prove
from fedcore.secagg.norm.statement import Statement
from fedcore.secagg.norm.verifier import Submission, accepted

__all__ = ["Pads", "Statement", "Submission", "accepted", "prove", "sum_holds", "values_of"]
