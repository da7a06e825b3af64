"""Steps of builds in containers and networks of their own."""
