"""Robots: one folder each, and what they share. Numpy only, because all of this runs next to the motors.

    sim/         any simulated task of `plaudit.envs`, stepped at wall-clock rate
    igris_b/     a ROS 2 robot: two JSON files and a config class of ten lines
    igris_c/     another one, with other joints, velocities in its state and compressed images
    lerobot/     any robot class of an installed lerobot
    ros/         the driver behind the IGRIS robots: joint states and images in, joint commands out
    transport/   sends the messages: zenoh, Cyclone DDS, or memory within one process
    twin/        a process that behaves like a robot on the same topics, faults included

A robot registers its config class (`plaudit.registry`, an entry point, or a dotted path); `config.build()` connects to
it where it runs. docs/add_a_robot.md adds one.
"""
