"""What several tests share and no fixture can give."""
