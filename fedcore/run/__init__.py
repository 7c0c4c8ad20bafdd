"""One run without a transport: settings, requirements, exchanges, retries, groups, and what both sides derive alike."""
