"""Commands that are executed in a workspace by one request, which waits for their end or not."""
