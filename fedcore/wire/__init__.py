"""Every message between the parties of a federation, and how it is signed and cut into chunks."""
