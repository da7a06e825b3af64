"""Settings, URLs and the kernel: errors, ids, parsers, pagination, crypto, AMQP."""
