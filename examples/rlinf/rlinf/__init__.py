"""The module names of RLinf's guides; everything is in Plaudit. Run the commands in the folder above this one."""
