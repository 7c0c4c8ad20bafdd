"""A proof that an update's norm is within a bound, tied to the vector that is masked: measured, not in the product."""
