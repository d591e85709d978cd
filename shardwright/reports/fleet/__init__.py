"""What `fleet` prints and draws."""
