"""What a client keeps on disk: ledger, transcript, results, offered apps, present activity."""
