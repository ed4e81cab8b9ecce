"""The networks and the models built from them."""
