"""What commands share: flags, what is printed, report files."""
