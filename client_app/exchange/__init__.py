"""A client's side of an exchange: task, model, update, upload."""
