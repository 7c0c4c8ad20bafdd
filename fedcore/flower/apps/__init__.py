"""ClientApps made of functions, and what runs them: tensors, engines, personalization, statistics."""
