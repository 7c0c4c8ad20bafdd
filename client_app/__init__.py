"""The client agent: joins a federation, trains in a worker process, masks, uploads, and obeys its owner's policy."""
