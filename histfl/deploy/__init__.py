"""Training for real: a cloud, edges and clients on machines of their own, over HTTPS with mutual TLS."""
