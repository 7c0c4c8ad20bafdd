"""What will go wrong before a run starts, all of it at once: `fedcore check APP` and `fedcore.check(app)`.

Nothing here has rules of its own. `checks` calls the functions that refuse in a deployment (`fedcore.run.settings`,
`fedcore.run.requirements`, `fedcore.federation.admission`) one by one and collects what they say (`findings`);
`dry_round` is a simulation of
one round in which a single client works for the whole cohort, so that strategy, records, encoding and policies are
asked by the code that a real round goes through, and what they refuse does not end it.
"""
