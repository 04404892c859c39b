"""The rooms of an edge: calls with several members, and the operator among them."""
