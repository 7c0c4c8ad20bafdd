"""From the fields of a sum to the model that it makes: at the server, and at a client that has the model before.

`mean` decodes the fields of a cohort's sum to the weighted mean; `change` has the same fields as a file, from which who
has the model before makes the next one as the server did.
"""
