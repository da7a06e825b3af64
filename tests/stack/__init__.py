"""The services and processes that tests run against, and how tests reach them."""
