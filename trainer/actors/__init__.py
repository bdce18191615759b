"""Actors: hold the trained weights and update them."""
