"""The warm pool: containers that were started before it is known whose workspace they will be."""
