"""The real parts the control plane stands on, one module each, and how to start them privately.

Standard library only: this runs before any virtual environment exists.
"""
