"""The open sweep: faults made by operators, for what the catalogue's authors did not think of."""
