"""A client's side of an exchange: eligibility, task, model, update, upload, withdrawal."""
