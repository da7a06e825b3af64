"""How the admin pages write dates and times."""
