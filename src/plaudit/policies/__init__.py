"""What decides how the robot moves."""
