"""What a call is given → the operands that the passes read, checked and derived token by token."""
