"""Driving a robot and recording what happened. Numpy only."""
