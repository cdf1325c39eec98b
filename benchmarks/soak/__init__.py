"""What the service promises under load, under attack and where something is missing, tried on servers here."""
