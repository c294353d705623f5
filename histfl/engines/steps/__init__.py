"""How the local steps of many clients are taken at once: which steppers fit a model, and what drives them."""
