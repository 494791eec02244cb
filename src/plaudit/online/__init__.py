"""Online learning: a robot acts, a judge labels, a learner learns, new weights go back. Without Ray; see cluster/."""
