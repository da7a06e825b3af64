"""What the checks and the tests take from npm."""
