"""Values shared by the writers of all frameworks."""
