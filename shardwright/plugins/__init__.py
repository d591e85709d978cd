"""The interface of plug-ins."""
