"""Robots: one folder each, and what they share. Numpy only, for all of this runs beside the motors.

    sim/         any simulated task of `plaudit.envs`, stepped at wall-clock rate
    igris_b/     a robot that speaks ROS 2: two JSON files and a config class of ten lines
    igris_c/     its sibling, with other joints, velocities in its state and compressed pictures
    lerobot/     any robot class of an installed lerobot
    ros/         the driver behind the IGRIS robots: joint states and cameras in, joint commands out
    transport/   what carries the messages: zenoh, Cyclone DDS, or nothing but memory
    twin/        a process that behaves like a robot on the same topics, faults included

A robot registers its config class (`plaudit.registry`, an entry point, or a dotted path); `config.build()` makes it
where it runs. docs/add_a_robot.md adds one.
"""
