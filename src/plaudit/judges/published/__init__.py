"""Published robot reward models as judges (docs/published_judges.md).

config.py        what a user sets of each, without torch
judges.config    what the scores mean: unit, direction, bounds, which of them may be compared
weights.py       their folders: shards, prefixes of names, adapters; heads, token rows and counts come from the files
frames.py        which frames a prompt shows, and their size in pixels
tree.py          all prompts of an episode in one pass
judge.py         the judge: prompts of every prefix, the pass, the scores
robometer.py     progress and success, by heads on added tokens
rynnvalue.py     remaining seconds, by bins on isolated tokens
words.py         RoboReward and TOPReward: scores as tokens
small.py         what small networks share: their files, frozen encoders, the judge
sarm.py          stage and progress over CLIP, as LeRobot has it
rewind.py        progress over DINOv2 and MiniLM
generated.py     SOLE-R1 and GRM: scores as written percentages
client.py        a judge behind Robometer's server
"""
