"""Tools: one interface for what a client runs between turns and what a server runs inside them."""
