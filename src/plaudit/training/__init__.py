"""Training runs: `plaudit train` (environments in lockstep) and `plaudit online` (robot, judge and learner at their own
pace). Nothing here imports Ray; see cluster/."""
