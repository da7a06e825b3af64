"""Settings, URLs, and the kernel that every app may use: errors, ids, parsers, pagination, crypto, AMQP."""
